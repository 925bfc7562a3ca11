"""Terraform's and KEDA's requests to the HTTP API: by the library of the first, and by the letter of the second.

Owns the building of a Go program (`go/main.go`, into the build folder) that makes, reads and deletes every resource of
Terraform's provider for RabbitMQ with the library which that uses; and the two requests that KEDA's scaler sends.
The program is skipped where Go is not installed, or its library cannot be had.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import shutil
import subprocess
from asyncio.subprocess import PIPE
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import weft
from weft.config import parse

HERE = Path(__file__).parent / "go"
BUILD = Path(__file__).parents[2] / "build" / "interop-go"
BUILD_S = 240.0
RUN_S = 60.0

pytestmark = [pytest.mark.weft_only, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def program() -> Path:
    """The program; built once for its sources."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed (apt-get install golang-go)")
    sources = [HERE / name for name in ("go.mod", "go.sum", "main.go")]
    binary = BUILD / hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    if not binary.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        fetched = subprocess.run([go, "mod", "download"], cwd=HERE, capture_output=True, text=True, timeout=BUILD_S)
        if fetched.returncode:
            pytest.skip(f"the library rabbit-hole cannot be had: {fetched.stderr[-200:]}")
        command = [go, "build", "-o", str(binary), "."]
        built = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=BUILD_S)
        assert built.returncode == 0, built.stderr
    return binary


@pytest_asyncio.fixture
async def node() -> AsyncIterator[weft.Node]:
    async with weft.Node(configuration=parse('[http]\naddress = "127.0.0.1:0"\n')) as running:
        yield running


@pytest.mark.peers
async def test_every_resource_of_terraform_is_as_it_was_written(program: Path, node: weft.Node) -> None:
    url = f"http://127.0.0.1:{node.http_port}"
    process = await asyncio.create_subprocess_exec(str(program), url, stdout=PIPE, stderr=PIPE)
    said, complaint = await asyncio.wait_for(process.communicate(), RUN_S)
    assert process.returncode == 0, complaint.decode()
    right = set(said.decode().splitlines())
    assert right >= {"vhost", "user", "permissions", "queue", "exchange", "binding", "policy", "operator policy"}


def get(port: int, target: str) -> tuple[int, dict[str, Any]]:
    """Send a target as it is written, byte for byte."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=RUN_S)
    headers = {"Authorization": "Basic " + b64encode(b"guest:guest").decode(), "User-Agent": "Go-http-client/1.1"}
    connection.request("GET", target, headers=headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, json.loads(data)


async def test_keda_gets_the_length_and_rate_of_a_queue(node: weft.Node) -> None:
    """`queueName` without and with `useRegex`, as KEDA's RabbitMQ scaler (protocol http) writes and reads them."""
    for number in range(3):
        node.declare_queue(f"orders.{number}")
        for _ in range(number):
            await node.send(f"orders.{number}", b"x")
    node.declare_queue("other")
    status, queue = await asyncio.to_thread(get, node.http_port, "/api/queues/%2F/orders.2")
    assert (status, queue["name"]) == (200, "orders.2")
    assert (queue["messages"], queue["messages_ready"], queue["messages_unacknowledged"]) == (2, 2, 0)
    assert isinstance(queue["message_stats"]["publish_details"]["rate"], float)
    regex = "page=1&use_regex=true&pagination=false&name=%5Eorders%5C..%2A%24&page_size=100"
    status, page = await asyncio.to_thread(get, node.http_port, f"/api/queues/%2F?{regex}")
    assert (status, page["page_count"]) == (200, 1)
    assert sum(queue["messages"] for queue in page["items"]) == 3
    assert {queue["name"] for queue in page["items"]} == {"orders.0", "orders.1", "orders.2"}
    status, _ = await asyncio.to_thread(get, node.http_port, "/api/queues/%2F/nothing")
    assert status == 404
