"""aio-pika, the asyncio client many services use, with its robust connections.

Owns the ways that library differs from pika on the wire: confirms on every channel by default, channels opened and
closed at a high rate, restoring a topology after a lost connection. The rules of messaging themselves are tested with
pika. Rules: aio-pika's own documentation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import aio_pika
import pytest
from aio_pika.exceptions import ChannelNotFoundEntity, DeliveryError, QueueEmpty

Name = Callable[..., str]


@pytest.fixture
async def robust(broker: Any) -> AsyncIterator[aio_pika.abc.AbstractRobustConnection]:
    async with await aio_pika.connect_robust(broker.url, reconnect_interval=0.05) as connection:
        yield connection


@pytest.fixture
async def chan(robust: aio_pika.abc.AbstractRobustConnection) -> aio_pika.abc.AbstractChannel:
    return await robust.channel()


async def test_publish_and_iterate(chan: aio_pika.abc.AbstractChannel, name: Name) -> None:
    await chan.set_qos(prefetch_count=10)
    queue = await chan.declare_queue(name(), exclusive=True)
    for number in range(100):
        await chan.default_exchange.publish(aio_pika.Message(b"%d" % number, message_id=str(number)), queue.name)
    seen = []
    async with queue.iterator() as messages:
        async for message in messages:
            async with message.process():
                seen.append(message.body)
            if len(seen) == 100:
                break
    assert seen == [b"%d" % number for number in range(100)]


async def test_many_publishes_at_once_are_all_confirmed(chan: aio_pika.abc.AbstractChannel, name: Name) -> None:
    queue = await chan.declare_queue(name(), exclusive=True)
    await asyncio.gather(*(chan.default_exchange.publish(aio_pika.Message(b"%d" % n), queue.name) for n in range(500)))
    got = {(await queue.get(no_ack=True)).body for _ in range(500)}
    assert got == {b"%d" % number for number in range(500)}


async def test_unroutable_message_raises(robust: aio_pika.abc.AbstractRobustConnection, name: Name) -> None:
    chan = await robust.channel(on_return_raises=True)
    with pytest.raises(DeliveryError):
        await chan.default_exchange.publish(aio_pika.Message(b"x"), name("nowhere"), mandatory=True)


async def test_empty_queue_raises(chan: aio_pika.abc.AbstractChannel, name: Name) -> None:
    queue = await chan.declare_queue(name(), exclusive=True)
    with pytest.raises(QueueEmpty):
        await queue.get(timeout=30)
    assert await queue.get(fail=False) is None


async def test_channel_error_leaves_the_connection(robust: aio_pika.abc.AbstractRobustConnection, name: Name) -> None:
    failing = await robust.channel()
    with pytest.raises(ChannelNotFoundEntity):
        await failing.declare_queue(name("missing"), passive=True)
    other = await robust.channel()
    assert (await other.declare_queue("", exclusive=True)).name


async def test_requeue_and_reject(chan: aio_pika.abc.AbstractChannel, name: Name) -> None:
    queue = await chan.declare_queue(name(), exclusive=True)
    await chan.default_exchange.publish(aio_pika.Message(b"x"), queue.name)
    message = await queue.get(timeout=30)
    assert message is not None
    await message.nack(requeue=True)
    message = await queue.get(timeout=30)
    assert message is not None
    assert message.redelivered
    await message.reject(requeue=False)
    assert await queue.get(fail=False) is None


async def test_transaction(robust: aio_pika.abc.AbstractRobustConnection, name: Name) -> None:
    chan = await robust.channel(publisher_confirms=False)
    queue = await chan.declare_queue(name(), exclusive=True)
    with contextlib.suppress(ZeroDivisionError):
        async with chan.transaction():
            await chan.default_exchange.publish(aio_pika.Message(b"forgotten"), queue.name)
            raise ZeroDivisionError
    async with chan.transaction():
        await chan.default_exchange.publish(aio_pika.Message(b"kept"), queue.name)
    message = await queue.get(timeout=5, no_ack=True)
    assert message is not None
    assert message.body == b"kept"


async def test_calls_and_answers(robust: aio_pika.abc.AbstractRobustConnection, name: Name) -> None:
    """The library's own RPC pattern, with its exclusive result queue and headers exchange for dead calls."""
    from aio_pika.patterns import RPC

    async with await robust.channel() as serving, await robust.channel() as asking:
        service, client = await RPC.create(serving), await RPC.create(asking)
        method = name("multiply")

        async def multiply(*, x: int, y: int) -> int:
            return x * y

        await service.register(method, multiply, auto_delete=True)
        answers = await asyncio.gather(*(client.call(method, {"x": n, "y": n}) for n in range(20)))
        assert answers == [n * n for n in range(20)]
        await client.close()
        await service.close()


class Relay:
    """A wire that can be cut: passes bytes between a client and the broker."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(self._broker.host, self._broker.port)
        self._writers += [writer, inner_writer]
        await asyncio.gather(self._copy(reader, inner_writer), self._copy(inner_reader, writer))

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"amqp://guest:guest@127.0.0.1:{self._server.sockets[0].getsockname()[1]}/%2F"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Nobody says goodbye."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


async def test_robust_connection_restores_what_it_had(broker: Any, name: Name) -> None:
    exchange_name, got = name("exchange"), asyncio.Queue[bytes]()
    relay = Relay(broker)
    async with relay as url, await aio_pika.connect_robust(url, reconnect_interval=0.05) as connection:
        chan = await connection.channel()
        exchange = await chan.declare_exchange(exchange_name, aio_pika.ExchangeType.TOPIC, auto_delete=True)
        queue = await chan.declare_queue("", exclusive=True)
        await queue.bind(exchange, "a.#")

        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            got.put_nowait(message.body)

        await queue.consume(on_message, no_ack=True)
        await exchange.publish(aio_pika.Message(b"before"), "a.b")
        assert await asyncio.wait_for(got.get(), 10) == b"before"
        restored = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: restored.set())
        relay.cut()
        await asyncio.wait_for(restored.wait(), 10)
        await exchange.publish(aio_pika.Message(b"after"), "a.b")
        assert await asyncio.wait_for(got.get(), 10) == b"after"


async def test_channels_come_and_go(robust: aio_pika.abc.AbstractRobustConnection) -> None:
    async def once() -> str:
        async with robust.channel() as chan:
            return (await chan.declare_queue("", exclusive=True)).name

    names = await asyncio.gather(*(once() for _ in range(100)))
    assert len(set(names)) == 100
