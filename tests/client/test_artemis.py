"""The client against ActiveMQ Artemis: the same calls, and nothing lost when the broker dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import weft
from artemis import Artemis
from weft.client import Message

pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.timeout(300)]  # the first run fetches the broker
COUNT = 300


@pytest.fixture
async def fabric(artemis: Artemis) -> AsyncIterator[weft.Fabric]:
    async with weft.connect(artemis.url, timeout_s=30) as fabric:
        yield fabric


async def test_messages(fabric: weft.Fabric) -> None:
    """A queue that nobody receives from yet keeps what is sent: it is told to be a queue."""
    await fabric.send_many("client.there", list(range(COUNT)))
    await fabric.send("client.there", "large" * 100_000, headers={"n": 1}, subject="s", correlation_id="c")
    async with fabric.receive("client.there", timeout_s=30) as messages:
        assert [(await anext(messages)).body for _ in range(COUNT)] == list(range(COUNT))
        large = await anext(messages)
        assert (len(large.body), large.headers, large.subject, large.correlation_id) == (500_000, {"n": 1}, "s", "c")


async def test_decisions(fabric: weft.Fabric) -> None:
    async with fabric.receive("client.decide", accept="explicit", timeout_s=30) as messages:
        await fabric.send("client.decide", "again")
        message = await anext(messages)
        message.release()
        message = await anext(messages)
        assert (message.body, message.delivery_count) == ("again", 0)
        message.retry()
        message = await anext(messages)
        assert (message.body, message.delivery_count) == ("again", 1)
        message.reject()
        await fabric.send("client.decide", "other")
        message = await anext(messages)
        assert message.body == "other"
        message.accept()


async def test_topics(fabric: weft.Fabric) -> None:
    async with fabric.subscribe("prices.*", timeout_s=30) as one, fabric.subscribe("prices.#", timeout_s=30) as two:
        await fabric.publish("weather.rain", 6)
        await fabric.publish("prices.gold", 7)
        await fabric.publish("prices.silver", 8)
        assert [(await anext(one)).body, (await anext(one)).body] == [7, 8]
        assert [(await anext(two)).body, (await anext(two)).body] == [7, 8]


async def test_requests(fabric: weft.Fabric, artemis: Artemis) -> None:
    async with weft.connect(artemis.url, timeout_s=30) as server:

        @server.service("client.echo")
        async def echo(request: Message) -> object:
            return request.body

        await echo.start()
        replies = await asyncio.gather(*(fabric.request("client.echo", n, timeout_s=30) for n in range(50)))
        assert [reply.body for reply in replies] == list(range(50))


async def test_a_transaction(fabric: weft.Fabric) -> None:
    session = fabric.session()
    sender = session.sender("client.both", capabilities=("queue",))
    undone = await session.transaction().begin()
    await undone.send(sender, b"never")
    await undone.rollback()
    async with session.transaction() as done:
        await done.send(sender, b"one", b"two")
    async with fabric.receive("client.both", timeout_s=30) as messages:
        assert [(await anext(messages)).body, (await anext(messages)).body] == [b"one", b"two"]


async def test_a_wrong_password_is_told(artemis: Artemis) -> None:
    with pytest.raises(weft.Refused, match="user or password"):
        await weft.connect(f"amqp://guest:no@{artemis.host}:{artemis.port}", timeout_s=30).open()


async def test_the_broker_dies_and_comes_back(fabric: weft.Fabric, artemis: Artemis) -> None:
    """What was confirmed arrives; sender, receiver, service and the reply address come back by themselves."""

    @fabric.service("client.after")
    async def after(request: Message) -> object:
        return request.body + 1

    await after.start()
    assert (await fabric.request("client.after", 1, timeout_s=30)).body == 2
    seen: set[int] = set()

    async def send() -> None:
        for number in range(COUNT):
            await fabric.send("client.lasting", number, timeout_s=120)
            if number == COUNT // 2:
                await asyncio.to_thread(artemis.kill)
                await asyncio.to_thread(artemis.restart)

    async with asyncio.TaskGroup() as tasks, fabric.receive("client.lasting", timeout_s=120) as messages:
        tasks.create_task(send())
        while len(seen) < COUNT:
            seen.add((await anext(messages)).body)
    assert seen == set(range(COUNT))
    assert (await fabric.request("client.after", 41, timeout_s=120)).body == 42
