"""Binding and unbinding, and what goes when the last binding goes."""

from __future__ import annotations

from typing import Any

import pytest

from unit.broker.desk import OTHER_CONN, Desk, bind, delete_exchange, delete_queue, exchange, queue, unbind
from weft.model.changes import Accept, Bind, DeleteExchange, DeleteQueue, Unbind
from weft.model.events import ConnectionClosed

DEFAULT = (403, "ACCESS_REFUSED - operation not permitted on the default exchange")


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.ask(exchange("x", "topic"))
    desk.ask(queue("q"))
    return desk


def test_bind_and_unbind(desk: Desk) -> None:
    assert desk.ask(bind("x", "q", "a.#", n=1)) == [Bind("/", "x", "queue", "q", "a.#", {"n": 1}), Accept(5)]
    assert desk.ask(bind("x", "q", "a.#", n=1)) == [Accept(5)]
    assert desk.ask(unbind("x", "q", "a.#")) == [Accept(5)]
    assert desk.ask(unbind("x", "q", "a.#", n=1)) == [Unbind("/", "x", "queue", "q", "a.#", {"n": 1}), Accept(5)]
    assert desk.ask(unbind("x", "q", "a.#", n=1)) == [Accept(5)]


def test_unbinding_names_the_binding_as_it_was_made(desk: Desk) -> None:
    desk.ask(bind("amq.headers", "q", a=1, b=2))
    row = desk.ask(unbind("amq.headers", "q", b=2, a=1))[0]
    assert isinstance(row, Unbind)
    assert list(row.arguments) == ["a", "b"]


def test_between_exchanges(desk: Desk) -> None:
    assert desk.ask(bind("x", "amq.fanout", "k", "exchange"))[0] == Bind("/", "x", "exchange", "amq.fanout", "k")
    assert desk.ask(bind("x", "x", "k", "exchange"))[0] == Bind("/", "x", "exchange", "x", "k")
    assert desk.ask(unbind("x", "amq.fanout", "k", "exchange"))[0] == Unbind("/", "x", "exchange", "amq.fanout", "k")


@pytest.mark.parametrize(
    ("operation", "missing"),
    [
        (bind("x", "no"), "queue 'no'"),
        (bind("no", "q"), "exchange 'no'"),
        (bind("no1", "no2"), "exchange 'no1'"),
        (bind("x", "no", kind="exchange"), "exchange 'no'"),
        (bind("x", "amq.rabbitmq.reply-to"), "queue 'amq.rabbitmq.reply-to'"),
    ],
)
def test_missing_ends(desk: Desk, operation: Any, missing: str) -> None:
    assert desk.fail(operation) == (404, f"NOT_FOUND - no {missing} in vhost '/'")


@pytest.mark.parametrize("operation", [unbind("x", "no"), unbind("no", "q"), unbind("x", "q", "other")])
def test_undoing_what_is_not_there_succeeds(desk: Desk, operation: Any) -> None:
    assert desk.ask(operation) == [Accept(5)]


@pytest.mark.parametrize("make", [bind, unbind])
def test_the_default_exchange_cannot_be_bound(desk: Desk, make: Any) -> None:
    assert desk.fail(make("", "q", "q")) == DEFAULT
    assert desk.fail(make("", "x", kind="exchange")) == DEFAULT
    assert desk.fail(make("x", "", kind="exchange")) == DEFAULT


def test_queues_of_others_cannot_be_bound(desk: Desk) -> None:
    desk.ask(queue("mine", exclusive=True))
    assert desk.fail(bind("x", "mine"), OTHER_CONN)[0] == 405
    desk.succeed(unbind("x", "mine"), OTHER_CONN)
    desk.succeed(bind("x", "mine"))
    assert desk.fail(unbind("x", "mine"), OTHER_CONN)[0] == 405


@pytest.mark.parametrize("match", ["all", "any", "all-with-x", "any-with-x"])
def test_headers_matches(desk: Desk, match: str) -> None:
    desk.succeed(bind("amq.headers", "q", x_match=match))


def test_wrong_headers_matches(desk: Desk) -> None:
    assert desk.fail(bind("amq.headers", "q", x_match="zz"))[0] == 406
    assert desk.fail(bind("amq.match", "q", x_match=1))[0] == 406
    desk.succeed(bind("amq.topic", "q", x_match="zz"))
    desk.ask(exchange("later", "x-delayed-message", x_delayed_type="headers"))
    assert desk.fail(bind("later", "q", x_match="zz"))[0] == 406


