"""W3C trace context is unchanged, whatever protocols it is written and read by, and through a hop between nodes."""

from __future__ import annotations

import asyncio

import aio_pika
import pytest

import weft
from unit.network.fabric import Nodes, flowing, until

CONTEXT = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
}


async def send_091(url: str) -> None:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.default_exchange.publish(aio_pika.Message(b"x", headers=dict(CONTEXT)), routing_key="requests")


async def send_10(url: str) -> None:
    async with weft.connect(url) as fabric:
        await fabric.send("requests", b"x", headers=dict(CONTEXT))


async def read_091(url: str) -> dict[str, object]:
    connection = await aio_pika.connect(url)
    async with connection:
        queue = await (await connection.channel()).get_queue("work")
        async with queue.iterator() as messages:
            message = await anext(aiter(messages))
            await message.ack()
            return dict(message.headers)


async def read_10(url: str) -> dict[str, object]:
    async with weft.connect(url) as fabric:
        async for message in fabric.receive("work"):
            return message.headers
    raise AssertionError("nothing came")


@pytest.mark.parametrize("send", [send_091, send_10])
@pytest.mark.parametrize("read", [read_091, read_10])
async def test_trace_context_passes_a_hop_unchanged(send, read) -> None:
    async with Nodes() as fabric, asyncio.timeout(30):
        gateway, remote = await fabric.add("gateway"), await fabric.add("remote")
        gateway.declare_queue("requests")
        remote.declare_queue("work")
        fabric.link("remote", "gateway")
        remote.add_route("up", "queue", key="work", queue="requests")
        await until(lambda: flowing(remote))
        await send(fabric.url("gateway").replace("amqp://", "amqp://guest:guest@"))
        headers = await read(fabric.url("remote").replace("amqp://", "amqp://guest:guest@"))
        assert {key: headers.get(key) for key in CONTEXT} == CONTEXT
