"""Dramatiq and FastStream as they come: actors that retry, wait and die; handlers behind queues, topics and headers.

Owns the path of two more frameworks that programs for RabbitMQ are written with: Dramatiq's delay queues and dead
letters by `x-dead-letter-…` over pika, FastStream's subscribers, publishers and requests over aio-pika. Everything is
named anew in each test. Rules: the frameworks' own documentation; the same tests pass on RabbitMQ.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue

Name = Callable[..., str]
WAIT_S = 30.0
# their clients leave sockets to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore")


def test_dramatiq(broker: Any, name: Name, channel: Any) -> None:
    queue = name()
    tasks = RabbitmqBroker(url=broker.url)
    done: list[object] = []
    tries: list[int] = []
    enough, failed = threading.Event(), threading.Event()

    def note(value: object) -> None:
        done.append(value)
        if len(done) == 12:
            enough.set()

    @dramatiq.actor(broker=tasks, queue_name=queue)
    def add(a: int, b: int) -> None:
        note(a + b)

    @dramatiq.actor(broker=tasks, queue_name=queue, max_retries=2, min_backoff=10, max_backoff=20)
    def third_time_lucky(number: int) -> None:
        tries.append(number)
        if len(tries) < 3:
            raise RuntimeError("again")
        note("lucky")

    @dramatiq.actor(broker=tasks, queue_name=queue, max_retries=0)
    def hopeless() -> None:
        failed.set()
        raise ValueError("dead")

    worker = dramatiq.Worker(tasks, worker_timeout=50, worker_threads=2)
    worker.start()
    try:
        for number in range(10):
            add.send(number, number)
        add.send_with_options(args=(50, 50), delay=100)
        third_time_lucky.send(7)
        hopeless.send()
        assert enough.wait(WAIT_S)
        assert failed.wait(WAIT_S)
        tasks.join(queue, timeout=int(WAIT_S * 1000))
    finally:
        worker.stop()
    assert sorted(map(str, done)) == sorted([*(str(2 * number) for number in range(10)), "100", "lucky"])
    assert tries == [7, 7, 7]
    ready, delayed, dead = tasks.get_queue_message_counts(queue)
    assert (ready, delayed, dead) == (0, 0, 1)
    tasks.close()
    for suffix in ("", ".DQ", ".XQ"):
        channel.queue_delete(queue + suffix)


async def test_faststream(broker: Any, name: Name) -> None:
    app = RabbitBroker(broker.url, logger=None)
    came: list[tuple[str, object]] = []
    enough = asyncio.Event()

    def note(kind: str, body: object) -> None:
        came.append((kind, body))
        if len(came) == 4:
            enough.set()

    start, end, asked = name(), name(), name()
    topics = RabbitExchange(name(), type=ExchangeType.TOPIC, auto_delete=True)
    headers = RabbitExchange(name(), type=ExchangeType.HEADERS, auto_delete=True)

    @app.subscriber(RabbitQueue(start, auto_delete=True))
    @app.publisher(end)
    async def first(body: str) -> str:
        note("first", body)
        return body.upper()

    @app.subscriber(RabbitQueue(end, auto_delete=True))
    async def second(body: str) -> None:
        note("second", body)

    @app.subscriber(RabbitQueue(name(), routing_key="logs.*", auto_delete=True), topics)
    async def by_topic(body: dict[str, int]) -> None:
        note("topic", body)

    wanted = {"colour": "red", "x-match": "all"}

    @app.subscriber(RabbitQueue(name(), bind_arguments=wanted, auto_delete=True), headers)
    async def by_headers(body: str) -> None:
        note("headers", body)

    @app.subscriber(RabbitQueue(asked, auto_delete=True))
    async def double(number: int) -> int:
        return number * 2

    async with app:
        await app.start()
        await app.publish("hello", start)
        await app.publish({"a": 1}, "logs.info", exchange=topics)
        await app.publish({"a": 2}, "elsewhere", exchange=topics)
        await app.publish("blue", exchange=headers, headers={"colour": "blue"})
        await app.publish("red", exchange=headers, headers={"colour": "red"})
        reply = await app.request(21, asked, timeout=WAIT_S)
        assert await reply.decode() == 42
        await asyncio.wait_for(enough.wait(), WAIT_S)
    assert sorted(came, key=str) == [("first", "hello"), ("headers", "red"), ("second", "HELLO"), ("topic", {"a": 1})]
