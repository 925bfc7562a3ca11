"""Limits on what a queue holds, and which message goes first: length, bytes, overflow, priority.

Owns queue length limits with each overflow behaviour, and message priorities. pika is the client and RabbitMQ the
reference. Publishes are confirmed, so that the queue has decided before a test looks. Rules: RabbitMQ's pages on
queue length limit and priority queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .support import Consumer, publish, receive, take_all, wait_depth

Name = Callable[..., str]
NUMBERS = [str(number).encode() for number in range(10)]


def declare(channel: BlockingChannel, name: Name, **arguments: Any) -> str:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    return str(channel.queue_declare(name(), exclusive=True, arguments=named).method.queue)


@pytest.fixture
def confirmed(channel: BlockingChannel) -> BlockingChannel:
    channel.confirm_delivery()
    return channel


def test_the_oldest_go_first(confirmed: BlockingChannel, name: Name) -> None:
    queue = declare(confirmed, name, x_max_length=3)
    publish(confirmed, queue, *NUMBERS)
    assert take_all(confirmed, queue) == NUMBERS[-3:]


def test_only_ready_messages_count(confirmed: BlockingChannel, name: Name) -> None:
    queue = declare(confirmed, name, x_max_length=2)
    publish(confirmed, queue, *NUMBERS[:2])
    receive(confirmed, queue, 2, auto_ack=False)
    publish(confirmed, queue, *NUMBERS[2:5])
    wait_depth(confirmed, queue, 2)
    confirmed.basic_nack(0, multiple=True, requeue=True)  # four are ready now, two too many
    wait_depth(confirmed, queue, 2)
    assert take_all(confirmed, queue) == NUMBERS[3:5]


def test_bytes_of_bodies_are_limited(confirmed: BlockingChannel, name: Name) -> None:
    queue = declare(confirmed, name, x_max_length_bytes=100)
    publish(confirmed, queue, b"a" * 40, b"b" * 40, b"c" * 20, headers={"size": "of headers does not count" * 20})
    wait_depth(confirmed, queue, 3)
    publish(confirmed, queue, b"d" * 10)
    assert take_all(confirmed, queue) == [b"b" * 40, b"c" * 20, b"d" * 10]


def test_zero_length_keeps_nothing_but_still_delivers(confirmed: BlockingChannel, name: Name) -> None:
    queue = declare(confirmed, name, x_max_length=0)
    publish(confirmed, queue, b"dropped")
    assert take_all(confirmed, queue) == []
    consumer = Consumer(confirmed, queue, auto_ack=True)
    publish(confirmed, queue, b"handed over")
    assert consumer.wait(1)[0].body == b"handed over"


@pytest.mark.parametrize("limit", [{"x_max_length": 2}, {"x_max_length_bytes": 2}], ids=["length", "bytes"])
def test_reject_publish_refuses_the_newest(confirmed: BlockingChannel, name: Name, limit: dict[str, int]) -> None:
    queue = declare(confirmed, name, x_overflow="reject-publish", **limit)
    publish(confirmed, queue, b"1", b"2")
    for refused in (b"3", b"4"):
        with pytest.raises(pika.exceptions.NackError):
            publish(confirmed, queue, refused)
    assert take_all(confirmed, queue) == [b"1", b"2"]


def test_reject_publish_without_confirms_drops_quietly(channel: BlockingChannel, name: Name) -> None:
    queue = declare(channel, name, x_overflow="reject-publish", x_max_length=1)
    publish(channel, queue, b"1", b"2")
    assert take_all(channel, queue) == [b"1"]


def test_one_refusing_queue_makes_the_whole_publish_refused(confirmed: BlockingChannel, name: Name) -> None:
    exchange = name("fanout")
    confirmed.exchange_declare(exchange, "fanout", auto_delete=True)
    full, roomy = declare(confirmed, name, x_overflow="reject-publish", x_max_length=1), declare(confirmed, name)
    for queue in (full, roomy):
        confirmed.queue_bind(queue, exchange)
    confirmed.basic_publish(exchange, "", b"1")
    with pytest.raises(pika.exceptions.NackError):
        confirmed.basic_publish(exchange, "", b"2")
    assert take_all(confirmed, full) == [b"1"]
    assert take_all(confirmed, roomy) == [b"1", b"2"]


def test_reject_publish_dlx_buries_the_refused(confirmed: BlockingChannel, name: Name) -> None:
    dead = declare(confirmed, name)
    queue = declare(
        confirmed,
        name,
        x_overflow="reject-publish-dlx",
        x_max_length=1,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key=dead,
    )
    publish(confirmed, queue, b"1")
    with pytest.raises(pika.exceptions.NackError):
        publish(confirmed, queue, b"2")
    buried = receive(confirmed, dead, 1)[0]
    assert buried.body == b"2"
    assert buried.properties.headers["x-death"][0]["reason"] == "maxlen"
    assert take_all(confirmed, queue) == [b"1"]


def test_drop_head_is_confirmed(confirmed: BlockingChannel, name: Name) -> None:
    queue = declare(confirmed, name, x_overflow="drop-head", x_max_length=1)
    publish(confirmed, queue, b"1", b"2")  # raises if refused
    assert take_all(confirmed, queue) == [b"2"]


def test_higher_priority_goes_first(confirmed: BlockingChannel, name: Name) -> None:
    queue = declare(confirmed, name, x_max_priority=5)
    for body, priority in (
        (b"low", 1),
        (b"none", None),
        (b"high", 5),
        (b"mid", 3),
        (b"above the top", 9),
        (b"high too", 5),
    ):
        publish(confirmed, queue, body, priority=priority)
    got = receive(confirmed, queue, 6)
    assert [each.body for each in got] == [b"high", b"above the top", b"high too", b"mid", b"low", b"none"]
    assert got[1].properties.priority == 9  # capped for ordering only


def test_without_the_argument_priority_means_nothing(confirmed: BlockingChannel, name: Name) -> None:
    queue = declare(confirmed, name)
    for priority in (1, 9, 5):
        publish(confirmed, queue, str(priority).encode(), priority=priority)
    assert take_all(confirmed, queue) == [b"1", b"9", b"5"]


def test_requeued_message_keeps_its_priority(confirmed: BlockingChannel, name: Name) -> None:
    queue = declare(confirmed, name, x_max_priority=5)
    publish(confirmed, queue, b"high", priority=5)
    publish(confirmed, queue, b"low", priority=1)
    held = receive(confirmed, queue, 1, auto_ack=False)[0]
    publish(confirmed, queue, b"high later", priority=5)
    confirmed.basic_nack(held.method.delivery_tag, requeue=True)
    assert take_all(confirmed, queue) == [b"high", b"high later", b"low"]


def test_overflow_drops_the_head_whatever_its_priority(confirmed: BlockingChannel, name: Name) -> None:
    queue = declare(confirmed, name, x_max_priority=5, x_max_length=2)
    for body, priority in ((b"low", 1), (b"high", 5), (b"mid", 3)):
        publish(confirmed, queue, body, priority=priority)
    assert take_all(confirmed, queue) == [b"mid", b"low"]
