"""Settling deliveries: ack, nack, reject, recover, and where a message goes back to.

Owns the promise that an unsettled message is neither lost nor out of order (R185). pika is the client and RabbitMQ
the reference. Dead letters, which rejected messages may become, have their own file. Rules: AMQP 0-9-1 section 1.8.3
and RabbitMQ's nack extension; a requeued message returns to its place when it can.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel

from .raw091 import RawConnection
from .support import Consumer, Delivery, channel_error, publish, receive, take_all, wait_depth

Name = Callable[..., str]
NUMBERS = [str(number).encode() for number in range(10)]


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    queue = str(channel.queue_declare(name("queue"), exclusive=True).method.queue)
    publish(channel, queue, *NUMBERS)
    return queue


def tags(deliveries: list[Delivery]) -> list[int]:
    return [each.method.delivery_tag for each in deliveries]


def flags(deliveries: list[Delivery]) -> dict[bytes, bool]:
    return {each.body: each.method.redelivered for each in deliveries}


def test_ack_removes_one(channel: BlockingChannel, connection: pika.BlockingConnection, queue: str) -> None:
    got = receive(channel, queue, 3, auto_ack=False)
    channel.basic_ack(tags(got)[1])
    channel.close()
    assert take_all(connection.channel(), queue) == [NUMBERS[0], *NUMBERS[2:]]


def test_ack_multiple_removes_all_up_to_the_tag(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    got = receive(channel, queue, 5, auto_ack=False)
    channel.basic_ack(tags(got)[3], multiple=True)
    channel.close()
    assert take_all(connection.channel(), queue) == NUMBERS[4:]


def test_ack_multiple_zero_means_everything(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    receive(channel, queue, 5, auto_ack=False)
    channel.basic_ack(0, multiple=True)
    channel.close()
    assert take_all(connection.channel(), queue) == NUMBERS[5:]


def test_a_tag_can_be_settled_once(channel: BlockingChannel, connection: pika.BlockingConnection, queue: str) -> None:
    got = receive(channel, queue, 1, auto_ack=False)
    channel.basic_ack(tags(got)[0])
    with channel_error(406, f"unknown delivery tag {tags(got)[0]}"):
        channel.basic_ack(tags(got)[0])
        channel.queue_declare("", exclusive=True)
    assert take_all(connection.channel(), queue) == NUMBERS[1:]


def test_tags_belong_to_their_channel(
    channel: BlockingChannel, connection: pika.BlockingConnection, queue: str
) -> None:
    receive(channel, queue, 1, auto_ack=False)
    other = connection.channel()
    with channel_error(406, "unknown delivery tag 1"):
        other.basic_ack(1)
        other.queue_declare("", exclusive=True)


@pytest.mark.parametrize("verb", ["nack", "reject"])
def test_requeued_message_goes_back_to_its_place(channel: BlockingChannel, queue: str, verb: str) -> None:
    got = receive(channel, queue, 5, auto_ack=False)
    for position in (3, 1):  # backwards on purpose: the place must not depend on the order of returning
        getattr(channel, f"basic_{verb}")(tags(got)[position], requeue=True)
    again = receive(channel, queue, 7)
    assert [each.body for each in again] == [NUMBERS[1], NUMBERS[3], *NUMBERS[5:]]
    assert [each.method.redelivered for each in again] == [True, True, False, False, False, False, False]


@pytest.mark.parametrize("verb", ["nack", "reject"])
def test_refused_message_without_requeue_is_gone(channel: BlockingChannel, queue: str, verb: str) -> None:
    got = receive(channel, queue, 2, auto_ack=False)
    getattr(channel, f"basic_{verb}")(tags(got)[0], requeue=False)
    channel.basic_nack(tags(got)[1], requeue=True)
    assert take_all(channel, queue) == NUMBERS[1:]


def test_nack_multiple(channel: BlockingChannel, queue: str) -> None:
    got = receive(channel, queue, 6, auto_ack=False)
    channel.basic_nack(tags(got)[3], multiple=True, requeue=True)
    channel.basic_nack(0, multiple=True, requeue=False)
    assert take_all(channel, queue) == [*NUMBERS[:4], *NUMBERS[6:]]


def test_recover_returns_everything_in_order(channel: BlockingChannel, queue: str) -> None:
    got = receive(channel, queue, 5, auto_ack=False)
    channel.basic_ack(tags(got)[2])
    channel.basic_recover(requeue=True)
    again = receive(channel, queue, 9)
    assert [each.body for each in again] == [*NUMBERS[:2], *NUMBERS[3:]]
    assert [each.method.redelivered for each in again] == [True] * 4 + [False] * 5


def test_recovered_messages_reach_the_consumer_again(channel: BlockingChannel, queue: str) -> None:
    channel.basic_qos(prefetch_count=2)
    consumer = Consumer(channel, queue)
    consumer.wait(2)
    channel.basic_recover(requeue=True)
    again = consumer.wait(4)[2:]
    assert [each.body for each in again] == NUMBERS[:2]
    assert all(each.method.redelivered for each in again)
    assert tags(again) == [3, 4]  # a new delivery, a new tag


def test_lost_connection_returns_messages_to_the_head(raw: RawConnection, channel: BlockingChannel, name: Name) -> None:
    queue = name("shared")
    channel.queue_declare(queue)
    publish(channel, queue, *NUMBERS)
    raw.call(1, spec.Basic.Qos(prefetch_count=4))
    raw.expect(spec.Basic.QosOk)
    raw.call(1, spec.Basic.Consume(queue=queue))
    raw.expect(spec.Basic.ConsumeOk)
    raw.expect(spec.Basic.Deliver)
    raw.call(1, spec.Basic.Ack(delivery_tag=1))
    wait_depth(channel, queue, 5)
    raw.socket.close()
    wait_depth(channel, queue, 9)
    again = receive(channel, queue, 9)
    assert [each.body for each in again] == NUMBERS[1:]
    assert flags(again) == {body: body in NUMBERS[1:5] for body in NUMBERS[1:]}
    channel.queue_delete(queue)


TAKER = """
import sys, pika
port, queue = sys.argv[1:]
channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(port), heartbeat=0)).channel()
for number in range(2):
    method, _, _ = channel.basic_get(queue)
    if number == 0:
        channel.basic_ack(method.delivery_tag)
