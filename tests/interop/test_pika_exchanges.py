"""Exchanges: declaring, checking, deleting, chaining.

Owns what an exchange is (its equivalence rules, its life) but not how each type matches, which is the routing file's.
pika is the client and RabbitMQ the reference. A test never relies on an exchange of another test. Rules: AMQP 0-9-1
section 1.6 and RabbitMQ's pages on alternate exchanges and exchange-to-exchange bindings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import Connect
from .support import channel_error, take_all

Name = Callable[..., str]


@pytest.fixture
def exchange(channel: BlockingChannel, name: Name) -> Any:
    """A function that declares an exchange of a type and deletes it after the test."""
    declared: list[str] = []

    def declare(kind: str, **options: Any) -> str:
        declared.append(name(kind))
        channel.exchange_declare(declared[-1], kind, **options)
        return declared[-1]

    yield declare
    with channel.connection.channel() as cleaner:
        for each in declared:
            cleaner.exchange_delete(each)


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    return str(channel.queue_declare(name("queue"), exclusive=True).method.queue)


@pytest.mark.parametrize(
    ("name_", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_standard_exchanges_exist(channel: BlockingChannel, name_: str, kind: str) -> None:
    channel.exchange_declare(name_, passive=True)
    channel.exchange_declare(name_, kind, durable=True)  # the same again is no change


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_declaring_the_same_again_is_accepted(channel: BlockingChannel, exchange: Any, kind: str) -> None:
    name = exchange(kind, durable=True)
    channel.exchange_declare(name, kind, durable=True)
    channel.exchange_declare(name, passive=True)
    channel.exchange_declare(name, "ignored", passive=True)  # a passive check looks at the name only


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"exchange_type": "topic"}, "type"),
        ({"durable": True}, "durable"),
        ({"auto_delete": True}, "auto_delete"),
        ({"internal": True}, "internal"),
        ({"arguments": {"alternate-exchange": "amq.fanout"}}, "alternate-exchange"),
    ],
    ids=["type", "durable", "auto-delete", "internal", "alternate"],
)
def test_declaring_something_else_under_the_name_is_refused(
    channel: BlockingChannel, connection: pika.BlockingConnection, exchange: Any, change: dict[str, Any], field: str
) -> None:
    name = exchange("direct")
    with channel_error(406, f"inequivalent arg '{field}' for exchange '{name}' in vhost '/'"):
        channel.exchange_declare(name, **{"exchange_type": "direct", **change})
    connection.channel().exchange_declare(name, "direct")


def test_deleting(channel: BlockingChannel, connection: pika.BlockingConnection, name: Name) -> None:
    exchange = name()
    channel.exchange_declare(exchange, "direct")
    channel.exchange_delete(exchange)
    channel.exchange_delete(exchange)  # gone already: no error
    with channel_error(404, f"no exchange '{exchange}' in vhost '/'"):
        channel.exchange_declare(exchange, passive=True)
    assert connection.is_open


def test_delete_if_unused_is_refused_while_bound(
    channel: BlockingChannel, connection: pika.BlockingConnection, exchange: Any, queue: str
) -> None:
    name = exchange("direct")
    channel.queue_bind(queue, name, "key")
    with channel_error(406, f"exchange '{name}' in vhost '/' in use"):
        channel.exchange_delete(name, if_unused=True)
    other = connection.channel()
    other.queue_unbind(queue, name, "key")
    other.exchange_delete(name, if_unused=True)
    with channel_error(404):
        other.exchange_declare(name, passive=True)


def test_deleting_an_exchange_removes_its_bindings(channel: BlockingChannel, name: Name, queue: str) -> None:
    exchange = name()
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(queue, exchange)
    channel.exchange_delete(exchange)
    channel.exchange_declare(exchange, "fanout")
    channel.basic_publish(exchange, "", b"unseen")
    assert take_all(channel, queue) == []
    channel.exchange_delete(exchange)


def test_auto_delete_exchange_goes_with_its_last_binding(channel: BlockingChannel, name: Name, queue: str) -> None:
    exchange = name()
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    channel.exchange_declare(exchange, passive=True)  # never bound: stays
    channel.queue_bind(queue, exchange, "one")
    channel.queue_bind(queue, exchange, "two")
    channel.queue_unbind(queue, exchange, "one")
    channel.exchange_declare(exchange, passive=True)
    channel.queue_unbind(queue, exchange, "two")
    with channel_error(404):
        channel.exchange_declare(exchange, passive=True)


def test_auto_delete_exchange_goes_with_the_last_queue(channel: BlockingChannel, name: Name, queue: str) -> None:
    exchange = name()
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    channel.queue_bind(queue, exchange, "one")
    channel.queue_delete(queue)
    with channel_error(404):
        channel.exchange_declare(exchange, passive=True)


def test_internal_exchange_takes_no_publish_but_routes(
    channel: BlockingChannel, connection: pika.BlockingConnection, exchange: Any, queue: str
) -> None:
    inner, outer = exchange("fanout", internal=True), exchange("fanout")
    channel.queue_bind(queue, inner)
    channel.exchange_bind(inner, outer)
    channel.basic_publish(outer, "", b"through")
    assert take_all(channel, queue) == [b"through"]
    direct = connection.channel()
    with channel_error(403, f"cannot publish to internal exchange '{inner}' in vhost '/'"):
        direct.basic_publish(inner, "", b"refused")
        direct.queue_declare("", exclusive=True)


def test_alternate_exchange_takes_what_nothing_matched(
    channel: BlockingChannel, exchange: Any, queue: str, name: Name
) -> None:
    unrouted = exchange("fanout")
    main = exchange("direct", arguments={"alternate-exchange": unrouted})
    known = channel.queue_declare(name("known"), exclusive=True).method.queue
    channel.queue_bind(known, main, "known")
    channel.queue_bind(queue, unrouted)
    channel.confirm_delivery()
    channel.basic_publish(main, "known", b"matched", mandatory=True)
    channel.basic_publish(main, "unknown", b"unmatched", mandatory=True)  # the alternate counts as routed
    assert take_all(channel, known) == [b"matched"]
    assert take_all(channel, queue) == [b"unmatched"]


def test_alternate_exchanges_chain_and_cycles_end(channel: BlockingChannel, name: Name, queue: str) -> None:
    first, second, third = name("first"), name("second"), name("third")
    for each, alternate in ((first, second), (second, third), (third, first)):
        channel.exchange_declare(each, "direct", arguments={"alternate-exchange": alternate})
    channel.queue_bind(queue, third, "deep")
    channel.confirm_delivery()
    channel.basic_publish(first, "deep", b"found", mandatory=True)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(first, "nowhere", b"round and round", mandatory=True)
    assert take_all(channel, queue) == [b"found"]
    for each in (first, second, third):
        channel.exchange_delete(each)


def test_missing_alternate_exchange_loses_quietly(channel: BlockingChannel, exchange: Any, name: Name) -> None:
    main = exchange("direct", arguments={"alternate-exchange": name("never-declared")})
    channel.confirm_delivery()
    channel.basic_publish(main, "any", b"dropped")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(main, "any", b"returned", mandatory=True)


def test_exchange_to_exchange_bindings(channel: BlockingChannel, exchange: Any, queue: str) -> None:
    source, target = exchange("topic"), exchange("direct")
    channel.exchange_bind(target, source, "stock.#")
    channel.queue_bind(queue, target, "stock.nyse")
    channel.basic_publish(source, "stock.nyse", b"both match")
    channel.basic_publish(source, "stock.lse", b"first only")
    channel.basic_publish(source, "bond.nyse", b"none")
    assert take_all(channel, queue) == [b"both match"]
    channel.exchange_unbind(target, source, "stock.#")
    channel.basic_publish(source, "stock.nyse", b"after")
    assert take_all(channel, queue) == []


def test_exchange_cycles_deliver_one_copy(channel: BlockingChannel, exchange: Any, queue: str) -> None:
    left, right = exchange("fanout"), exchange("fanout")
    channel.exchange_bind(left, right)
    channel.exchange_bind(right, left)
    channel.queue_bind(queue, left)
    channel.queue_bind(queue, right)
    channel.basic_publish(left, "", b"once")
    assert take_all(channel, queue) == [b"once"]


def test_durable_exchange_outlives_connections(connect: Connect, name: Name) -> None:
    exchange = name()
    connect().channel().exchange_declare(exchange, "topic", durable=True)
    channel = connect().channel()
    channel.exchange_declare(exchange, passive=True)
    channel.exchange_delete(exchange)
