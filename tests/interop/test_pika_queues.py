"""Queues: declaring, checking, locking, emptying, deleting.

Owns the life of queues as a client sees it; what is in them is the business of other files. pika is the client and
RabbitMQ the reference. Server-named queues and exclusive ones die with their connection, others are deleted by their
test. Rules: AMQP 0-9-1 section 1.7 and RabbitMQ's page on queues (property equivalence, exclusivity).
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


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    return str(channel.queue_declare(name("queue"), exclusive=True).method.queue)


def test_declare_reports_messages_and_consumers(channel: BlockingChannel, name: Name) -> None:
    queue = name()
    answer = channel.queue_declare(queue, exclusive=True).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 0, 0)
    publish(channel, queue, b"1", b"2", b"3")
    wait_depth(channel, queue, 3)
    channel.basic_qos(prefetch_count=1)
    consumer = Consumer(channel, queue)
    consumer.wait(1)
    answer = channel.queue_declare(queue, exclusive=True).method
    assert (answer.message_count, answer.consumer_count) == (2, 1)  # the delivered one is not ready


def test_server_chooses_names(channel: BlockingChannel) -> None:
    names = {channel.queue_declare("", exclusive=True).method.queue for _ in range(10)}
    assert len(names) == 10
    assert all(name.startswith("amq.gen-") for name in names)


def test_empty_name_means_the_queue_declared_last(channel: BlockingChannel, name: Name) -> None:
    channel.queue_declare(name("earlier"), exclusive=True)
    last = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.direct", last + ".key")
    channel.basic_publish("amq.direct", last + ".key", b"hello")
    assert channel.basic_get("", auto_ack=True)[2] == b"hello"
    assert channel.queue_purge("").method.message_count == 0


def test_bind_without_key_to_the_last_queue_uses_its_name(channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind("", "amq.direct", "")
    channel.basic_publish("amq.direct", queue, b"by name")
    channel.basic_publish("amq.direct", "", b"by empty key")
    assert take_all(channel, queue) == [b"by name"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"durable": True}, "durable"),
        ({"auto_delete": True}, "auto_delete"),
        ({"arguments": {"x-message-ttl": 1000}}, "x-message-ttl"),
        ({"arguments": {"x-max-length": 5}}, "x-max-length"),
        ({"arguments": {"x-dead-letter-exchange": "amq.fanout"}}, "x-dead-letter-exchange"),
        ({"arguments": {"x-max-priority": 4}}, "x-max-priority"),
    ],
    ids=["durable", "auto-delete", "ttl", "max-length", "dead-letter", "priority"],
)
def test_declaring_something_else_under_the_name_is_refused(
    channel: BlockingChannel, connection: pika.BlockingConnection, name: Name, change: dict[str, Any], field: str
) -> None:
    queue = name()
    channel.queue_declare(queue)
    with channel_error(406, f"inequivalent arg '{field}' for queue '{queue}' in vhost '/'"):
        channel.queue_declare(queue, **change)
    connection.channel().queue_declare(queue)
    connection.channel().queue_delete(queue)


def test_inequivalent_argument_says_both_values(channel: BlockingChannel, name: Name) -> None:
    queue = name()
    channel.queue_declare(queue, exclusive=True, arguments={"x-message-ttl": 1000})
    with channel_error(406, "received '2000' but current is '1000'"):
        channel.queue_declare(queue, exclusive=True, arguments={"x-message-ttl": 2000})


def test_arguments_of_another_integer_width_are_equivalent(channel: BlockingChannel, name: Name) -> None:
    queue = name()
    channel.queue_declare(queue, exclusive=True, arguments={"x-message-ttl": 60_000})
    channel.queue_declare(queue, exclusive=True, arguments={"x-message-ttl": pika.compat.long(60_000)})


def test_unknown_arguments_are_ignored(channel: BlockingChannel, name: Name) -> None:
    queue = name()
    channel.queue_declare(queue, exclusive=True, arguments={"x-colour": "blue", "note": 1})
    channel.queue_declare(queue, exclusive=True, arguments={"x-colour": "red"})


def test_passive_declare_of_a_missing_queue(channel: BlockingChannel, name: Name) -> None:
    missing = name()
    with channel_error(404, f"no queue '{missing}' in vhost '/'"):
        channel.queue_declare(missing, passive=True)


OTHERS: dict[str, Callable[[BlockingChannel, str], Any]] = {
    "declare": lambda channel, queue: channel.queue_declare(queue, exclusive=True),
    "passive": lambda channel, queue: channel.queue_declare(queue, passive=True),
    "get": lambda channel, queue: channel.basic_get(queue),
    "consume": lambda channel, queue: channel.basic_consume(queue, lambda *_: None),
    "bind": lambda channel, queue: channel.queue_bind(queue, "amq.direct", "key"),
    "purge": lambda channel, queue: channel.queue_purge(queue),
    "delete": lambda channel, queue: channel.queue_delete(queue),
}


@pytest.mark.parametrize("action", OTHERS.values(), ids=OTHERS.keys())
def test_exclusive_queue_is_locked_for_others(
    connect: Connect, queue: str, action: Callable[[BlockingChannel, str], Any]
) -> None:
    with channel_error(405, f"cannot obtain exclusive access to locked queue '{queue}' in vhost '/'"):
        action(connect().channel(), queue)


def test_others_may_publish_to_an_exclusive_queue(channel: BlockingChannel, connect: Connect, queue: str) -> None:
    other = connect().channel()
    other.confirm_delivery()
    publish(other, queue, b"from outside")
    assert take_all(channel, queue) == [b"from outside"]


def test_exclusive_queue_ends_with_its_connection_not_its_channel(connect: Connect, name: Name) -> None:
    queue, owner = name(), connect()
    owner.channel().queue_declare(queue, exclusive=True)
    owner.channel().close()
    assert owner.channel().queue_declare(queue, passive=True).method.queue == queue
    owner.close()
    with channel_error(404):
        connect().channel().queue_declare(queue, passive=True)


def test_auto_delete_queue_goes_with_its_last_consumer(channel: BlockingChannel, name: Name) -> None:
    queue = name()
    channel.queue_declare(queue, auto_delete=True)
    first, second = Consumer(channel, queue), Consumer(channel, queue)
    first.cancel()
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 1
    second.cancel()
    with channel_error(404):
        channel.queue_declare(queue, passive=True)


def test_auto_delete_queue_never_consumed_stays(connect: Connect, name: Name) -> None:
    queue = name()
    first = connect()
    first.channel().queue_declare(queue, auto_delete=True)
    first.close()
    channel = connect().channel()
    assert channel.queue_declare(queue, passive=True).method.queue == queue
    channel.queue_delete(queue)


def test_auto_delete_queue_goes_with_the_consumers_channel(connection: pika.BlockingConnection, name: Name) -> None:
    queue, consuming = name(), connection.channel()
    consuming.queue_declare(queue, auto_delete=True)
    Consumer(consuming, queue)
    consuming.close()
    with channel_error(404):
        connection.channel().queue_declare(queue, passive=True)


def test_purge_removes_ready_messages_only(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"held", b"2", b"3")
    method, _, _ = channel.basic_get(queue)
    assert channel.queue_purge(queue).method.message_count == 2
    wait_depth(channel, queue, 0)
    channel.basic_nack(method.delivery_tag)
    assert take_all(channel, queue) == [b"held"]


def test_delete_reports_how_many_messages_went(channel: BlockingChannel, name: Name) -> None:
    queue = name()
    channel.queue_declare(queue)
    publish(channel, queue, b"1", b"2")
    assert channel.queue_delete(queue).method.message_count == 2
    assert channel.queue_delete(queue).method.message_count == 0  # gone already: no error


def test_delete_if_empty(channel: BlockingChannel, connection: pika.BlockingConnection, queue: str) -> None:
    publish(channel, queue, b"1")
    with channel_error(406, f"queue '{queue}' in vhost '/' not empty"):
        channel.queue_delete(queue, if_empty=True)
    other = connection.channel()
    other.queue_purge(queue)
    other.queue_delete(queue, if_empty=True)


def test_delete_if_unused(channel: BlockingChannel, connection: pika.BlockingConnection, queue: str) -> None:
    consumer = Consumer(channel, queue)
    with channel_error(406, f"queue '{queue}' in vhost '/' in use"):
        connection.channel().queue_delete(queue, if_unused=True)
    consumer.cancel()
    connection.channel().queue_delete(queue, if_unused=True)


def test_deleting_a_queue_cancels_its_consumers(
    channel: BlockingChannel, connection: pika.BlockingConnection, name: Name
) -> None:
    queue = name()
    channel.queue_declare(queue)
    consumer = Consumer(channel, queue)
    connection.channel().queue_delete(queue)
    wait_until(connection, lambda: consumer.cancelled_by_broker)
    assert channel.is_open


def test_deleting_a_queue_removes_its_bindings(channel: BlockingChannel, name: Name) -> None:
    queue = name()
    channel.queue_declare(queue)
    channel.queue_bind(queue, "amq.direct", queue)
    channel.queue_delete(queue)
    channel.queue_declare(queue)
    channel.basic_publish("amq.direct", queue, b"unseen")
    settle(channel)
    assert take_all(channel, queue) == []
    channel.queue_delete(queue)


def test_binding_twice_is_one_binding(channel: BlockingChannel, queue: str) -> None:
    for _ in range(3):
        channel.queue_bind(queue, "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"once")
    assert take_all(channel, queue) == [b"once"]
    channel.queue_unbind(queue, "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"never")
    assert take_all(channel, queue) == []


def test_names_may_be_long_and_in_any_language(channel: BlockingChannel) -> None:
    for queue in ("q" * 255, "очередь", "队列/имя:?#[]@!$&'()*+,;= ", "ü" * 127):
        assert channel.queue_declare(queue, exclusive=True).method.queue == queue
        publish(channel, queue, b"here")
        assert take_all(channel, queue) == [b"here"]
