"""The client against a broker that is not ours: one client for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import weft
from rabbit import RabbitMQ
from weft.client import Message

pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.timeout(180)]


@pytest.fixture
async def fabric(rabbitmq: RabbitMQ) -> AsyncIterator[weft.Fabric]:
    async with weft.connect(f"amqp://guest:guest@{rabbitmq.host}:{rabbitmq.port}", timeout_s=20) as fabric:
        yield fabric


async def test_messages(fabric: weft.Fabric) -> None:
    await fabric.send_many("/queue/there", list(range(300)))
    await fabric.send("/queue/there", "large" * 100_000, headers={"n": 1})
    async with fabric.receive("/queue/there") as messages:
        assert [(await anext(messages)).body for _ in range(300)] == list(range(300))
        large = await anext(messages)
        assert (len(large.body), large.headers) == (500_000, {"n": 1})


async def test_decisions(fabric: weft.Fabric) -> None:
    await fabric.send("/queue/decide", "again")
    async with fabric.receive("/queue/decide", accept="explicit") as messages:
        (await anext(messages)).release()
        message = await anext(messages)
        assert message.body == "again"
        message.accept()
        assert await messages.next(0.2) is None


async def test_topics(fabric: weft.Fabric) -> None:
    async with fabric.subscribe("prices.*") as topics:
        await fabric.publish("prices.gold", 7)
        await fabric.publish("weather.rain", 8)
        assert (await anext(topics)).body == 7
        assert await topics.next(0.2) is None


async def test_requests(fabric: weft.Fabric, rabbitmq: RabbitMQ) -> None:
    async with weft.connect(f"amqp://guest:guest@{rabbitmq.host}:{rabbitmq.port}", timeout_s=20) as server:

        @server.service("/queue/echo")
        async def echo(request: Message) -> object:
            return request.body

        await echo.start()
        replies = await asyncio.gather(*(fabric.request("/queue/echo", number, timeout_s=20) for number in range(50)))
        assert [reply.body for reply in replies] == list(range(50))


async def test_a_wrong_password_is_told(rabbitmq: RabbitMQ) -> None:
    with pytest.raises(weft.Refused, match="user or password"):
        await weft.connect(f"amqp://guest:no@{rabbitmq.host}:{rabbitmq.port}").open()
