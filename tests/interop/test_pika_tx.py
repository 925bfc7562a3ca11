"""Local transactions of AMQP 0-9-1: publishes and acknowledgements that happen together or not at all.

Owns tx.select, tx.commit and tx.rollback (R132). pika is the client and RabbitMQ the reference. A channel is
transactional for good, and nothing it does is seen by others before the commit. Rules: AMQP 0-9-1 section 1.9 and
RabbitMQ's page on its semantics: an ack counts as done for the channel at once but reaches the queue at the commit.
"""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .support import channel_error, publish, receive, take_all, wait_depth

Name = Callable[..., str]


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    return str(channel.queue_declare(name("queue"), exclusive=True).method.queue)


@pytest.fixture
def transaction(connection: pika.BlockingConnection) -> BlockingChannel:
    channel = connection.channel()
    channel.tx_select()
    return channel


def test_publishes_appear_at_commit(channel: BlockingChannel, transaction: BlockingChannel, queue: str) -> None:
    publish(transaction, queue, b"1", b"2")
    transaction.flow(True)
    assert channel.basic_get(queue) == (None, None, None)
    transaction.tx_commit()
    assert take_all(channel, queue) == [b"1", b"2"]


def test_rollback_forgets_publishes(channel: BlockingChannel, transaction: BlockingChannel, queue: str) -> None:
    publish(transaction, queue, b"forgotten")
    transaction.tx_rollback()
    publish(transaction, queue, b"kept")
    transaction.tx_commit()
    assert take_all(channel, queue) == [b"kept"]


def test_closing_without_commit_forgets(channel: BlockingChannel, transaction: BlockingChannel, queue: str) -> None:
    publish(transaction, queue, b"forgotten")
    transaction.close()
    assert take_all(channel, queue) == []


def test_two_queues_in_one_transaction(
    channel: BlockingChannel, transaction: BlockingChannel, name: Name, queue: str
) -> None:
    second = channel.queue_declare(name("second"), exclusive=True).method.queue
    publish(transaction, queue, b"first")
    publish(transaction, second, b"second")
    transaction.flow(True)
    assert channel.basic_get(queue) == channel.basic_get(second) == (None, None, None)
    transaction.tx_commit()
    assert (take_all(channel, queue), take_all(channel, second)) == ([b"first"], [b"second"])


def test_acks_take_effect_at_commit(
    channel: BlockingChannel, connection: pika.BlockingConnection, transaction: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"1", b"2", b"3")
    got = receive(transaction, queue, 3, auto_ack=False)
    transaction.basic_ack(got[0].method.delivery_tag)
    transaction.tx_commit()
    transaction.basic_ack(got[1].method.delivery_tag)
    transaction.close()  # the second ack was never committed
    assert take_all(connection.channel(), queue) == [b"2", b"3"]


def test_rolled_back_acks_can_be_given_again(
    channel: BlockingChannel, transaction: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, b"1")
    got = receive(transaction, queue, 1, auto_ack=False)
    transaction.basic_ack(got[0].method.delivery_tag)
    transaction.tx_rollback()
    wait_depth(channel, queue, 0)  # a rollback does not return messages to the queue
    transaction.basic_nack(got[0].method.delivery_tag, requeue=True)
    transaction.tx_commit()
    assert take_all(channel, queue) == [b"1"]


def test_nacks_take_effect_at_commit(channel: BlockingChannel, transaction: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"1", b"2")
    got = receive(transaction, queue, 2, auto_ack=False)
    transaction.basic_nack(got[0].method.delivery_tag, requeue=True)
    transaction.basic_reject(got[1].method.delivery_tag, requeue=False)
    transaction.flow(True)
    assert channel.basic_get(queue) == (None, None, None)
    transaction.tx_commit()
    assert take_all(channel, queue) == [b"1"]


def test_move_between_queues(channel: BlockingChannel, transaction: BlockingChannel, name: Name, queue: str) -> None:
    target = channel.queue_declare(name("target"), exclusive=True).method.queue
    publish(channel, queue, b"moving")
    got = receive(transaction, queue, 1, auto_ack=False)
    publish(transaction, target, got[0].body)
    transaction.basic_ack(got[0].method.delivery_tag)
    transaction.tx_commit()
    assert (take_all(channel, queue), take_all(channel, target)) == ([], [b"moving"])


def test_returns_come_with_the_commit(transaction: BlockingChannel, name: Name) -> None:
    returned: list[bytes] = []
    transaction.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    transaction.basic_publish("", name("nowhere"), b"back", mandatory=True)
    transaction.tx_commit()
    transaction.connection.process_data_events(time_limit=0)
    assert returned == [b"back"]


def test_unknown_exchange_is_noticed_at_once(transaction: BlockingChannel, name: Name) -> None:
    with channel_error(404, "no exchange"):
        transaction.basic_publish(name("missing"), "key", b"x")
        transaction.tx_commit()


def test_select_twice_and_empty_commits_are_fine(transaction: BlockingChannel) -> None:
    transaction.tx_select()
    transaction.tx_commit()
    transaction.tx_rollback()
    transaction.tx_commit()
