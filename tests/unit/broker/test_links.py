"""AMQP 1.0 links: what an address means, what a terminus becomes."""

from __future__ import annotations

from typing import Any

import pytest

from unit.broker.desk import CONN, OTHER_CONN, Desk, bind, exchange, queue
from weft.broker import TopologySettings
from weft.broker.filters import DIRECT, HEADERS, NO_LOCAL, SELECTOR, TOPIC
from weft.model.changes import AcceptLink, DeclareQueue, SetAddress
from weft.model.events import AttachRequested, Terminus


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.ask(queue("jobs"))
    desk.ask(queue("a/b c"))
    desk.ask(exchange("orders", "topic"))
    desk.ask(exchange("hidden", "fanout", internal=True))
    return desk


def to(address: str | None, **more: Any) -> Terminus:
    return Terminus(address, **more)


QUEUE_FORMS = ["jobs", "/queues/jobs", "/queues/%6Aobs", "/queue/jobs", "/amq/queue/jobs", "queue://jobs"]


@pytest.mark.parametrize("address", QUEUE_FORMS)
def test_queues_as_target_and_source(desk: Desk, address: str) -> None:
    assert desk.attach(to(address), sends=True) == AcceptLink(6, address, queue="jobs")
    assert desk.attach(to(address), sends=False) == AcceptLink(6, address, queue="jobs")


@pytest.mark.parametrize(
    ("address", "name", "key"),
    [
        ("orders", "orders", None),
        ("orders/eu.new", "orders", "eu.new"),
        ("orders/a/b", "orders", "a/b"),
        ("orders/", "orders", ""),
        ("/exchanges/orders", "orders", None),
        ("/exchanges/orders/eu%2Fnew", "orders", "eu/new"),
        ("/exchange/orders/k", "orders", "k"),
        ("/topic/news", "amq.topic", "news"),
        ("topic://news", "amq.topic", "news"),
        ("amq.fanout", "amq.fanout", None),
    ],
)
def test_exchanges_as_target(desk: Desk, address: str, name: str, key: str | None) -> None:
    assert desk.attach(to(address), sends=True) == AcceptLink(6, address, exchange=name, routing_key=key)


def test_percent_encoding(desk: Desk) -> None:
    assert desk.attach(to("/queues/a%2Fb%20c"), sends=True).queue == "a/b c"
    assert desk.attach(to("a/b c"), sends=True).queue == "a/b c"
    for wrong in ("/queues/%", "/queues/%zz", "/queues/%ff", "/exchanges/orders/%4"):
        code, text = desk.fail_attach(to(wrong), sends=True)
        assert code == 404
        assert "percent-encoded" in text


def test_an_exact_queue_comes_before_an_exchange(desk: Desk) -> None:
    desk.ask(queue("orders"))
    assert desk.attach(to("orders"), sends=True).queue == "orders"
    desk.ask(queue("orders/eu"))
    assert desk.attach(to("orders/eu"), sends=True).queue == "orders/eu"
    assert desk.attach(to("orders/us"), sends=True).exchange == "orders"


@pytest.mark.parametrize("sends", [True, False])
def test_a_missing_plain_address_becomes_a_queue(desk: Desk, sends: bool) -> None:
    changes = desk.tell(AttachRequested(6, CONN, 1, "l", sends, to("new")))
    assert changes == [DeclareQueue("/", "new", durable=True), AcceptLink(6, "new", queue="new")]
    assert desk.attach(to("/queue/other"), sends=sends).queue == "other"


@pytest.mark.parametrize("address", ["/queues/no", "/exchanges/no", "/exchanges/no/k", "/amq/queue/no", "/exchange/no"])
def test_what_must_exist_is_not_made(desk: Desk, address: str) -> None:
    assert desk.fail_attach(to(address), sends=True)[0] == 404
    assert desk.fail_attach(to(address), sends=False)[0] == 404


@pytest.mark.parametrize("address", ["amq.foo", "$other", "/management", "q" * 256])
def test_reserved_names_are_not_made(desk: Desk, address: str) -> None:
    code, text = desk.fail_attach(to(address), sends=True)
    assert (code, text[:12]) == (404, "NOT_FOUND - ")


def test_making_can_be_turned_off_and_needs_configure() -> None:
    desk = Desk(settings=TopologySettings(auto_create_queues=False))
    assert desk.fail_attach(to("new"), sends=True) == (404, "NOT_FOUND - no queue or exchange 'new' in vhost '/'")
    desk = Desk()
    desk.access.refused = {("configure", "queue", "new")}
    assert desk.fail_attach(to("new"), sends=False)[0] == 403


@pytest.mark.parametrize("address", [None, ""])
def test_the_anonymous_terminus(desk: Desk, address: str | None) -> None:
    assert desk.attach(to(address), sends=True) == AcceptLink(6, None, anonymous=True)


def test_permissions_of_targets(desk: Desk) -> None:
    desk.access.refused = {("write", "exchange", "")}
    assert desk.fail_attach(to("jobs"), sends=True)[0] == 403
    assert desk.fail_attach(to("new"), sends=True)[0] == 403
    assert "new" not in desk.kernel.queue_names()
    desk.access.refused = {("write", "exchange", "orders")}
    assert desk.fail_attach(to("orders/k"), sends=True)[0] == 403
    desk.attach(to("jobs"), sends=True)


