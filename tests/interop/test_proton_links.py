"""AMQP 1.0 with Qpid Proton: opening, sending, receiving, settling, credit, sessions.

Owns what happens on a link between a client and a queue (R125-R131): who may send how much, and what each outcome
means. Queues are made with pika beforehand, so nothing here depends on how addresses are resolved beyond a queue's
plain name. Proton's engine is stepped by hand, because a test of credit must be the one that grants it. Rules: AMQP
1.0 parts 2 (transport), 3 (outcomes) and 5 (SASL).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Endpoint, Link, Message
from proton.reactor import AtLeastOnce, AtMostOnce
from proton.utils import BlockingConnection

from .proton10 import MIXED, SETTLED, UNSETTLED, Client10, data
from .support import depth, publish, receive, shared_queue, take_all, wait_depth, wait_until

pytestmark = pytest.mark.weft_only
Name = Callable[..., str]
Connect10 = Callable[..., Client10]


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    return shared_queue(channel, name("queue"))


def fill(channel: BlockingChannel, queue: str, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    publish(channel, queue, *bodies)
    wait_depth(channel, queue, count)
    return bodies


# --- opening ---


@pytest.mark.parametrize("mechanism", ["PLAIN", "ANONYMOUS"])
def test_sasl(connect10: Connect10, mechanism: str) -> None:
    client = connect10(mechanisms=mechanism, user="guest" if mechanism == "PLAIN" else None)
    assert client.connection.remote_container
    assert client.connection.state & Endpoint.REMOTE_ACTIVE


def test_wrong_password(connect10: Connect10) -> None:
    client = connect10(password="wrong", wait_open=False)
    while not client.ended:
        client.step(1)
    assert client.transport.sasl().outcome == 1  # auth
    assert client.transport.condition.name == "amqp:unauthorized-access"


def test_unknown_virtual_host(connect10: Connect10) -> None:
    client = connect10(hostname="vhost:nowhere", wait_open=False)
    client.wait(lambda: bool(client.connection.state & Endpoint.REMOTE_CLOSED))
    assert client.connection.remote_condition.name in ("amqp:not-found", "amqp:not-allowed")


def test_open_says_what_the_node_can_do(client10: Client10) -> None:
    assert "ANONYMOUS-RELAY" in [str(each) for each in client10.connection.remote_offered_capabilities or []]
    assert {"product", "version"} <= {str(key) for key in client10.connection.remote_properties or {}}


def test_idle_connections_are_kept_by_empty_frames(connect10: Connect10) -> None:
    client = connect10(idle_timeout_ms=600)
    frames_before = client.transport.frames_input
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        client.step(0.1)
    assert not client.ended
    assert client.transport.frames_input > frames_before  # the node speaks although it has nothing to say


# --- the plain way ---


@pytest.mark.parametrize("option", [AtMostOnce(), AtLeastOnce()], ids=["at-most-once", "at-least-once"])
def test_blocking_client_sends_and_receives(broker: Any, channel: BlockingChannel, queue: str, option: Any) -> None:
    url = f"amqp://guest:guest@{broker.host}:{broker.port}"
    connection = BlockingConnection(url, allowed_mechs="PLAIN", allow_insecure_mechs=True, timeout=10)
    sender = connection.create_sender(queue, options=option)
    for number in range(10):
        sender.send(Message(body=f"hello {number}", durable=True))
    receiver = connection.create_receiver(queue, credit=10)
    for number in range(10):
        assert receiver.receive(10).body == f"hello {number}"
        receiver.accept()
    connection.close()
    wait_depth(channel, queue, 0)


# --- sending ---


def test_accepted_message_is_in_the_queue(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    sender = client10.sender(queue)
    assert client10.send(sender, data(b"1")) == Delivery.ACCEPTED
    assert take_all(channel, queue) == [b"1"]


def test_settled_messages_get_no_answer(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    sender = client10.sender(queue, mode=SETTLED)
    deliveries = [client10.start_send(sender, data(b"%d" % number), settled=True) for number in range(20)]
    client10.round_trip()
    wait_depth(channel, queue, 20)
    assert all(each.remote_state == 0 for each in deliveries)


def test_sender_credit_comes_back(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    sender = client10.sender(queue)
    client10.wait(lambda: sender.credit > 0)
    for number in range(3000):  # far more than any first window
        client10.start_send(sender, data(b"%d" % number), settled=True)
    client10.round_trip()
    wait_depth(channel, queue, 3000)


def test_full_queue_rejects(client10: Client10, channel: BlockingChannel, name: Name) -> None:
    queue = name("full")
    channel.queue_declare(queue, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    sender = client10.sender(queue)
    assert client10.send(sender, data(b"1")) == Delivery.ACCEPTED
    assert client10.send(sender, data(b"2")) == Delivery.REJECTED
    assert take_all(channel, queue) == [b"1"]


def test_unroutable_message_is_released(client10: Client10) -> None:
    sender = client10.sender("/exchanges/amq.direct/no.such.key")
    assert client10.send(sender, data(b"x")) == Delivery.RELEASED


# --- receiving: credit ---


def test_credit_is_respected_exactly(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    bodies = fill(channel, queue, 30)
    receiver = client10.receiver(queue, credit=10)
    held = [client10.receive(receiver) for _ in range(10)]  # none is settled
    client10.round_trip()
    assert not client10.complete(receiver)
    assert receiver.credit == 0
    wait_depth(channel, queue, 20)
    receiver.flow(5)
    held += [client10.receive(receiver) for _ in range(5)]
    client10.round_trip()
    assert not client10.complete(receiver)
    assert [message.body for _, message in held] == bodies[:15]


def test_settling_gives_no_credit(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 5)
    receiver = client10.receiver(queue, credit=2)
    assert client10.take(receiver, 2) == [b"0", b"1"]
    client10.round_trip()
    assert not client10.complete(receiver)


def test_without_credit_nothing_comes(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 5)
    receiver = client10.receiver(queue)
    client10.round_trip()
    assert not client10.complete(receiver)
    wait_depth(channel, queue, 5)


def test_a_link_without_credit_does_not_stop_another(
    client10: Client10, channel: BlockingChannel, name: Callable[..., str]
) -> None:
    stopped, flowing = shared_queue(channel, name("a")), shared_queue(channel, name("b"))
    fill(channel, stopped, 5)
    fill(channel, flowing, 10)
    session = client10.session()
    first = client10.receiver(stopped, credit=2, session=session)
    second = client10.receiver(flowing, credit=5, session=session)
    assert len(client10.take(second, 5)) == 5
    assert len(client10.take(first, 2)) == 2
    second.flow(5)
    assert len(client10.take(second, 5)) == 5
    assert not client10.complete(first)


def test_drain_uses_up_the_credit(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    bodies = fill(channel, queue, 3)
    receiver = client10.receiver(queue)
    receiver.drain(10)
    client10.wait(lambda: receiver.credit == receiver.queued and receiver.queued == 3 and not receiver.draining())
    assert client10.take(receiver, 3) == bodies
    assert receiver.credit == 0
    receiver.drain_mode = False
    publish(channel, queue, b"later")
    client10.round_trip()
    assert not client10.complete(receiver)
    receiver.flow(1)
    assert client10.take(receiver, 1) == [b"later"]


def test_drain_of_an_empty_queue_answers(client10: Client10, queue: str) -> None:
    receiver = client10.receiver(queue)
    assert client10.empty(receiver)


def test_stopped_link_does_not_stop_the_other(
    client10: Client10, channel: BlockingChannel, queue: str, name: Name
) -> None:
    other = shared_queue(channel, name("other"))
    session = client10.session()
    stopped, running = client10.receiver(queue, session=session), client10.receiver(other, session=session, credit=50)
    fill(channel, queue, 5)
    publish(channel, other, *(b"%d" % number for number in range(50)))
    assert client10.take(running, 50) == [b"%d" % number for number in range(50)]
    assert not client10.complete(stopped)


def test_consumers_share_a_queue_in_turn(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    receivers = [client10.receiver(queue, credit=100) for _ in range(3)]
    client10.round_trip()
    publish(channel, queue, *(b"%d" % number for number in range(30)))
    client10.wait(lambda: sum(each.queued for each in receivers) == 30)
    assert [each.queued for each in receivers] == [10, 10, 10]


# --- receiving: settlement ---


def test_presettled_delivery_is_gone(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 3)
    receiver = client10.receiver(queue, credit=2, mode=SETTLED)
    for _ in range(2):
        delivery, _ = client10.receive(receiver)
        assert delivery.settled
    client10.close_link(receiver)
    assert take_all(channel, queue) == [b"2"]


def test_accepted_delivery_is_gone(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 3)
    receiver = client10.receiver(queue, credit=3, mode=UNSETTLED)
    held = [client10.receive(receiver)[0] for _ in range(3)]
    client10.settle(held[1], Delivery.ACCEPTED)
    client10.close_link(receiver)
    assert take_all(channel, queue) == [b"0", b"2"]


def test_released_delivery_goes_back_to_its_place(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 4)
    receiver = client10.receiver(queue, credit=3)
    held = [client10.receive(receiver)[0] for _ in range(3)]
    for number in (2, 0):
        client10.settle(held[number], Delivery.RELEASED)
    client10.settle(held[1], Delivery.ACCEPTED)
    client10.round_trip()
    assert take_all(channel, queue) == [b"0", b"2", b"3"]


def test_released_is_no_failure_modified_is(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 1)
    receiver = client10.receiver(queue, credit=1)
    counts = []
    for failed in (None, True, True):
        delivery, message = client10.receive(receiver)
        counts.append(message.delivery_count)
        if failed is None:
            client10.settle(delivery, Delivery.RELEASED)
        else:
            delivery.local.failed = failed
            client10.settle(delivery, Delivery.MODIFIED)
        receiver.flow(1)
    counts.append(client10.receive(receiver)[1].delivery_count)
    assert counts == [0, 0, 1, 2]


def test_modified_annotations_are_added(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 1)
    receiver = client10.receiver(queue, credit=1)
    delivery, _ = client10.receive(receiver)
    delivery.local.annotations = {"x-opt-tried-by": "first"}
    client10.settle(delivery, Delivery.MODIFIED)
    receiver.flow(1)
    _, again = client10.receive(receiver)
    assert {str(key): value for key, value in again.annotations.items()}["x-opt-tried-by"] == "first"


@pytest.mark.parametrize("outcome", ["rejected", "undeliverable"])
def test_refused_delivery_becomes_a_dead_letter(
    client10: Client10, channel: BlockingChannel, name: Name, outcome: str
) -> None:
    dead = shared_queue(channel, name("dead"))
    queue = shared_queue(channel, name("source"), x_dead_letter_exchange="", x_dead_letter_routing_key=dead)
    publish(channel, queue, b"bad")
    delivery, _ = client10.receive(client10.receiver(queue, credit=1))
    if outcome == "undeliverable":
        delivery.local.undeliverable = True
    client10.settle(delivery, Delivery.REJECTED if outcome == "rejected" else Delivery.MODIFIED)
    buried = receive(channel, dead, 1)[0]
    assert buried.body == b"bad"
    assert buried.properties.headers["x-death"][0]["reason"] == "rejected"


def second(link: Any) -> None:
    link.rcv_settle_mode = Link.RCV_SECOND


def test_second_settle_mode_settles_after_the_node(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    fill(channel, queue, 1)
    receiver = client10.receiver(queue, credit=1, mode=UNSETTLED, prepare=second)
    assert receiver.remote_rcv_settle_mode == Link.RCV_SECOND
    delivery, _ = client10.receive(receiver)
    delivery.update(Delivery.ACCEPTED)  # a state, not settled: the node settles first
    client10.wait(lambda: delivery.settled)
    delivery.settle()
    wait_depth(channel, queue, 0)


@pytest.mark.parametrize("how", ["close", "end", "cut"])
def test_unsettled_deliveries_come_back(connect10: Connect10, channel: BlockingChannel, queue: str, how: str) -> None:
    fill(channel, queue, 4)
    client = connect10()
    receiver = client.receiver(queue, credit=3)
    for _ in range(3):
        client.receive(receiver)
    if how == "close":
        client.close_link(receiver)
    elif how == "end":
        receiver.session.close()
        client.wait(lambda: bool(receiver.session.state & Endpoint.REMOTE_CLOSED))
    else:
        client.cut()
    wait_depth(channel, queue, 4)
    again = receive(channel, queue, 4)
    assert [each.body for each in again] == [b"0", b"1", b"2", b"3"]
    assert [each.method.redelivered for each in again] == [True, True, True, False]


HAND_OFFS = {
    # who settles, when the receiver dies: what is left in the queue
    "at-most-once": (SETTLED, None, "on arrival", 0),
    "at-least-once, before it decided": (UNSETTLED, None, "on arrival", 1),
    "at-least-once, decided": (UNSETTLED, None, "when accepted", 0),
    "in two steps, before it decided": (UNSETTLED, second, "on arrival", 1),
    "in two steps, decided and answered": (UNSETTLED, second, "when accepted", 0),
    "mixed, before it decided": (MIXED, None, "on arrival", 1),
    "mixed, in two steps, decided": (MIXED, second, "when accepted", 0),
}


@pytest.mark.parametrize(("mode", "prepare", "dies", "left"), HAND_OFFS.values(), ids=HAND_OFFS)
def test_who_has_a_message_when_its_receiver_dies(
    connect10: Connect10, channel: BlockingChannel, queue: str, mode: int, prepare: Any, dies: str, left: int
) -> None:
    fill(channel, queue, 1)
    client = connect10()
    delivery, _ = client.receive(client.receiver(queue, credit=1, mode=mode, prepare=prepare))
    assert delivery.settled == (mode == SETTLED)
    if dies == "when accepted":
        delivery.update(Delivery.ACCEPTED)
        if prepare is None:
            delivery.settle()
        else:
            client.wait(lambda: delivery.settled)
        client.round_trip()
    client.cut()
    wait_until(channel.connection, lambda: channel.queue_declare(queue, passive=True).method.consumer_count == 0)
    assert depth(channel, queue) == left
    assert [each.method.redelivered for each in receive(channel, queue, left)] == [True] * left


# --- sizes and sessions ---


@pytest.mark.parametrize("size", [0, 1, 400, 511, 512, 513, 100_000])
def test_small_frames(connect10: Connect10, channel: BlockingChannel, queue: str, size: int) -> None:
    client = connect10(frame_bytes_max=512)
    body = bytes(number % 251 for number in range(size))
    assert client.send(client.sender(queue), data(body)) == Delivery.ACCEPTED
    assert client.take(client.receiver(queue, credit=1), 1) == [body]


def test_five_megabytes_in_small_frames(connect10: Connect10, queue: str) -> None:
    client = connect10(frame_bytes_max=4096)
    body = bytes(range(256)) * 20_000
    assert client.send(client.sender(queue), data(body)) == Delivery.ACCEPTED
    assert client.take(client.receiver(queue, credit=1), 1) == [body]


def test_a_large_message_does_not_block_another_session(
    client10: Client10, channel: BlockingChannel, queue: str, name: Name
) -> None:
    small = channel.queue_declare(name("small"), exclusive=True).method.queue
    large_sender, small_sender = client10.sender(queue), client10.sender(small)
    client10.wait(lambda: large_sender.credit > 0 and small_sender.credit > 0)
    large = large_sender.delivery("large")
    encoded = data(bytes(5_000_000)).encode()
    half = len(encoded) // 2
    large_sender.send(encoded[:half])  # half a message, then something else
    client10.step(0)
    for number in range(20):
        assert client10.send(small_sender, data(b"%d" % number)) == Delivery.ACCEPTED
    assert take_all(channel, small) == [b"%d" % number for number in range(20)]
    wait_depth(channel, queue, 0)
    large_sender.send(encoded[half:])
    large_sender.advance()
    client10.wait(lambda: large.settled)
    assert large.remote_state == Delivery.ACCEPTED
    assert len(client10.take(client10.receiver(queue, credit=1), 1)[0]) == 5_000_000


def test_aborted_delivery_leaves_nothing(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    sender = client10.sender(queue)
    client10.wait(lambda: sender.credit > 0)
    delivery = sender.delivery("aborted")
    sender.send(data(bytes(200_000)).encode()[:150_000])
    client10.step(0)
    delivery.abort()
    assert client10.send(sender, data(b"next")) == Delivery.ACCEPTED
    assert take_all(channel, queue) == [b"next"]


def test_many_sessions_and_links(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    senders = [client10.sender(queue) for _ in range(20)]  # a session each
    session = client10.session()
    senders += [client10.sender(queue, session=session) for _ in range(40)]
    for number, sender in enumerate(senders):
        assert client10.send(sender, data(b"%d" % number)) == Delivery.ACCEPTED
    assert take_all(channel, queue) == [b"%d" % number for number in range(60)]
