"""Consuming: prefetch, cancelling, exclusivity, priorities, turns, a single active consumer.

Owns who gets the next message and how many a consumer may hold. pika is the client and RabbitMQ the reference.
Settling of messages already delivered has its own file. Rules: AMQP 0-9-1 section 1.8 and RabbitMQ's pages on
prefetch (`global` means the channel), consumer priorities and single active consumers; R117 asks for round-robin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import Connect
from .support import Consumer, channel_error, publish, settle, take_all, wait_depth, wait_until

Name = Callable[..., str]
NUMBERS = [str(number).encode() for number in range(100)]


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    return str(channel.queue_declare(name("queue"), exclusive=True).method.queue)


def test_three_equal_consumers_take_turns(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    consumers = [Consumer(connection.channel(), queue, auto_ack=True) for _ in range(3)]
    publish(channel, queue, *NUMBERS[:30])
    wait_until(connection, lambda: sum(len(each.deliveries) for each in consumers) == 30)
    assert [each.bodies for each in consumers] == [NUMBERS[first:30:3] for first in range(3)]


def test_prefetch_limits_each_consumer(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    publish(channel, queue, *NUMBERS[:20])
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=3)
    first, second = Consumer(consuming, queue), Consumer(consuming, queue)
    wait_depth(channel, queue, 14)
    settle(consuming)
    assert (len(first.deliveries), len(second.deliveries)) == (3, 3)
    consuming.basic_ack(first.deliveries[0].method.delivery_tag)
    first.wait(4)
    consuming.basic_ack(first.deliveries[3].method.delivery_tag, multiple=True)
    wait_until(connection, lambda: len(first.deliveries) + len(second.deliveries) == 13)
    wait_depth(channel, queue, 7)


def test_prefetch_applies_to_consumers_made_later(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=1)
    early = Consumer(consuming, queue)
    consuming.basic_qos(prefetch_count=4)
    late = Consumer(consuming, queue)
    publish(channel, queue, *NUMBERS[:10])
    wait_depth(channel, queue, 5)
    settle(consuming)
    assert (len(early.deliveries), len(late.deliveries)) == (1, 4)


def test_global_prefetch_is_shared_by_the_channel(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=5, global_qos=True)
    consumers = [Consumer(consuming, queue), Consumer(consuming, queue)]
    publish(channel, queue, *NUMBERS[:20])
    wait_depth(channel, queue, 15)
    settle(consuming)
    assert sum(len(each.deliveries) for each in consumers) == 5
    consuming.basic_ack(0, multiple=True)
    wait_until(connection, lambda: sum(len(each.deliveries) for each in consumers) == 10)
    wait_depth(channel, queue, 10)


def test_both_prefetches_hold_at_once(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=3)
    consuming.basic_qos(prefetch_count=4, global_qos=True)
    first, second = Consumer(consuming, queue), Consumer(consuming, queue)
    publish(channel, queue, *NUMBERS[:20])
    wait_depth(channel, queue, 16)
    settle(consuming)
    assert sorted([len(first.deliveries), len(second.deliveries)]) in ([1, 3], [2, 2])


def test_global_prefetch_can_change_while_consuming(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=2, global_qos=True)
    consumer = Consumer(consuming, queue)
    publish(channel, queue, *NUMBERS[:20])
    wait_depth(channel, queue, 18)
    consuming.basic_qos(prefetch_count=6, global_qos=True)
    consumer.wait(6)
    wait_depth(channel, queue, 14)
    consuming.basic_qos(prefetch_count=0, global_qos=True)
    consumer.wait(20)


def test_no_ack_consumers_are_not_limited(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    publish(channel, queue, *NUMBERS)
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=1)
    consumer = Consumer(consuming, queue, auto_ack=True)
    consumer.wait(100)
    assert consumer.bodies == NUMBERS
    assert [each.method.delivery_tag for each in consumer.deliveries] == list(range(1, 101))
    consuming.close()
    wait_depth(channel, queue, 0)  # nothing comes back


def test_delivery_says_where_it_came_from(channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind(queue, "amq.topic", "from.#")
    consumer = Consumer(channel, queue, consumer_tag="reader")
    channel.basic_publish("amq.topic", f"from.{queue}", b"x")
    method = consumer.wait(1)[0].method
    assert (method.consumer_tag, method.delivery_tag, method.redelivered) == ("reader", 1, False)
    assert (method.exchange, method.routing_key) == ("amq.topic", f"from.{queue}")


def test_server_chooses_consumer_tags(channel: BlockingChannel, queue: str) -> None:
    tags = set()
    channel.connection.channel()
    for _ in range(3):
        tags.add(Consumer(channel, queue, consumer_tag="").tag)
    assert len(tags) == 3
    assert "" not in tags


def test_cancel_stops_deliveries_and_keeps_what_was_delivered(channel: BlockingChannel, queue: str) -> None:
    consumer = Consumer(channel, queue)
    publish(channel, queue, b"before")
    held = consumer.wait(1)[0]
    consumer.cancel()
    publish(channel, queue, b"after")
    wait_depth(channel, queue, 1)
    channel.basic_ack(held.method.delivery_tag)  # still this channel's to settle
    assert take_all(channel, queue) == [b"after"]
    assert consumer.bodies == [b"before"]


def test_exclusive_consumer_keeps_others_out(channel: BlockingChannel, connect: Connect, name: Name) -> None:
    queue = name("shared")
    channel.queue_declare(queue, auto_delete=True)
    consumer = Consumer(channel, queue, exclusive=True)
    other = connect()
    with channel_error(403, f"queue '{queue}' in vhost '/' in exclusive use"):
        other.channel().basic_consume(queue, lambda *_: None)
    publish(channel, queue, b"mine")
    assert consumer.wait(1)[0].body == b"mine"


def test_exclusive_consumption_is_refused_while_others_consume(
    channel: BlockingChannel, connect: Connect, name: Name
) -> None:
    queue = name("shared")
    channel.queue_declare(queue, auto_delete=True)
    Consumer(channel, queue)
    with channel_error(403, f"queue '{queue}' in vhost '/' in exclusive use"):
        connect().channel().basic_consume(queue, lambda *_: None, exclusive=True)


def test_get_reports_what_is_left(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    publish(channel, queue, *NUMBERS[:3])
    left = []
    for _ in range(3):
        method, _, _ = channel.basic_get(queue, auto_ack=True)
        left.append(method.message_count)
        assert (method.exchange, method.routing_key, method.redelivered) == ("", queue, False)
    assert left == [2, 1, 0]
    assert channel.basic_get(queue) == (None, None, None)


def test_higher_consumer_priority_is_served_first(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    consuming = connection.channel()
    consuming.basic_qos(prefetch_count=2)
    low = Consumer(consuming, queue, arguments={"x-priority": -5})
    normal = Consumer(consuming, queue)
    high = Consumer(consuming, queue, arguments={"x-priority": 10})
    publish(channel, queue, *NUMBERS[:3])
    wait_until(connection, lambda: len(high.deliveries) + len(normal.deliveries) + len(low.deliveries) == 3)
    assert (high.bodies, normal.bodies, low.bodies) == (NUMBERS[:2], NUMBERS[2:3], [])
    publish(channel, queue, *NUMBERS[3:6])
    wait_until(connection, lambda: len(normal.deliveries) + len(low.deliveries) == 4)
    assert (normal.bodies, low.bodies) == (NUMBERS[2:4], NUMBERS[4:6])


def test_single_active_consumer_and_its_successor(channel: BlockingChannel, connect: Connect, name: Name) -> None:
    queue = name("single")
    channel.queue_declare(queue, auto_delete=True, arguments={"x-single-active-consumer": True})
    connections = [connect() for _ in range(3)]
    first, second, third = (Consumer(each.channel(), queue) for each in connections)
    publish(channel, queue, *NUMBERS[:5])
    first.wait(5)
    first.channel.basic_ack(first.deliveries[2].method.delivery_tag, multiple=True)
    settle(first.channel)
    for waiting in (second, third):
        settle(waiting.channel)
        assert waiting.bodies == []
    connections[0].close()
    second.wait(2)
    assert second.bodies == NUMBERS[3:5]
    assert all(each.method.redelivered for each in second.deliveries)
    second.channel.basic_ack(0, multiple=True)
    second.cancel()
    publish(channel, queue, b"last")
    assert third.wait(1)[0].body == b"last"


def test_single_active_consumer_refuses_exclusive(channel: BlockingChannel, name: Name) -> None:
    queue = name("single")
    channel.queue_declare(queue, exclusive=True, arguments={"x-single-active-consumer": True})
    with channel_error(403):
        channel.basic_consume(queue, lambda *_: None, exclusive=True)


def test_the_snippet_of_the_talk(channel: BlockingChannel, name: Name) -> None:
    """Publish; bind a queue with a pattern; consume and acknowledge each message by its tag (R118)."""
    exchange, queue = name("exchange"), name("queue")
    channel.exchange_declare(exchange, "topic", auto_delete=True)
    channel.queue_declare(queue, exclusive=True)
    channel.queue_bind(queue, exchange, "prices.*")
    seen: list[bytes] = []

    def deliver(on: BlockingChannel, method: Any, _properties: pika.BasicProperties, body: bytes) -> None:
        seen.append(body)
        on.basic_ack(method.delivery_tag, multiple=False)

    channel.basic_consume(queue, deliver, auto_ack=False)
    channel.basic_publish(exchange, "prices.gold", b"1900")
    channel.basic_publish(exchange, "weather.wien", b"rain")
    channel.basic_publish(exchange, "prices.tin", b"31")
    wait_until(channel.connection, lambda: len(seen) == 2)
    assert seen == [b"1900", b"31"]
    channel.close()
    assert take_all(channel.connection.channel(), queue) == []