@pytest.mark.parametrize("make", [bind, unbind])
@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_write_on_the_destination_and_read_on_the_source(desk: Desk, make: Any, kind: str) -> None:
    desk.ask(exchange("q"))
    desk.access.refused = {("write", kind, "q")}
    assert desk.fail(make("x", "q", kind=kind)) == (403, f"ACCESS_REFUSED - write access to {kind} 'q'")
    desk.access.refused = {("read", "exchange", "x")}
    assert desk.fail(make("x", "q", kind=kind)) == (403, "ACCESS_REFUSED - read access to exchange 'x'")


# what goes along


def test_a_queue_takes_its_bindings_along(desk: Desk) -> None:
    desk.ask(bind("x", "q", "a"))
    desk.ask(bind("amq.fanout", "q"))
    desk.ask(delete_queue("q"))
    assert desk.topology.bindings("/") == []
    desk.ask(queue("q"))
    assert desk.ask(bind("x", "q", "a"))[0] == Bind("/", "x", "queue", "q", "a")


def test_an_auto_delete_exchange_goes_with_its_last_binding(desk: Desk) -> None:
    desk.ask(exchange("auto", auto_delete=True))
    desk.ask(bind("auto", "q", "a"))
    desk.ask(bind("auto", "q", "b"))
    assert desk.ask(unbind("auto", "q", "a")) == [Unbind("/", "auto", "queue", "q", "a"), Accept(5)]
    changes = desk.ask(unbind("auto", "q", "b"))
    assert changes == [Unbind("/", "auto", "queue", "q", "b"), DeleteExchange("/", "auto"), Accept(5)]
    assert desk.fail(exchange("auto", passive=True))[0] == 404


def test_it_goes_with_its_last_queue_however_that_goes(desk: Desk) -> None:
    desk.ask(exchange("auto", auto_delete=True))
    desk.ask(queue("mine", exclusive=True))
    desk.ask(bind("auto", "mine", "a"))
    desk.ask(bind("auto", "mine", "b"))
    assert desk.tell(ConnectionClosed(7, 1, "bye")) == [DeleteQueue("/", "mine"), DeleteExchange("/", "auto")]


def test_chains_of_auto_delete_exchanges_go_at_once(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        desk.ask(exchange(name, "fanout", auto_delete=True))
    desk.ask(bind("a", "b", kind="exchange"))
    desk.ask(bind("b", "c", kind="exchange"))
    desk.ask(bind("c", "q"))
    desk.ask(bind("x", "a", kind="exchange"))
    gone = [DeleteQueue("/", "q"), *(DeleteExchange("/", name) for name in ("c", "b", "a"))]
    assert desk.ask(delete_queue("q"))[:-1] == gone
    assert desk.topology.bindings("/") == []
    assert "x" in {found.name for found in desk.topology.exchanges("/")}


def test_rings_of_auto_delete_exchanges_end(desk: Desk) -> None:
    desk.ask(exchange("a", "fanout", auto_delete=True))
    desk.ask(exchange("b", "fanout", auto_delete=True))
    desk.ask(bind("a", "b", kind="exchange"))
    desk.ask(bind("b", "a", kind="exchange"))
    changes = desk.ask(delete_exchange("a"))
    assert changes == [DeleteExchange("/", "a"), DeleteExchange("/", "b"), Accept(5)]


def test_an_auto_delete_exchange_never_bound_stays(desk: Desk) -> None:
    desk.ask(exchange("auto", auto_delete=True))
    desk.ask(delete_queue("q"))
    desk.succeed(exchange("auto", passive=True))


def test_who_may_not_read_a_topic_may_not_bind_by_it(desk: Desk) -> None:
    desk.succeed(exchange("news", "topic"))
    desk.succeed(exchange("plain", "direct"))
    desk.succeed(queue("q"))
    desk.access.refused |= {("topic", "news", "us.#"), ("topic", "plain", "us.#")}
    assert desk.fail(bind("news", "q", "us.#"))[0] == 403
    desk.succeed(bind("news", "q", "eu.#"))
    desk.succeed(bind("plain", "q", "us.#"))
