"""Transactions and kills: after the node died, all of a transaction is there or none of it.

Owns the instant between the parts of a commit. A client commits one transaction after another over two queues until
the node is killed under it; the next process must hold both halves of each, and every one that was answered. Both
protocols. Rules: docs/guides/durability.md, "Transactions"; AMQP 1.0 part 4.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from interop.proton10 import Client10, data
from interop.support import depth, receive, wait_depth
from interop.test_proton_transactions import Coordinator, accept_in

from .living import PERSISTENT, LivingNode, get_all, publish_stored

KILLS = 3
PARTS = 20  # messages of one transaction in each queue


def commit_091(node: LivingNode, first: int, done: Callable[[int], None]) -> None:
    channel = node.channel()
    channel.tx_select()
    for number in range(first, 1 << 30):
        for part in range(PARTS):
            for queue in ("left", "right"):
                channel.basic_publish("", queue, b"%d.%d" % (number, part), PERSISTENT)
        channel.tx_commit()
        done(number)


def commit_10(node: LivingNode, first: int, done: Callable[[int], None]) -> None:
    client = node.client10()
    coordinator = Coordinator(client)
    senders = [client.sender(queue) for queue in ("left", "right")]
    for number in range(first, 1 << 30):
        transaction = coordinator.declare()
        sent = [
            client.start_send(sender, data(b"%d.%d" % (number, part), durable=True), transaction=transaction)
            for part in range(PARTS)
            for sender in senders
        ]
        coordinator.commit(transaction)
        for delivery in sent:
            delivery.settle()
        done(number)


@pytest.mark.parametrize("commit", [commit_091, commit_10], ids=["0-9-1", "1.0"])
def test_all_of_a_transaction_or_none(node: LivingNode, commit: Callable[..., None]) -> None:
    channel = node.channel()
    for queue in ("left", "right"):
        channel.queue_declare(queue, durable=True)
    dice, committed = random.Random(7), [0]

    def done(number: int) -> None:
        committed[0] = number

    for _ in range(KILLS):
        node.kill_under({"client": partial(commit, node, committed[0] + 2, done)}, dice.uniform(0.2, 1.0))
        node.start()
    left, right = ([each.body for each in get_all(node.channel(), queue)] for queue in ("left", "right"))
    assert left == right
    assert committed[0] > KILLS, "hardly anything was committed"
    numbers = [tuple(map(int, body.split(b"."))) for body in left]
    whole = sorted({number for number, _ in numbers})
    assert numbers == [(number, part) for number in whole for part in range(PARTS)], "half a transaction"
    assert committed[0] in whole


def test_an_acknowledgement_and_what_it_led_to_are_one(node: LivingNode) -> None:
    channel = node.channel()
    for queue in ("from", "to"):
        channel.queue_declare(queue, durable=True)
    publish_stored(node, "from", [b"task"])
    channel.tx_select()
    (task,) = receive(channel, "from", 1, auto_ack=False)
    channel.basic_publish("", "to", b"result", PERSISTENT)
    channel.basic_ack(task.method.delivery_tag)
    channel.tx_commit()
    node.restart(kill=True)
    channel = node.channel()
    assert depth(channel, "from") == 0
    assert [each.body for each in get_all(channel, "to")] == [b"result"]


def test_the_same_with_1_0(node: LivingNode) -> None:
    channel = node.channel()
    for queue in ("from", "to"):
        channel.queue_declare(queue, durable=True)
    publish_stored(node, "from", [b"task"])
    client = node.client10()
    coordinator = Coordinator(client)
    delivery, _ = client.receive(client.receiver("from", credit=1))
    transaction = coordinator.declare()
    accept_in(client, transaction, delivery)
    client.start_send(client.sender("to"), data(b"result", durable=True), transaction=transaction)
    coordinator.commit(transaction)
    node.restart(kill=True)
    channel = node.channel()
    assert depth(channel, "from") == 0
    assert [each.body for each in get_all(channel, "to")] == [b"result"]


def test_what_was_not_committed_never_was(node: LivingNode) -> None:
    channel = node.channel()
    channel.queue_declare("q", durable=True)
    publish_stored(node, "q", [b"there"])
    channel.tx_select()
    (there,) = receive(channel, "q", 1, auto_ack=False)
    channel.basic_ack(there.method.delivery_tag)
    channel.basic_publish("", "q", b"uncommitted", PERSISTENT)
    client = node.client10()
    send_uncommitted(client)
    publish_stored(node, "q", [b"later"])
    node.restart(kill=True)
    channel = node.channel()
    wait_depth(channel, "q", 2)
    assert [each.body for each in get_all(channel, "q")] == [b"there", b"later"]


def send_uncommitted(client: Client10) -> None:
    transaction = Coordinator(client).declare()
    client.start_send(client.sender("q"), data(b"uncommitted", durable=True), transaction=transaction)
    client.round_trip()
