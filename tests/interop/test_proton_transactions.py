"""AMQP 1.0 transactions with Qpid Proton: sends and acceptances over several queues, all or none.

Owns the coordinator link (R132): declare, work on any link, discharge. Queues are made with pika, which also looks
from outside at what is visible when. Proton's engine is stepped by hand. Rules: AMQP 1.0 part 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Described, Message, Terminus, symbol, ulong

from .proton10 import TRANSACTIONAL_STATE, Client10, data
from .support import publish, shared_queue, take_all, wait_depth

pytestmark = pytest.mark.weft_only
Name = Callable[..., str]
DECLARED = 0x33


class Coordinator:
    """The controlling link, and what is done with it."""

    def __init__(self, client: Client10) -> None:
        def to_coordinator(link: Any) -> None:
            link.target.type = Terminus.COORDINATOR
            link.target.capabilities.put_object(symbol("amqp:local-transactions"))

        self.client = client
        self.link = client.sender(None, prepare=to_coordinator)

    def declare(self) -> bytes:
        delivery = self.client.start_send(self.link, Message(body=Described(ulong(0x31), [None])))
        self.client.wait(lambda: delivery.settled)
        assert delivery.remote_state == DECLARED
        return bytes(delivery.remote.data[0])

    def discharge(self, transaction: bytes, *, fail: bool) -> Delivery:
        delivery = self.client.start_send(
            self.link, Message(body=Described(symbol("amqp:discharge:list"), [transaction, fail]))
        )
        self.client.wait(lambda: delivery.settled)
        return delivery

    def commit(self, transaction: bytes) -> None:
        assert self.discharge(transaction, fail=False).remote_state == Delivery.ACCEPTED

    def roll_back(self, transaction: bytes) -> None:
        assert self.discharge(transaction, fail=True).remote_state == Delivery.ACCEPTED


@pytest.fixture
def coordinator(client10: Client10) -> Coordinator:
    return Coordinator(client10)


@pytest.fixture
def queues(channel: BlockingChannel, name: Name) -> list[str]:
    return [shared_queue(channel, name(each)) for each in ("first", "second")]


def send_in(client: Client10, transaction: bytes, queue: str, body: bytes) -> None:
    delivery = client.start_send(client.sender(queue), data(body), transaction=transaction)
    client.wait(lambda: delivery.remote_state == TRANSACTIONAL_STATE)
    delivery.settle()


def accept_in(client: Client10, transaction: bytes, delivery: Delivery, outcome: int = Delivery.ACCEPTED) -> None:
    delivery.local.data = [transaction, Described(ulong(outcome), [])]
    delivery.update(TRANSACTIONAL_STATE)
    delivery.settle()
    client.step(0)


def test_commit_over_two_queues(
    client10: Client10, coordinator: Coordinator, channel: BlockingChannel, queues: list[str]
) -> None:
    transaction = coordinator.declare()
    for queue in queues:
        send_in(client10, transaction, queue, queue.encode())
    assert [channel.basic_get(queue)[0] for queue in queues] == [None, None]
    coordinator.commit(transaction)
    assert [take_all(channel, queue) for queue in queues] == [[queue.encode()] for queue in queues]


def test_roll_back_over_two_queues(
    client10: Client10, coordinator: Coordinator, channel: BlockingChannel, queues: list[str]
) -> None:
    transaction = coordinator.declare()
    for queue in queues:
        send_in(client10, transaction, queue, b"forgotten")
    coordinator.roll_back(transaction)
    assert [take_all(channel, queue) for queue in queues] == [[], []]


def test_move_from_one_queue_to_another(
    client10: Client10, coordinator: Coordinator, channel: BlockingChannel, queues: list[str]
) -> None:
    source, target = queues
    publish(channel, source, b"moving")
    receiver = client10.receiver(source, credit=1)
    delivery, message = client10.receive(receiver)
    transaction = coordinator.declare()
    send_in(client10, transaction, target, message.body)
    accept_in(client10, transaction, delivery)
    coordinator.commit(transaction)
    client10.close_link(receiver)
    assert (take_all(channel, source), take_all(channel, target)) == ([], [b"moving"])


def test_rolled_back_acceptance_gives_the_message_back(
    client10: Client10, coordinator: Coordinator, channel: BlockingChannel, queues: list[str]
) -> None:
    source, target = queues
    publish(channel, source, b"staying")
    receiver = client10.receiver(source, credit=1)
    delivery, message = client10.receive(receiver)
    transaction = coordinator.declare()
    send_in(client10, transaction, target, message.body)
    delivery.local.data = [transaction, Described(ulong(Delivery.ACCEPTED), [])]
    delivery.update(TRANSACTIONAL_STATE)
    coordinator.roll_back(transaction)
    client10.close_link(receiver)
    wait_depth(channel, source, 1)
    assert (take_all(channel, source), take_all(channel, target)) == ([b"staying"], [])


def test_two_transactions_at_once(
    client10: Client10, coordinator: Coordinator, channel: BlockingChannel, queues: list[str]
) -> None:
    kept, forgotten = coordinator.declare(), coordinator.declare()
    assert kept != forgotten
    send_in(client10, kept, queues[0], b"kept")
    send_in(client10, forgotten, queues[0], b"forgotten")
    coordinator.roll_back(forgotten)
    coordinator.commit(kept)
    assert take_all(channel, queues[0]) == [b"kept"]


def test_closing_the_coordinator_rolls_back(
    client10: Client10, coordinator: Coordinator, channel: BlockingChannel, queues: list[str]
) -> None:
    transaction = coordinator.declare()
    send_in(client10, transaction, queues[0], b"forgotten")
    client10.close_link(coordinator.link)
    client10.round_trip()
    assert take_all(channel, queues[0]) == []


def test_unknown_transaction_is_refused(client10: Client10, coordinator: Coordinator) -> None:
    delivery = coordinator.discharge(b"no such", fail=False)
    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition.name == "amqp:transaction:unknown-id"
