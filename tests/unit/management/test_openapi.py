"""The description of the HTTP API, tried by a machine: whatever it allows, the node answers as described."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

import weft
from weft.config import parse

AUTHORIZATION = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
DANGEROUS = {"put_api_users_name", "delete_api_users_name", "delete_api_permissions_vhost_user"}
"""What would lock the test itself out."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A node in a thread of its own, since the tests here know no loop."""
    ready, found, end = threading.Event(), [0], []

    async def serve() -> None:
        stop = asyncio.Event()
        end.append((asyncio.get_running_loop(), stop))
        async with weft.Node(name="here", configuration=parse('[http]\naddress = "127.0.0.1:0"\n')) as node:
            found[0] = node.http_port
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    yield found[0]
    loop, stop = end[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()


def check(operation: schemathesis.schemas.APIOperation, port: int) -> None:  # type: ignore[type-arg]
    described = operation.definition.raw["responses"]

    @settings(
        max_examples=8,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def run(case: schemathesis.Case) -> None:
        response = case.call(base_url=f"http://127.0.0.1:{port}", headers=AUTHORIZATION, timeout=10)
        assert response.status_code < 500 or response.status_code in (501, 503), (case, response.text)
        assert str(response.status_code) in described, (case.method, case.path, response.status_code)

    run()


@pytest.mark.slow
def test_every_route_answers_as_described(port: int) -> None:
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}/api/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    checked = [one for one in operations if one.definition.raw["operationId"] not in DANGEROUS]
    assert len(checked) > 60
    for operation in checked:
        check(operation, port)