def test_internal_exchanges_take_nothing_from_peers(desk: Desk) -> None:
    code, text = desk.fail_attach(to("hidden"), sends=True)
    assert (code, text) == (403, "ACCESS_REFUSED - cannot publish to internal exchange 'hidden' in vhost '/'")
    assert desk.send_to("hidden").code == 403


def test_permissions_of_sources(desk: Desk) -> None:
    desk.access.refused = {("read", "queue", "jobs"), ("read", "exchange", "orders")}
    assert desk.fail_attach(to("jobs"), sends=False)[0] == 403
    assert desk.fail_attach(to("orders"), sends=False)[0] == 403


def test_exclusive_queues_are_read_by_their_connection_only(desk: Desk) -> None:
    desk.ask(queue("mine", exclusive=True))
    assert desk.fail_attach(to("mine"), sends=False, conn=OTHER_CONN)[0] == 405
    desk.attach(to("mine"), sends=False)
    desk.attach(to("mine"), sends=True, conn=OTHER_CONN)


def test_browsing_and_filters_on_a_queue(desk: Desk) -> None:
    filters = {SELECTOR: "colour = 'red'", NO_LOCAL: [], TOPIC: "a.#", "example.org:unknown": 1}
    link = desk.attach(to("jobs", distribution="copy", filters=filters), sends=False)
    assert link == AcceptLink(
        6,
        "jobs",
        queue="jobs",
        browse=True,
        selector="colour = 'red'",
        subject_filter="a.#",
        no_local=True,
        filters=(TOPIC, NO_LOCAL, SELECTOR),
    )


@pytest.mark.parametrize(
    ("filters", "subject", "applied"),
    [
        ({DIRECT: "a.b"}, "a.b", (DIRECT,)),
        ({DIRECT: "a.*"}, None, ()),
        ({DIRECT: "x", TOPIC: "y"}, "y", (TOPIC,)),
        ({HEADERS: {"a": 1}}, None, ()),
        ({TOPIC: 5, SELECTOR: None, DIRECT: b"x"}, None, ()),
    ],
)
def test_filters_that_are_not_applied_are_not_echoed(
    desk: Desk, filters: Any, subject: str | None, applied: tuple[str, ...]
) -> None:
    link = desk.attach(to("jobs", filters=filters), sends=False)
    assert (link.subject_filter, link.filters, link.selector) == (subject, applied, None)


def test_capabilities_are_echoed_if_true(desk: Desk) -> None:
    assert desk.attach(to("jobs", capabilities=("queue", "x")), sends=True).capabilities == ("queue",)
    assert desk.attach(to("jobs", capabilities=("queue", "x")), sends=False).capabilities == ("queue",)
    assert desk.attach(to("orders", capabilities=("topic", "queue")), sends=True).capabilities == ("topic",)


def test_topics_of_jms_live_on_amq_topic(desk: Desk) -> None:
    sender = desk.attach(to("news", capabilities=("topic",)), sends=True)
    assert sender == AcceptLink(6, "news", exchange="amq.topic", routing_key="news", capabilities=("topic",))
    receiver = desk.attach(to("news", capabilities=("topic",)), sends=False)
    assert ("amq.topic", "news", receiver.queue) in desk.kernel.bound()
    jobs = desk.attach(to("jobs", capabilities=("topic",)), sends=True)
    assert (jobs.exchange, jobs.routing_key) == ("amq.topic", "jobs")


# messages that say themselves where they go


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("jobs", ("", "jobs")),
        ("/queues/jobs", ("", "jobs")),
        ("orders", ("orders", None)),
        ("orders/k", ("orders", "k")),
        ("/exchanges/orders/k", ("orders", "k")),
        ("amq.rabbitmq.reply-to.g1", ("", "amq.rabbitmq.reply-to.g1")),
        ("/queues/amq.rabbitmq.reply-to.g1", ("", "amq.rabbitmq.reply-to.g1")),
        ("fresh", ("", "fresh")),
    ],
)
def test_addresses_of_messages(desk: Desk, address: str, place: tuple[str, str | None]) -> None:
    assert desk.send_to(address) == SetAddress(1, address, *place)


def test_an_address_someone_subscribed_to_is_a_topic(desk: Desk) -> None:
    desk.attach(to("news", capabilities=("topic",)), sends=False)
    assert desk.send_to("news") == SetAddress(1, "news", "amq.topic", "news")


def test_addresses_that_lead_nowhere(desk: Desk) -> None:
    row = desk.send_to("/queues/no")
    assert (row.exchange, row.code, row.text) == (None, 404, "NOT_FOUND - no queue 'no' in vhost '/'")
    desk.access.refused = {("write", "exchange", "")}
    assert desk.send_to("jobs").code == 403
    assert desk.send_to("fresh").code == 403
    assert "fresh" not in desk.kernel.queue_names()


def test_bindings_made_by_hand_are_left_alone(desk: Desk) -> None:
    desk.ask(bind("orders", "jobs", "#"))
    desk.attach(to("orders"), sends=False)
    assert ("orders", "#", "jobs") in desk.kernel.bound()
