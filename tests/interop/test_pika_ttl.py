"""Time limits: of a message, of all messages in a queue, of a queue itself.

Owns expiry without dead letters (which have their own file). pika is the client and RabbitMQ the reference. Waiting
here is always for the expiry itself, with a limit; a message that must live is given a limit far beyond the test.
Rules: RabbitMQ's page on time-to-live: the lower of queue and message limit counts, and messages leave at the head of
the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import Connect
from .support import Consumer, channel_error, publish, receive, take_all, wait_depth

Name = Callable[..., str]


def declare(channel: BlockingChannel, name: Name, **arguments: Any) -> str:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    return str(channel.queue_declare(name(), exclusive=True, arguments=named).method.queue)


def wait_gone(connection: pika.BlockingConnection, queue: str, unused_s: float) -> float:
    """Wait until a queue that expires after so long no longer exists; says how long it took. To look is to use it."""
    started = time.monotonic()
    while time.monotonic() - started < 10:
        try:
            with connection.channel() as channel:
                channel.queue_declare(queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            assert error.reply_code == 404
            return time.monotonic() - started
        time.sleep(unused_s + 0.1)
    pytest.fail(f"{queue} did not expire")


def test_queue_limit_expires_messages(channel: BlockingChannel, name: Name) -> None:
    queue = declare(channel, name, x_message_ttl=100)
    publish(channel, queue, b"1", b"2")
    wait_depth(channel, queue, 2)
    wait_depth(channel, queue, 0)
    assert channel.basic_get(queue) == (None, None, None)


def test_message_limit_expires_that_message(channel: BlockingChannel, name: Name) -> None:
    queue = declare(channel, name)
    publish(channel, queue, b"short", expiration="100")
    publish(channel, queue, b"long", expiration="60000")
    publish(channel, queue, b"no limit")
    wait_depth(channel, queue, 3)
    wait_depth(channel, queue, 2)
    got = receive(channel, queue, 2)
    assert [each.body for each in got] == [b"long", b"no limit"]
    assert got[0].properties.expiration == "60000"


def test_a_limit_of_more_than_ten_years_is_refused(channel: BlockingChannel, name: Name) -> None:
    queue = declare(channel, name)
    with channel_error(406, "invalid expiration"):
        publish(channel, queue, b"x", expiration="315360000001")
        channel.queue_declare(queue, passive=True)


def test_what_expired_behind_another_is_not_counted_once_that_is_taken(channel: BlockingChannel, name: Name) -> None:
    queue = declare(channel, name)
    publish(channel, queue, b"first")
    publish(channel, queue, b"short", expiration="1")
    publish(channel, queue, b"last")
    time.sleep(0.05)
    got, _, body = channel.basic_get(queue, auto_ack=True)
    assert (body, got.message_count) == (b"first", 1)


@pytest.mark.parametrize(("queue_ms", "message_ms"), [(100, "60000"), (60_000, "100")])
def test_the_lower_limit_counts(channel: BlockingChannel, name: Name, queue_ms: int, message_ms: str) -> None:
    queue = declare(channel, name, x_message_ttl=queue_ms)
    publish(channel, queue, b"x", expiration=message_ms)
    wait_depth(channel, queue, 1)
    wait_depth(channel, queue, 0)


def test_an_expired_message_is_never_delivered(channel: BlockingChannel, name: Name) -> None:
    queue = declare(channel, name)
    publish(channel, queue, b"head")
    publish(channel, queue, b"expired behind the head", expiration="1")
    publish(channel, queue, b"tail")
    channel.connection.sleep(0.05)  # lets the second message's time pass; it cannot be seen from outside
    assert take_all(channel, queue) == [b"head", b"tail"]


def test_zero_means_now_or_never(channel: BlockingChannel, name: Name) -> None:
    queue = declare(channel, name, x_message_ttl=0)
    channel.confirm_delivery()
    publish(channel, queue, b"nobody waits")
    assert take_all(channel, queue) == []
    consumer = Consumer(channel, queue, auto_ack=True)
    publish(channel, queue, b"somebody waits")
    assert consumer.wait(1)[0].body == b"somebody waits"


def test_delivered_messages_do_not_expire_until_requeued(channel: BlockingChannel, name: Name) -> None:
    queue = declare(channel, name, x_message_ttl=150)
    publish(channel, queue, b"held", b"left")
    held = receive(channel, queue, 1, auto_ack=False)[0]
    wait_depth(channel, queue, 0)
    channel.basic_nack(held.method.delivery_tag, requeue=True)  # its time was over while it was out
    assert take_all(channel, queue) == []


def test_unused_queue_expires(connect: Connect, name: Name) -> None:
    connection, queue = connect(), name()
    connection.channel().queue_declare(queue, arguments={"x-expires": 300})
    time.sleep(0.5)
    assert wait_gone(connection, queue, 0.3) < 5


def test_use_keeps_a_queue(connect: Connect, name: Name) -> None:
    connection, queue = connect(), name()
    channel = connection.channel()
    channel.queue_declare(queue, arguments={"x-expires": 800})
    consumer = Consumer(channel, queue)
    connection.sleep(1)
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 1
    consumer.cancel()
    for _ in range(4):
        connection.sleep(0.25)
        channel.basic_get(queue)  # polling is use, too
    time.sleep(0.9)
    wait_gone(connection, queue, 0.8)


def test_expiring_queue_tells_nobody_and_drops_its_messages(
    connect: Connect, channel: BlockingChannel, name: Name
) -> None:
    dead, queue = channel.queue_declare(name("dead"), exclusive=True).method.queue, name()
    arguments = {"x-expires": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    connection = connect()
    connection.channel().queue_declare(queue, arguments=arguments)
    publish(channel, queue, b"lost with the queue")
    time.sleep(0.2)
    wait_gone(connection, queue, 0.1)
    assert take_all(channel, dead) == []
