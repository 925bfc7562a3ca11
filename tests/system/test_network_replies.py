"""A client whose node dies goes on at another under the same reply address, and what it has asked for still arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from system.fabrics import Fabric
from weft.client import Message

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LOCAL, REMOTE = ["service_gateway.direct push", "amq.topic pull"], ["amq.topic push"]
ASKED = 8
"""Fewer than a gateway lets one node of a service have unfinished."""


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    """Two nodes for clients and one for services, each linked to a gateway alone."""
    with Fabric(tmp_path) as fabric:
        fabric.add("gateway")
        fabric.channel("gateway").exchange_declare("service_gateway.direct", "direct", durable=True)
        for name, routes in (("one", LOCAL), ("two", LOCAL), ("remote", REMOTE)):
            config = tmp_path / f"{name}.toml"
            config.write_text(_links(fabric.url("gateway"), routes))
            fabric.add(name, "--config", str(config))
            fabric.channel(name).exchange_declare("service_gateway.direct", "direct", durable=True)
        yield fabric


def _links(gateway: str, routes: list[str]) -> str:
    lines = ["[[links]]", 'name = "up"', f'urls = ["{gateway}"]', 'role = "gateway"', "heartbeat_s = 1"]
    for route in routes:
        exchange, direction = route.split()
        lines += ["[[routes]]", 'link = "up"', 'kind = "dynamic"']
        lines += [f'exchange = "{exchange}"', f'direction = "{direction}"']
    return "\n".join(lines)


async def test_outstanding_replies_follow_the_client_to_another_node(fabric: Fabric) -> None:
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()
    urls = [fabric.url("one"), fabric.url("two")]
    async with weft.connect(fabric.url("remote")) as server, weft.connect(urls) as client:

        @server.service("service://slow", concurrency=ASKED + 1)
        async def slow(request: Message) -> object:
            begun.release()
            await go_on.wait()
            return request.body

        @server.service("service://quick")
        async def quick(request: Message) -> object:
            return request.body

        await slow.start()
        await quick.start()
        await _answered(client)
        asked = [asyncio.ensure_future(client.request("service://slow", n, timeout_s=200)) for n in range(ASKED)]
        for _ in asked:
            await begun.acquire()
        address = client._replies.address if client._replies else None
        await asyncio.to_thread(fabric.kill, "one")
        await _answered(client)  # once this is, the fabric knows the new way to the same address
        go_on.set()
        assert [reply.body for reply in await asyncio.gather(*asked)] == list(range(ASKED))
        assert client._replies is not None
        assert client._replies.address == address
        assert client.core.target is not None
        assert client.core.target.port == fabric.port("two")


async def _answered(client: weft.Fabric) -> None:
    """Ask until an answer comes: requests or replies may find no way yet."""
    while True:
        try:
            assert (await client.request("service://quick", "?", timeout_s=1)).body == "?"
        except (weft.DeadlineExceeded, weft.Undelivered, weft.Refused):
            await asyncio.sleep(0.05)
        else:
            return
