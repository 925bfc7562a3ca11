"""One script for brokers of different make: AMQP 1.0 as the specification has it, and nothing that one of them added.

Owns what a program may rely on wherever it connects (R028): weft, RabbitMQ and ActiveMQ Artemis run the same lines.
Proton's engine is stepped by hand, as in `test_proton_links.py`. It must use no broker's own addresses, capabilities,
annotations or commands: a queue is a name, which each of them makes when somebody attaches to it and says `queue`. What
one of the others lacks is left out: RabbitMQ 3.10 does not answer a drain and makes no dynamic nodes. Rules: AMQP 1.0
parts 2, 3 and 5; the capability is that of the OASIS mapping of JMS, section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from proton import Delivery, Endpoint, Message, symbol

from .proton10 import SETTLED, UNSETTLED, Client10, data

pytestmark = [pytest.mark.weft_only, pytest.mark.peers, pytest.mark.timeout(300)]  # the first run fetches Artemis
Name = Callable[..., str]
QUEUE = symbol("queue")


@pytest.fixture(params=["broker", "rabbitmq_server", "artemis"], ids=["weft", "RabbitMQ", "Artemis"])
def client(request: pytest.FixtureRequest) -> Iterator[Client10]:
    with Client10(request.getfixturevalue(request.param)) as client:
        yield client


@pytest.fixture
def queue(client: Client10, name: Name) -> str:
    """Its name; it stays for as long as this receiver without credit is attached, and longer."""
    made = name()
    source(client, made)
    return made


def target(client: Client10, queue: str, **options: Any) -> Any:
    return client.sender(queue, prepare=lambda link: link.target.capabilities.put_object(QUEUE), **options)


def source(client: Client10, queue: str, **options: Any) -> Any:
    return client.receiver(queue, prepare=lambda link: link.source.capabilities.put_object(QUEUE), **options)


def bodies(client: Client10, queue: str) -> list[bytes]:
    """All that waits there, in order, accepted: what comes before a message that is sent now."""
    assert client.send(target(client, queue), data(b"end")) == Delivery.ACCEPTED
    receiver = source(client, queue, credit=100)
    found: list[bytes] = []
    while b"end" not in found:
        found += client.take(receiver, 1)
    return found[:-1]


def test_a_message_is_accepted_and_arrives_as_it_was_sent(client: Client10, queue: str) -> None:
    sent = data(
        b"\x00body",
        id="m-1",
        correlation_id="c-1",
        reply_to="somewhere",
        subject="a subject",
        content_type=symbol("text/plain"),
        durable=True,
        priority=7,
        properties={"text": "t", "number": -3, "truth": True, "part": 0.5},
    )
    assert client.send(target(client, queue), sent) == Delivery.ACCEPTED
    delivery, got = client.receive(source(client, queue, credit=1))
    client.settle(delivery, Delivery.ACCEPTED)
    for part in ("body", "id", "correlation_id", "reply_to", "subject", "content_type", "durable", "priority"):
        assert getattr(got, part) == getattr(sent, part), part
    assert got.properties == sent.properties
    assert got.delivery_count == 0


@pytest.mark.parametrize("body", [b"", b"x" * 1_000_000], ids=["empty", "large"])
def test_any_size(client: Client10, queue: str, body: bytes) -> None:
    assert client.send(target(client, queue), data(body)) == Delivery.ACCEPTED
    assert bodies(client, queue) == [body]


def test_order_is_kept(client: Client10, queue: str) -> None:
    sender = target(client, queue)
    for number in range(50):
        client.start_send(sender, data(b"%d" % number))
    assert bodies(client, queue) == [b"%d" % number for number in range(50)]


def test_fire_and_forget(client: Client10, queue: str) -> None:
    """Nobody answers what was sent settled, and what comes settled is gone."""
    sender = target(client, queue, mode=SETTLED)
    deliveries = [client.start_send(sender, data(b"%d" % number), settled=True) for number in range(3)]
    client.round_trip()
    receiver = source(client, queue, credit=3, mode=SETTLED)
    got = [client.receive(receiver) for _ in range(3)]
    assert [message.body for _, message in got] == [b"0", b"1", b"2"]
    assert all(delivery.settled for delivery, _ in got)
    assert not any(delivery.remote_state for delivery in deliveries)


def test_credit_is_never_passed_and_does_not_wait_for_settlement(client: Client10, queue: str) -> None:
    sender = target(client, queue)
    for number in range(5):
        assert client.send(sender, data(b"%d" % number)) == Delivery.ACCEPTED
    receiver = source(client, queue, credit=2, mode=UNSETTLED)
    held = [client.receive(receiver)[0] for _ in range(2)]
    client.round_trip()
    assert not client.complete(receiver)
    receiver.flow(1)
    held.append(client.receive(receiver)[0])
    client.round_trip()
    assert not client.complete(receiver)
    assert not any(delivery.settled for delivery in held)


@pytest.mark.parametrize("outcome", [Delivery.RELEASED, Delivery.MODIFIED], ids=["released", "modified"])
def test_what_is_given_back_comes_again(client: Client10, queue: str, outcome: Any) -> None:
    sender = target(client, queue)
    for body in (b"first", b"second"):
        assert client.send(sender, data(body)) == Delivery.ACCEPTED
    receiver = source(client, queue, credit=1, mode=UNSETTLED)
    client.settle(client.receive(receiver)[0], outcome)
    client.round_trip()
    assert sorted(bodies(client, queue)) == [b"first", b"second"]


def test_what_is_rejected_does_not_come_again(client: Client10, queue: str) -> None:
    sender = target(client, queue)
    for body in (b"bad", b"good"):
        assert client.send(sender, data(body)) == Delivery.ACCEPTED
    receiver = source(client, queue, credit=1, mode=UNSETTLED)
    client.settle(client.receive(receiver)[0], Delivery.REJECTED)
    client.round_trip()
    assert bodies(client, queue) == [b"good"]


def test_what_was_not_settled_comes_to_the_next(client: Client10, queue: str) -> None:
    assert client.send(target(client, queue), data(b"held")) == Delivery.ACCEPTED
    receiver = source(client, queue, credit=1, mode=UNSETTLED)
    assert client.receive(receiver)[1].body == b"held"
    receiver.session.close()
    client.wait(lambda: bool(receiver.session.state & Endpoint.REMOTE_CLOSED))
    assert bodies(client, queue) == [b"held"]


def test_receivers_share_a_queue(client: Client10, queue: str) -> None:
    receivers = [source(client, queue, credit=5) for _ in range(2)]
    sender = target(client, queue)
    for number in range(10):
        client.start_send(sender, data(b"%d" % number))
    found = [client.take(receiver, 5) for receiver in receivers]
    assert sorted(found[0] + found[1]) == [b"%d" % number for number in range(10)]


def test_sessions_and_links_do_not_disturb_each_other(client: Client10, name: Name) -> None:
    queues = [name(), name()]
    links = [(target(client, queue), source(client, queue)) for queue in queues]
    for sender, _ in links:
        assert client.send(sender, data(b"x")) == Delivery.ACCEPTED
    links[1][1].flow(1)  # the other has no credit
    assert client.take(links[1][1], 1) == [b"x"]
    links[0][1].session.close()
    links[1][1].flow(1)
    assert client.send(links[1][0], data(b"y")) == Delivery.ACCEPTED
    assert client.take(links[1][1], 1) == [b"y"]


def test_a_reply_goes_where_the_request_says(client: Client10, queue: str, name: Name) -> None:
    replies = source(client, name("replies"), credit=1)
    question = Message(body="question", reply_to=replies.source.address, correlation_id="7")
    assert client.send(target(client, queue), question) == Delivery.ACCEPTED
    delivery, asked = client.receive(source(client, queue, credit=1))
    client.settle(delivery, Delivery.ACCEPTED)
    answer = Message(body="answer", correlation_id=asked.correlation_id)
    assert asked.reply_to
    assert client.send(target(client, asked.reply_to), answer) == Delivery.ACCEPTED
    delivery, reply = client.receive(replies)
    client.settle(delivery, Delivery.ACCEPTED)
    assert (reply.body, reply.correlation_id) == ("answer", "7")
