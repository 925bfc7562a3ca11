"""AMQP 1.0 with Qpid Proton: addresses, filters, browsing, dynamic and anonymous nodes, subscriptions.

Owns what a link may attach to and what its source lets through (R128, R135, R136). pika makes queues and exchanges
and looks from the other side. What happens on a link once attached is in the links file. Rules: AMQP 1.0 part 3, the
anonymous terminus extension, Apache's filter registry, RabbitMQ's address format v2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Described, Message, Terminus, symbol, ulong

from .proton10 import Client10, data
from .support import publish, receive, shared_queue, take_all, wait_depth

pytestmark = pytest.mark.weft_only
Name = Callable[..., str]
Connect10 = Callable[..., Client10]


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    return shared_queue(channel, name("queue"))


def filtered(kind: str | int, value: Any) -> Callable[[Any], None]:
    """Set one source filter, named by its symbol or by its registered code."""

    def prepare(link: Any) -> None:
        descriptor = symbol(f"apache.org:{kind}") if isinstance(kind, str) else ulong(kind)
        link.source.filter.put_dict({symbol("filter"): Described(descriptor, value)})

    return prepare


def condition(client: Client10, link: Any) -> str:
    return str(client.refused(link).name)


# --- addresses ---


@pytest.mark.parametrize("form", ["{}", "/queues/{}"])
def test_queue_addresses(client10: Client10, queue: str, form: str) -> None:
    address = form.format(queue)
    sender = client10.sender(address)
    assert sender.remote_target.address == address
    assert client10.send(sender, data(b"x")) == Delivery.ACCEPTED
    receiver = client10.receiver(address, credit=1)
    assert receiver.remote_source.address == address
    assert client10.take(receiver, 1) == [b"x"]


def test_queue_names_are_percent_encoded(client10: Client10, channel: BlockingChannel, name: Name) -> None:
    queue = name("a b/c%ü")
    channel.queue_declare(queue, exclusive=True)
    encoded = queue.replace("%", "%25").replace(" ", "%20").replace("/", "%2F").replace("ü", "%C3%BC")
    assert client10.send(client10.sender(f"/queues/{encoded}"), data(b"x")) == Delivery.ACCEPTED
    assert take_all(channel, queue) == [b"x"]


@pytest.mark.parametrize("form", ["/exchanges/amq.topic/{}.a", "amq.topic/{}.a"])
def test_exchange_with_key(client10: Client10, channel: BlockingChannel, queue: str, form: str) -> None:
    channel.queue_bind(queue, "amq.topic", f"{queue}.*")
    assert client10.send(client10.sender(form.format(queue)), data(b"x", subject="kept")) == Delivery.ACCEPTED
    got = receive(channel, queue, 1)[0]
    assert (got.body, got.method.exchange, got.method.routing_key) == (b"x", "amq.topic", f"{queue}.a")


def test_exchange_without_key_routes_by_subject(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind(queue, "amq.direct", queue)
    sender = client10.sender("/exchanges/amq.direct")
    assert client10.send(sender, data(b"x", subject=queue)) == Delivery.ACCEPTED
    assert client10.send(sender, data(b"y", subject="nowhere")) == Delivery.RELEASED
    assert take_all(channel, queue) == [b"x"]


@pytest.mark.parametrize("address", ["/queues/never-declared", "/exchanges/never-declared/key", "/nonsense/x"])
@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_unknown_addresses_are_refused(client10: Client10, address: str, side: str) -> None:
    link = getattr(client10, side)(address)
    assert condition(client10, link) in (
        "amqp:not-found",
        "amqp:invalid-field",
        "amqp:not-allowed",
        "amqp:not-implemented",
    )
    client10.round_trip()  # the connection lives


def test_exclusive_queue_is_locked(client10: Client10, channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name(), exclusive=True).method.queue
    assert condition(client10, client10.receiver(f"/queues/{queue}")) == "amqp:resource-locked"


def test_deleting_a_queue_ends_its_links(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    receiver = client10.receiver(queue, credit=1)
    channel.queue_delete(queue)
    assert condition(client10, receiver) in ("amqp:resource-deleted", "amqp:not-found")


# --- anonymous and dynamic nodes ---


def test_anonymous_sender_routes_by_to(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind(queue, "amq.direct", queue)
    sender = client10.sender(None)
    assert client10.send(sender, data(b"1", address=f"/queues/{queue}")) == Delivery.ACCEPTED
    assert client10.send(sender, data(b"2", address=f"/exchanges/amq.direct/{queue}")) == Delivery.ACCEPTED
    assert client10.send(sender, data(b"3", address="/queues/never-declared")) in (Delivery.RELEASED, Delivery.REJECTED)
    assert client10.send(sender, data(b"4", address=queue)) == Delivery.ACCEPTED
    assert take_all(channel, queue) == [b"1", b"2", b"4"]


def test_fixed_target_ignores_to(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    assert client10.send(client10.sender(queue), data(b"x", address="/queues/elsewhere")) == Delivery.ACCEPTED
    assert take_all(channel, queue) == [b"x"]


def dynamic(link: Any) -> None:
    link.source.dynamic = True


def test_dynamic_reply_node(connect10: Connect10, channel: BlockingChannel, queue: str) -> None:
    asking, serving = connect10(), connect10()
    replies = asking.receiver(None, credit=1, prepare=dynamic)
    address = replies.remote_source.address
    assert address
    asking.send(asking.sender(queue), Message(body="ask", reply_to=address, correlation_id="c-1"))
    delivery, request = serving.receive(serving.receiver(queue, credit=1))
    serving.settle(delivery, Delivery.ACCEPTED)
    answer = Message(body="answer", correlation_id=request.correlation_id, address=request.reply_to)
    assert serving.send(serving.sender(None), answer) == Delivery.ACCEPTED
    _, got = asking.receive(replies)
    assert (got.body, got.correlation_id) == ("answer", "c-1")
    asking.close_link(replies)
    assert condition(serving, serving.sender(address)) == "amqp:not-found"  # the node went with its link


def test_dynamic_nodes_differ(client10: Client10) -> None:
    addresses = {client10.receiver(None, prepare=dynamic).remote_source.address for _ in range(5)}
    assert len(addresses) == 5


# --- browsing and filters ---


def test_browsing_copies(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"1", b"2", b"3")

    def copy(link: Any) -> None:
        link.source.distribution_mode = Terminus.DIST_MODE_COPY

    for _ in range(2):
        browser = client10.receiver(queue, credit=10, prepare=copy)
        assert browser.remote_source.distribution_mode == Terminus.DIST_MODE_COPY
        assert client10.take(browser, 3) == [b"1", b"2", b"3"]
        client10.close_link(browser)
    assert take_all(channel, queue) == [b"1", b"2", b"3"]


def test_moving_acquires(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"1", b"2", b"3")

    def move(link: Any) -> None:
        link.source.distribution_mode = Terminus.DIST_MODE_MOVE

    mover = client10.receiver(queue, credit=2, prepare=move)
    assert mover.remote_source.distribution_mode in (Terminus.DIST_MODE_MOVE, Terminus.DIST_MODE_UNSPECIFIED)
    held = [client10.receive(mover) for _ in range(2)]
    assert [bytes(message.body) for _, message in held] == [b"1", b"2"]
    wait_depth(channel, queue, 1)  # nobody else is given what it holds
    assert take_all(channel, queue) == [b"3"]
    client10.settle(held[0][0], Delivery.ACCEPTED)
    client10.settle(held[1][0], Delivery.RELEASED)
    client10.round_trip()
    assert take_all(channel, queue) == [b"2"]


SELECTORS: list[tuple[str, list[bytes]]] = [
    ("colour = 'blue'", [b"1", b"3"]),
    ("colour <> 'blue' AND weight BETWEEN 4 AND 6", [b"2"]),
    ("weight > 5 OR colour LIKE 'gr%'", [b"3", b"4"]),
    ("colour IN ('red', 'green') AND NOT (weight >= 5)", [b"4"]),
    ("missing IS NULL AND priority = 9", [b"2"]),
    ("amqp.subject = 'third'", [b"3"]),
    ("JMSPriority = 9", [b"2"]),
]


def coloured(client: Client10, queue: str) -> None:
    sender = client.sender(queue)
    for body, colour, weight, extra in (
        (b"1", "blue", 1, {}),
        (b"2", "red", 5, {"priority": 9}),
        (b"3", "blue", 9, {"subject": "third"}),
        (b"4", "green", 2, {}),
    ):
        properties = {"colour": colour, "weight": weight} | ({"priority": 9} if extra.get("priority") else {})
        assert client.send(sender, data(body, properties=properties, **extra)) == Delivery.ACCEPTED


@pytest.mark.parametrize(("selector", "matching"), SELECTORS, ids=[selector for selector, _ in SELECTORS])
def test_selector_on_a_queue(
    client10: Client10, channel: BlockingChannel, queue: str, selector: str, matching: list[bytes]
) -> None:
    coloured(client10, queue)
    receiver = client10.receiver(queue, credit=10, prepare=filtered("selector-filter:string", selector))
    receiver.remote_source.filter.rewind()
    assert receiver.remote_source.filter.next() is not None  # the reply lists what is really applied
    assert client10.take(receiver, len(matching)) == matching
    assert client10.empty(receiver)
    wait_depth(channel, queue, 4 - len(matching))  # what did not match is for others


def test_selector_by_its_code(client10: Client10, queue: str) -> None:
    coloured(client10, queue)
    receiver = client10.receiver(queue, credit=10, prepare=filtered(0x0000468C00000004, "weight = 9"))
    assert client10.take(receiver, 1) == [b"3"]


def test_bad_selector_is_refused(client10: Client10, queue: str) -> None:
    receiver = client10.receiver(queue, prepare=filtered("selector-filter:string", "colour = = 'blue'"))
    assert condition(client10, receiver) == "amqp:invalid-field"


@pytest.mark.parametrize(
    ("exchange", "kind", "key", "expected"),
    [
        ("amq.topic", "legacy-amqp-topic-binding:string", "{0}.*.red", ["{0}.a.red"]),
        ("amq.topic", "legacy-amqp-topic-binding:string", "{0}.#", ["{0}.a.red", "{0}.a.blue", "{0}"]),
        ("amq.topic", 0x0000468C00000001, "{0}.*.red", ["{0}.a.red"]),
        ("amq.direct", "legacy-amqp-direct-binding:string", "{0}.a.blue", ["{0}.a.blue"]),
        ("amq.direct", 0x0000468C00000000, "{0}.a.blue", ["{0}.a.blue"]),
    ],
)
def test_binding_filter_on_an_exchange(
    client10: Client10, name: Name, exchange: str, kind: str | int, key: str, expected: list[str]
) -> None:
    stem = name()
    receiver = client10.receiver(f"/exchanges/{exchange}", credit=10, prepare=filtered(kind, key.format(stem)))
    sender = client10.sender(f"/exchanges/{exchange}")
    for subject in (f"{stem}.a.red", f"{stem}.a.blue", stem, "other"):
        client10.send(sender, data(subject.encode(), subject=subject))
    assert client10.take(receiver, len(expected)) == [each.format(stem).encode() for each in expected]
    assert client10.empty(receiver)


def test_headers_filter_on_an_exchange(client10: Client10, name: Name) -> None:
    stem = name()
    wanted = {"x-match": "all", "stem": stem, "colour": "blue"}
    receiver = client10.receiver(
        "/exchanges/amq.headers", credit=10, prepare=filtered("legacy-amqp-headers-binding:map", wanted)
    )
    sender = client10.sender("/exchanges/amq.headers")
    for colour in ("red", "blue"):
        client10.send(sender, data(colour.encode(), properties={"stem": stem, "colour": colour}))
    assert client10.take(receiver, 1) == [b"blue"]
    assert client10.empty(receiver)


def test_topic_filter_on_a_queue_skips_other_subjects(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    sender = client10.sender(queue)
    for subject in ("a.red", "b.red", "a.blue"):
        client10.send(sender, data(subject.encode(), subject=subject))
    receiver = client10.receiver(queue, credit=10, prepare=filtered("legacy-amqp-topic-binding:string", "a.*"))
    assert client10.take(receiver, 2) == [b"a.red", b"a.blue"]
    assert client10.empty(receiver)
    assert take_all(channel, queue) == [b"b.red"]


def test_no_local_filter(connect10: Connect10, name: Name) -> None:
    mine, other = connect10(), connect10()
    key = name()

    def no_local(link: Any) -> None:
        link.source.filter.put_dict(
            {
                symbol("no-local"): Described(symbol("apache.org:no-local-filter:list"), []),
                symbol("key"): Described(symbol("apache.org:legacy-amqp-direct-binding:string"), key),
            }
        )

    receiver = mine.receiver("/exchanges/amq.direct", credit=10, prepare=no_local)
    mine.send(mine.sender(f"/exchanges/amq.direct/{key}"), data(b"from myself"))
    assert other.send(other.sender(f"/exchanges/amq.direct/{key}"), data(b"from another")) == Delivery.ACCEPTED
    assert mine.take(receiver, 1) == [b"from another"]
    assert mine.empty(receiver)


# --- subscriptions that outlive their link ---


def durable(key: str) -> Callable[[Any], None]:
    def prepare(link: Any) -> None:
        link.source.durability = Terminus.DELIVERIES
        link.source.expiry_policy = Terminus.EXPIRE_NEVER
        link.source.filter.put_dict(
            {symbol("key"): Described(symbol("apache.org:legacy-amqp-topic-binding:string"), key)}
        )

    return prepare


def test_durable_subscription_keeps_messages_while_away(connect10: Connect10, client10: Client10, name: Name) -> None:
    container, link_name, key = name("container"), name("subscription"), name("key")
    subscriber = connect10(container=container)
    link = subscriber.receiver("/exchanges/amq.topic", credit=1, prepare=durable(key), name=link_name)
    sender = client10.sender(f"/exchanges/amq.topic/{key}")
    assert client10.send(sender, data(b"while there")) == Delivery.ACCEPTED
    assert subscriber.take(link, 1) == [b"while there"]
    link.detach()
    subscriber.round_trip()
    assert client10.send(sender, data(b"while away")) == Delivery.ACCEPTED
    again = subscriber.receiver("/exchanges/amq.topic", credit=1, prepare=durable(key), name=link_name)
    assert subscriber.take(again, 1) == [b"while away"]
    subscriber.close_link(again)  # closing, unlike detaching, ends the subscription
    assert client10.send(sender, data(b"to nobody")) == Delivery.RELEASED


def test_unsettled_delivery_comes_again_after_a_resume(connect10: Connect10, client10: Client10, name: Name) -> None:
    container, link_name, key = name("container"), name("subscription"), name("key")
    first = connect10(container=container)
    link = first.receiver("/exchanges/amq.topic", credit=2, prepare=durable(key), name=link_name)
    sender = client10.sender(f"/exchanges/amq.topic/{key}")
    for body in (b"settled", b"unsettled"):
        client10.send(sender, data(body))
    assert first.take(link, 1) == [b"settled"]
    first.receive(link)
    first.round_trip()
    first.cut()
    second = connect10(container=container)
    link = second.receiver("/exchanges/amq.topic", credit=2, prepare=durable(key), name=link_name)
    assert second.take(link, 1) == [b"unsettled"]
    assert second.empty(link)
    second.close_link(link)


def test_non_durable_subscription_ends_with_its_link(client10: Client10, name: Name) -> None:
    key = name()
    receiver = client10.receiver("/exchanges/amq.topic", prepare=filtered("legacy-amqp-topic-binding:string", key))
    sender = client10.sender(f"/exchanges/amq.topic/{key}")
    assert client10.send(sender, data(b"x")) == Delivery.ACCEPTED
    client10.close_link(receiver)
    assert client10.send(sender, data(b"y")) == Delivery.RELEASED
