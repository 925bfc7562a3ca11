"""Numbers: a thousand queues, wide fan-out, long bursts, many connections, all of it in seconds.

Owns the sizes an ordinary application reaches, to catch anything that grows worse than it should; real load is the
benchmarks' business. pika is the client and RabbitMQ the reference. Each test states a count and must get exactly
that count back.
"""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import Connect
from .support import Consumer, publish, receive, take_all, wait_depth

Name = Callable[..., str]


def test_a_thousand_queues(channel: BlockingChannel, name: Name) -> None:
    queues = [channel.queue_declare(name(), exclusive=True).method.queue for _ in range(1000)]
    for queue in queues:
        publish(channel, queue, queue.encode())
    assert [receive(channel, queue, 1)[0].body for queue in queues] == [queue.encode() for queue in queues]


def test_fan_out_to_two_hundred_queues(channel: BlockingChannel, name: Name) -> None:
    exchange = name("fanout")
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(200)]
    for queue in queues:
        channel.queue_bind(queue, exchange)
    bodies = [b"1" * 1000, b"2" * 1000, b"3" * 1000]
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish(exchange, "", body)
    assert all(take_all(channel, queue) == bodies for queue in queues)


def test_a_thousand_bindings_on_one_topic_exchange(channel: BlockingChannel, name: Name) -> None:
    exchange = name("topic")
    channel.exchange_declare(exchange, "topic", auto_delete=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    for number in range(1000):
        channel.queue_bind(queue, exchange, f"sensor.*.{number}.#")
    channel.confirm_delivery()
    for number in (0, 500, 999, 1000):
        channel.basic_publish(exchange, f"sensor.wien.{number}.celsius", str(number).encode())
    assert take_all(channel, queue) == [b"0", b"500", b"999"]


def test_twenty_thousand_messages_in_order(
    channel: BlockingChannel, connection: pika.BlockingConnection, name: Name
) -> None:
    queue = channel.queue_declare(name(), exclusive=True).method.queue
    bodies = [b"%d" % number for number in range(20_000)]
    publish(channel, queue, *bodies)
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=500)
    seen: list[bytes] = []

    def on_message(
        on: BlockingChannel, method: pika.spec.Basic.Deliver, _properties: pika.BasicProperties, body: bytes
    ) -> None:
        seen.append(body)
        if len(seen) % 250 == 0:
            on.basic_ack(method.delivery_tag, multiple=True)
        if len(seen) == len(bodies):
            on.stop_consuming()

    consuming.basic_consume(queue, on_message)
    consuming.start_consuming()
    assert seen == bodies
    wait_depth(channel, queue, 0)


def test_a_hundred_connections(connect: Connect, channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name(), auto_delete=True).method.queue
    others = [connect().channel() for _ in range(100)]
    consumer = Consumer(channel, queue, auto_ack=True)
    for number, other in enumerate(others):
        publish(other, queue, b"%d" % number)
    consumer.wait(100)
    assert sorted(consumer.bodies) == sorted(b"%d" % number for number in range(100))


@pytest.mark.parametrize("count", [300])
def test_short_lived_connections(connect: Connect, channel: BlockingChannel, name: Name, count: int) -> None:
    queue = channel.queue_declare(name(), auto_delete=True).method.queue
    consumer = Consumer(channel, queue, auto_ack=True)
    for number in range(count):
        connection = connect()
        publish(connection.channel(), queue, b"%d" % number)
        connection.close()
    consumer.wait(count)
    assert consumer.bodies == [b"%d" % number for number in range(count)]
