"""Receiving from an exchange: queues made for links, found again, and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unit.broker.desk import CONN, OTHER_CONN, Desk, exchange, queue
from weft.broker.filters import DIRECT, HEADERS, SELECTOR, TOPIC
from weft.model.changes import AcceptLink, Bind, DeclareQueue, DeleteQueue, Unbind
from weft.model.events import AttachRequested, ConnectionClosed, LinkClosed, QueueUnused, Terminus

DURABLE: dict[str, Any] = {"durable": 2, "expiry": "never"}


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.ask(exchange("orders", "topic"))
    desk.ask(exchange("plain", "direct"))
    return desk


def subscribe(
    desk: Desk, address: str | None = "orders", link: str = "sub", conn: int = CONN, **more: Any
) -> AcceptLink:
    return desk.attach(Terminus(address, **more), sends=False, link=link, conn=conn)


def test_a_queue_for_the_link(desk: Desk) -> None:
    changes = desk.tell(AttachRequested(6, CONN, 1, "sub", False, Terminus("orders")))
    assert changes == [
        DeclareQueue("/", "box_sub", auto_delete=True, owner=CONN),
        Bind("/", "orders", "queue", "box_sub", "#"),
        AcceptLink(6, "orders", queue="box_sub", discard=True),
    ]
    assert desk.tell(QueueUnused("/", "box_sub", "auto-delete")) == [DeleteQueue("/", "box_sub")]


@pytest.mark.parametrize(
    ("address", "filters", "key"),
    [
        ("orders", {}, "#"),
        ("orders/eu.*", {}, "eu.*"),
        ("orders", {TOPIC: "us.#"}, "us.#"),
        ("orders/eu", {TOPIC: "us.#"}, "us.#"),
        ("plain", {}, ""),
        ("plain", {DIRECT: "k"}, "k"),
        ("/exchanges/plain/k%2F", {}, "k/"),
        ("amq.fanout", {}, ""),
    ],
)
def test_the_key_of_the_binding(desk: Desk, address: str, filters: Any, key: str) -> None:
    link = subscribe(desk, address, filters=filters)
    assert {(bound[1], bound[2]) for bound in desk.kernel.bound()} == {(key, link.queue)}
    assert link.filters == tuple(filters)


def test_headers_and_selectors(desk: Desk) -> None:
    filters = {HEADERS: {"x-match": "any", "a": 1}, SELECTOR: "b = 2"}
    link = subscribe(desk, "amq.headers", filters=filters)
    assert (link.selector, link.filters) == ("b = 2", (HEADERS, SELECTOR))
    (row,) = desk.kernel.bindings.values()
    assert row.arguments == {"x-match": "any", "a": 1}
    wrong = Terminus("amq.headers", filters={HEADERS: {"x-match": "zz"}})
    assert desk.fail_attach(wrong, sends=False)[0] == 406


@pytest.mark.parametrize("headers", [{"k" * 256: 1}, {"n": 2**63}, {"deep": [{"n": -(2**64)}]}, "text"])
def test_headers_no_table_can_hold_are_not_applied(desk: Desk, headers: Any) -> None:
    link = subscribe(desk, "amq.headers", filters={HEADERS: headers})
    assert link.filters == ()
    (row,) = desk.kernel.bindings.values()
    assert row.arguments == {}


def test_another_connection_with_the_same_names_gets_its_own(desk: Desk) -> None:
    first = subscribe(desk)
    desk.topology._containers[OTHER_CONN] = "box"
    second = subscribe(desk, conn=OTHER_CONN)
    assert first.queue == "box_sub"
    assert second.queue not in (None, "box_sub")
    assert desk.kernel.queues["/", second.queue or ""].owner == OTHER_CONN


def test_coming_back_on_the_same_connection_finds_the_queue(desk: Desk) -> None:
    subscribe(desk, "orders/a")
    changes = desk.tell(AttachRequested(6, CONN, 1, "sub", False, Terminus("orders/b")))
    assert changes == [
        Bind("/", "orders", "queue", "box_sub", "b"),
        Unbind("/", "orders", "queue", "box_sub", "a"),
        AcceptLink(6, "orders/b", queue="box_sub", discard=True),
    ]


def test_a_subscription_may_live_as_long_as_its_connection(desk: Desk) -> None:
    link = subscribe(desk, expiry="connection-close")
    assert desk.kernel.queues["/", "box_sub"] == DeclareQueue("/", "box_sub", owner=CONN)
    assert link.watch
    assert desk.tell(LinkClosed(CONN, "/", "box_sub", "sub", closed=False)) == []
    assert desk.tell(ConnectionClosed(CONN, 1, "bye")) == [DeleteQueue("/", "box_sub")]


def test_a_subscription_may_outlive_its_connection_for_a_while(desk: Desk) -> None:
    link = subscribe(desk, expiry="link-detach", timeout_s=30)
    assert desk.kernel.queues["/", "box_sub"] == DeclareQueue("/", "box_sub", expires_ms=30_000)
    assert link.watch
    assert desk.tell(ConnectionClosed(CONN, 1, "bye")) == []
    assert desk.tell(QueueUnused("/", "box_sub", "expired")) == [DeleteQueue("/", "box_sub")]


# durable


def test_a_durable_subscription_is_found_again(desk: Desk) -> None:
    link = subscribe(desk, **DURABLE)
    assert link.watch
    assert desk.kernel.queues["/", "box_sub"] == DeclareQueue("/", "box_sub", durable=True)
    assert desk.tell(LinkClosed(CONN, "/", "box_sub", "sub", closed=False), ConnectionClosed(CONN, 1, "bye")) == []
    desk.topology._containers[9] = "box"
    changes = desk.tell(AttachRequested(6, 9, 1, "sub", False, Terminus("orders", **DURABLE)))
    assert changes == [AcceptLink(6, "orders", queue="box_sub", discard=True, watch=True)]


def test_closing_a_durable_subscription_ends_it(desk: Desk) -> None:
    subscribe(desk, **DURABLE)
    assert desk.tell(LinkClosed(CONN, "/", "box_sub", "sub", closed=True)) == [DeleteQueue("/", "box_sub")]
    assert desk.tell(LinkClosed(CONN, "/", "box_sub", "sub", closed=True)) == []


def test_a_durable_subscription_survives_a_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "definitions.db")
    subscribe(desk, "amq.topic/a", **DURABLE)
    desk.store.close()
    desk = Desk(tmp_path / "definitions.db")
    assert desk.kernel.bound() == {("amq.topic", "a", "box_sub")}
    assert subscribe(desk, "amq.topic/a", **DURABLE).queue == "box_sub"
    assert desk.tell(LinkClosed(CONN, "/", "box_sub", "sub", closed=True)) == [DeleteQueue("/", "box_sub")]
    desk.store.close()


def test_a_durable_subscription_needs_configure(desk: Desk) -> None:
    desk.access.refused = {("configure", "queue", "box_sub")}
    assert desk.fail_attach(Terminus("orders", **DURABLE), sends=False, link="sub")[0] == 403
    subscribe(desk)


def test_other_queues_are_not_taken_for_subscriptions(desk: Desk) -> None:
    desk.ask(queue("box_sub"))
    assert desk.fail_attach(Terminus("orders", **DURABLE), sends=False, link="sub")[0] == 405
    assert subscribe(desk).queue != "box_sub"


def test_a_changed_subscription_keeps_its_auto_delete_exchange(desk: Desk) -> None:
    desk.ask(exchange("auto", "topic", auto_delete=True))
    subscribe(desk, "auto/a", **DURABLE)
    subscribe(desk, "auto/b", **DURABLE)
    assert desk.kernel.bound() == {("auto", "b", "box_sub")}
    subscribe(desk, "orders", **DURABLE)
    assert desk.kernel.bound() == {("orders", "#", "box_sub")}
    assert ("/", "auto") not in desk.kernel.exchanges


# shared


def test_a_shared_subscription_is_named_by_its_link(desk: Desk) -> None:
    shared: dict[str, Any] = {"capabilities": ("shared", "topic")}
    first = subscribe(desk, link="team|1", **shared)
    second = subscribe(desk, link="team|2", conn=OTHER_CONN, **shared)
    assert first.queue == second.queue == "team"
    assert first.capabilities == ("shared", "topic")
    assert desk.kernel.queues["/", "team"] == DeclareQueue("/", "team", auto_delete=True)


def test_a_shared_durable_subscription_ends_with_its_last_link(desk: Desk) -> None:
    subscribe(desk, link="team", capabilities=("shared",), **DURABLE)
    desk.stats["team"] = (0, 0, 1)
    assert desk.tell(LinkClosed(CONN, "/", "team", "team", closed=True)) == []
    desk.stats["team"] = (5, 0, 0)
    assert desk.tell(LinkClosed(CONN, "/", "team", "team", closed=True)) == [DeleteQueue("/", "team")]


def test_who_joins_must_be_allowed_to_read_what_waits(desk: Desk) -> None:
    subscribe(desk, "orders", link="team", capabilities=("shared",))
    desk.access.refused = {("read", "exchange", "orders")}
    other = Terminus("plain", capabilities=("shared",))
    assert desk.fail_attach(other, sends=False, link="team", conn=OTHER_CONN)[0] == 403


# unsubscribing as JMS does: a link of that name without a source, then closed


def test_a_link_without_source_recalls_its_subscription(desk: Desk) -> None:
    subscribe(desk, "orders/a", **DURABLE)
    assert subscribe(desk, None) == AcceptLink(6, "orders/a", queue="box_sub", watch=True)
    assert desk.tell(LinkClosed(CONN, "/", "box_sub", "sub", closed=True)) == [DeleteQueue("/", "box_sub")]
    code, text = desk.fail_attach(Terminus(None), sends=False, link="sub")
    assert (code, text) == (404, "NOT_FOUND - no subscription 'sub' in vhost '/'")


def test_shared_ones_are_recalled_by_the_link_alone(desk: Desk) -> None:
    subscribe(desk, link="team|global", capabilities=("shared", "global"), **DURABLE)
    assert subscribe(desk, None, link="team|global", conn=OTHER_CONN).queue == "team"
    desk.access.refused = {("configure", "queue", "team")}
    assert desk.fail_attach(Terminus(None), sends=False, link="team|global")[0] == 403


def test_long_names_stay_within_bounds_and_stay_the_same(desk: Desk) -> None:
    link = "é" * 300
    name = subscribe(desk, link=link, **DURABLE).queue or ""
    assert len(name.encode()) <= 255
    assert subscribe(desk, link=link, **DURABLE).queue == name
    assert subscribe(desk, link=link + "x", **DURABLE).queue != name