channel.queue_declare(queue, passive=True)
print("has two, acknowledged one", flush=True)
sys.stdin.read()
"""


@pytest.mark.weft_only
def test_a_killed_consumer_keeps_what_it_acknowledged(broker: Any, channel: BlockingChannel, name: Name) -> None:
    queue = name("shared")
    channel.queue_declare(queue)
    publish(channel, queue, b"acknowledged", b"not")
    command = [sys.executable, "-c", TAKER, str(broker.port), queue]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as taker:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "has two, acknowledged one\n"
        assert channel.queue_declare(queue, passive=True).method.message_count == 0
        taker.kill()
    wait_depth(channel, queue, 1)
    (again,) = receive(channel, queue, 1)
    assert (again.body, again.method.redelivered) == (b"not", True)
    channel.queue_delete(queue)


def test_requeue_to_another_consumer(channel: BlockingChannel, connection: pika.BlockingConnection, queue: str) -> None:
    refusing, taking = connection.channel(), connection.channel()
    refusing.basic_qos(prefetch_count=10)
    first = Consumer(refusing, queue)
    first.wait(10)
    second = Consumer(taking, queue)
    first.cancel()
    refusing.basic_nack(0, multiple=True, requeue=True)
    second.wait(10)
    assert second.bodies == NUMBERS
    assert all(each.method.redelivered for each in second.deliveries)


def test_unacknowledged_messages_are_not_ready(channel: BlockingChannel, queue: str) -> None:
    receive(channel, queue, 4, auto_ack=False)
    wait_depth(channel, queue, 6)
    channel.basic_nack(0, multiple=True)
    wait_depth(channel, queue, 10)
