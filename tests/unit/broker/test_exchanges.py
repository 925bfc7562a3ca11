"""exchange.declare and exchange.delete, decided as RabbitMQ decides them."""

from __future__ import annotations

from typing import Any

import pytest

from unit.broker.desk import Desk, bind, delete_exchange, exchange, queue
from weft.model.changes import Accept, CreateVhost, DeclareExchange, DeleteExchange

DEFAULT = (403, "ACCESS_REFUSED - operation not permitted on the default exchange")


def test_predeclared(desk: Desk) -> None:
    types = {name: row.type for (_, name), row in desk.kernel.exchanges.items()}
    assert types == {
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
    }
    assert desk.topology.start()[0] == CreateVhost("/")


@pytest.mark.parametrize("type_", ["direct", "fanout", "topic", "headers"])
def test_a_new_exchange(desk: Desk, type_: Any) -> None:
    assert desk.ask(exchange("x", type_)) == [DeclareExchange("/", "x", type_), Accept(5)]
    assert desk.ask(exchange("x", type_)) == [Accept(5)]
    assert desk.ask(exchange("x", passive=True)) == [Accept(5)]


def test_options(desk: Desk) -> None:
    row = DeclareExchange("/", "x", "topic", internal=True, alternate="lost")
    assert desk.ask(exchange("x", "topic", internal=True, alternate_exchange="lost", x_foo=1))[0] == row


def test_passive_on_missing(desk: Desk) -> None:
    assert desk.fail(exchange("x", passive=True)) == (404, "NOT_FOUND - no exchange 'x' in vhost '/'")
    assert desk.fail(exchange("amq.x", passive=True))[0] == 404


def test_unknown_types_end_the_connection(desk: Desk) -> None:
    assert desk.fail(exchange("x", "zz")) == (503, "COMMAND_INVALID - unknown exchange type 'zz'")
    assert desk.fail(exchange("x", "")) == (503, "COMMAND_INVALID - invalid exchange type ''")


def test_delayed_exchanges(desk: Desk) -> None:
    row = DeclareExchange("/", "x", "topic", delayed=True)
    assert desk.ask(exchange("x", "x-delayed-message", x_delayed_type="topic"))[0] == row
    assert desk.fail(exchange("x", "x-delayed-message", x_delayed_type="fanout"))[0] == 406
    for wrong in ({}, {"x_delayed_type": "zz"}, {"x_delayed_type": [1]}, {"x_delayed_type": "x-delayed-message"}):
        code, text = desk.fail(exchange("y", "x-delayed-message", **wrong))
        assert code == 406
        assert text.startswith("PRECONDITION_FAILED - invalid arg 'x-delayed-type' for exchange 'y'")


def test_reserved_names(desk: Desk) -> None:
    text = "ACCESS_REFUSED - exchange name 'amq.foo' contains reserved prefix 'amq.*'"
    assert desk.fail(exchange("amq.foo")) == (403, text)
    desk.succeed(exchange("amq.direct", durable=True))


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (exchange("x", "topic"), "'type' for exchange 'x' in vhost '/': received 'topic' but current is 'direct'"),
        (
            exchange("x", durable=True),
            "'durable' for exchange 'x' in vhost '/': received 'true' but current is 'false'",
        ),
        (exchange("x", auto_delete=True), "'auto_delete' for exchange 'x'"),
        (exchange("x", internal=True), "'internal' for exchange 'x'"),
        (
            exchange("x", alternate_exchange="a"),
            "'alternate-exchange' for exchange 'x' in vhost '/': received the value 'a' of type 'longstr'"
            " but current is none",
        ),
    ],
)
def test_redeclaring_differently(desk: Desk, wanted: Any, text: str) -> None:
    desk.succeed(exchange("x"))
    code, found = desk.fail(wanted)
    assert code == 406
    assert found.startswith(f"PRECONDITION_FAILED - inequivalent arg {text}")


def test_an_alternate_must_be_a_name(desk: Desk) -> None:
    text = "PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    assert desk.fail(exchange("x", alternate_exchange=5)) == (406, text)


@pytest.mark.parametrize("operation", [exchange(""), exchange("", passive=True), delete_exchange("")])
def test_the_default_exchange_is_as_it_is(desk: Desk, operation: Any) -> None:
    assert desk.fail(operation) == DEFAULT


def test_deleting(desk: Desk) -> None:
    desk.ask(exchange("x"))
    assert desk.ask(delete_exchange("x")) == [DeleteExchange("/", "x"), Accept(5)]
    assert desk.ask(delete_exchange("x")) == [Accept(5)]


@pytest.mark.parametrize("name", ["amq.direct", "amq.none"])
def test_system_exchanges_stay(desk: Desk, name: str) -> None:
    text = f"ACCESS_REFUSED - deletion of system exchange '{name}' in vhost '/' not allowed"
    assert desk.fail(delete_exchange(name)) == (403, text)


def test_deleting_if_unused(desk: Desk) -> None:
    desk.ask(exchange("x"))
    desk.ask(queue("q"))
    desk.ask(bind("x", "q"))
    assert desk.fail(delete_exchange("x", if_unused=True)) == (
        406,
        "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use",
    )
    desk.succeed(delete_exchange("x"))
    assert desk.kernel.bound() == set()
    desk.ask(exchange("x"))
    desk.ask(bind("amq.direct", "x", kind="exchange"))
    desk.succeed(delete_exchange("x", if_unused=True))


@pytest.mark.parametrize("operation", [exchange("x"), delete_exchange("x")])
def test_configure_is_needed(desk: Desk, operation: Any) -> None:
    desk.access.refused = {("configure", "exchange", "x")}
    assert desk.fail(operation)[0] == 403


@pytest.mark.parametrize("refused", [("read", "exchange", "x"), ("write", "exchange", "lost")])
def test_an_alternate_needs_both_ends(desk: Desk, refused: tuple[str, str, str]) -> None:
    desk.access.refused = {refused}
    assert desk.fail(exchange("x", alternate_exchange="lost"))[0] == 403
    desk.succeed(exchange("x"))
