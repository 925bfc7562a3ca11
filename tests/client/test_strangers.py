"""What strangers send: a service goes on with the next request, and who watches it with the next note."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import weft
from interop.proton10 import Client10
from weft.client.codecs import Encoded
from weft.client.service import presence
from weft.model.services import presence_topic

NO_MESSAGES = (
    b"\x00\x53\x73\xc0\x03\x01\x53\x75\x00\x53\x75\xa0\x01x",  # properties that are none
    b"\x00\x53\x73\xc0\x05\x01\xa1\x02\xff\xfe\x00\x53\x75\xa0\x01x",  # an id that is no UTF-8
    b"\x00\x53\x77\xff",  # a value of no type
)
STRANGE_NOTES = (
    Encoded(b"x", "text/plain; charset=nope"),
    Encoded(b"[" * 100_000, "application/json"),
    Encoded(b'{"instance": "i", "state": "up", "every_s": 1' + b"0" * 400 + b"}", "application/json"),
)


def send_all(port: int, *addresses: str) -> None:
    with Client10(SimpleNamespace(host="127.0.0.1", port=port)) as client:
        for address in addresses:
            link = client.sender(address)
            for payload in NO_MESSAGES:
                client.send(link, payload)


async def test_a_service_goes_on_after_what_is_no_request(node: weft.Node, fabric: weft.Fabric) -> None:
    @fabric.service("echo", concurrency=2)
    async def echo(message: weft.client.Message) -> str:
        return str(message.body)

    await echo.start()
    asked = f"/exchanges/amq.topic/{presence_topic('echo', 'ask')}"
    await asyncio.to_thread(send_all, node.ports[0], "/queues/echo", asked)
    reply = await fabric.request("echo", "still here", timeout_s=30)
    assert reply.body == "still here"
    async with asyncio.timeout(30):
        while await presence(fabric, "echo", 0.3) != [fabric.name]:
            pass
        while node._running.engine.queue_stats("/", "echo")[:2] != (0, 0):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_whoever_watches_goes_on_after_strange_notes(fabric: weft.Fabric) -> None:
    @fabric.service("echo")
    async def echo(message: weft.client.Message) -> str:
        return str(message.body)

    async with asyncio.timeout(30):
        watched = aiter(fabric.watch("echo"))
        first = asyncio.ensure_future(anext(watched))
        await echo.start()
        assert await first == (fabric.name, "up")
        for note in STRANGE_NOTES:
            await fabric.publish(presence_topic("echo"), note, durable=False)
        await echo.stop()
        assert await anext(watched) == (fabric.name, "down")
        await watched.aclose()
