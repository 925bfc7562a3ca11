"""Small words the pika tests are written in: publish, receive, depth, expect an error.

Owns nothing on the broker; each function works on a channel the test opened. Everything waits for an event with a
limit, never for time to pass. It must stay free of judgement about any one feature: what is right is said in the
tests. pika's blocking adapter is the client.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pika
import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

WAIT_S = 30.0
SHARED_QUEUE_EXPIRES_MS = 60_000


class Delivery(NamedTuple):
    """One message as a consumer saw it."""

    method: Any
    properties: spec.BasicProperties
    body: bytes


class Consumer:
    """A consumer that keeps what it gets. Nothing is acknowledged unless the test does it."""

    def __init__(self, channel: BlockingChannel, queue: str, *, auto_ack: bool = False, **options: Any) -> None:
        self.channel = channel
        self.deliveries: list[Delivery] = []
        self.cancelled_by_broker = False
        channel.add_on_cancel_callback(self._on_cancel)
        self.tag: str = channel.basic_consume(queue, self._on_message, auto_ack=auto_ack, **options)

    def _on_message(
        self, _channel: BlockingChannel, method: Any, properties: spec.BasicProperties, body: bytes
    ) -> None:
        self.deliveries.append(Delivery(method, properties, body))

    def _on_cancel(self, frame: Any) -> None:
        if frame.method.consumer_tag == self.tag:
            self.cancelled_by_broker = True

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]

    def wait(self, count: int, timeout_s: float = WAIT_S) -> list[Delivery]:
        """Wait until `count` deliveries have come in all."""
        wait_until(self.channel.connection, lambda: len(self.deliveries) >= count, timeout_s)
        return self.deliveries

    def cancel(self) -> None:
        self.channel.basic_cancel(self.tag)


def wait_until(connection: pika.BlockingConnection, met: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Handle whatever arrives on this connection until the condition is met."""
    deadline = time.monotonic() + timeout_s
    while not met():
        left_s = deadline - time.monotonic()
        assert left_s > 0, "the expected event did not come"
        connection.process_data_events(time_limit=min(left_s, 0.2))


def settle(channel: BlockingChannel) -> None:
    """A round trip on this channel: everything the broker sent on it before has arrived and been handled."""
    channel.flow(True)
    channel.connection.process_data_events(time_limit=0)


def shared_queue(channel: BlockingChannel, name: str, **arguments: Any) -> str:
    """A queue that other connections may use as well; it goes by itself some time after the test."""
    named = {key.replace("_", "-"): value for key, value in arguments.items()} | {"x-expires": SHARED_QUEUE_EXPIRES_MS}
    return str(channel.queue_declare(name, arguments=named).method.queue)


def publish(channel: BlockingChannel, queue: str, *bodies: bytes, **properties: Any) -> None:
    """Publish to a queue by its name, through the default exchange."""
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def receive(channel: BlockingChannel, queue: str, count: int, *, auto_ack: bool = True) -> list[Delivery]:
    """Exactly `count` messages, waiting for them; the rest stays in the queue."""
    got: list[Delivery] = []
    deadline = time.monotonic() + WAIT_S
    while len(got) < count:
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        if method is not None:
            got.append(Delivery(method, properties, body))
            continue
        assert time.monotonic() < deadline, f"{len(got)} of {count} messages came"
        channel.connection.process_data_events(time_limit=0.01)
    return got


def take_all(channel: BlockingChannel, queue: str) -> list[bytes]:
    """What is in the queue now, oldest first."""
    bodies = []
    while (found := channel.basic_get(queue, auto_ack=True))[0] is not None:
        bodies.append(found[2])
    return bodies


def depth(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def wait_depth(channel: BlockingChannel, queue: str, count: int) -> None:
    """Wait for a count of ready messages: a count may be answered before the channel's earlier messages are in."""
    deadline = time.monotonic() + WAIT_S
    while (now := depth(channel, queue)) != count:
        assert time.monotonic() < deadline, f"{now} messages ready in {queue}, expected {count}"
        channel.connection.process_data_events(time_limit=0.02)


@contextlib.contextmanager
def channel_error(code: int, text: str = "") -> Iterator[None]:
    """The block must end in a channel error with this code; the text must hold these words."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        yield
    assert caught.value.reply_code == code, caught.value
    assert text in caught.value.reply_text


@contextlib.contextmanager
def connection_error(code: int, text: str = "") -> Iterator[None]:
    with pytest.raises(ConnectionClosedByBroker) as caught:
        yield
    assert caught.value.reply_code == code, caught.value
    assert text in caught.value.reply_text
