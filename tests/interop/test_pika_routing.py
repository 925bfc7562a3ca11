"""Which queue gets which message, for every exchange type.

Owns the routing matrix (R117, R120): bindings on one side, published keys and headers on the other, the set of queues
that must get a copy in the middle. pika is the client and RabbitMQ the reference. Tables are data; the tests only run
them. Rules: AMQP 0-9-1 section 3.1.3 and RabbitMQ's `all-with-x` / `any-with-x` for the headers exchange.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .support import take_all

Name = Callable[..., str]


def route(
    channel: BlockingChannel, name: Name, kind: str, bindings: list[dict[str, Any]], published: dict[str, Any]
) -> list[int]:
    """Bind one queue per binding, publish one message, and say which got it (a queue with two copies counts twice)."""
    exchange = name("exchange")
    channel.exchange_declare(exchange, kind, auto_delete=True)
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in bindings]
    for queue, binding in zip(queues, bindings, strict=True):
        channel.queue_bind(queue, exchange, **binding)
    channel.confirm_delivery()
    properties = pika.BasicProperties(headers=published.get("headers"))
    channel.basic_publish(exchange, published.get("key", ""), b"x", properties)
    return [number for number, queue in enumerate(queues) for _ in take_all(channel, queue)]


@pytest.mark.parametrize(
    ("key", "reached"),
    [("red", [0, 3]), ("blue", [1]), ("Red", []), ("", [2]), ("red ", []), ("#", [4]), ("red.dark", [])],
)
def test_direct(channel: BlockingChannel, name: Name, key: str, reached: list[int]) -> None:
    bindings = [{"routing_key": each} for each in ("red", "blue", "", "red", "#")]
    assert route(channel, name, "direct", bindings, {"key": key}) == reached


@pytest.mark.parametrize("key", ["", "anything", "a.b.c", "x" * 255])
def test_fanout(channel: BlockingChannel, name: Name, key: str) -> None:
    bindings = [{"routing_key": each} for each in ("", "ignored", "#")]
    assert route(channel, name, "fanout", bindings, {"key": key}) == [0, 1, 2]


PATTERNS = [
    "stock.usd.nyse",
    "stock.*.nyse",
    "*.*.*",
    "stock.#",
    "#.nyse",
    "#",
    "*",
    "",
    "stock.#.nyse",
    "#.usd.#",
    "*.#",
    "#.*",
    "*.#.*",
]
TOPICS: list[tuple[str, set[str]]] = [
    (
        "stock.usd.nyse",
        {
            "stock.usd.nyse",
            "stock.*.nyse",
            "*.*.*",
            "stock.#",
            "#.nyse",
            "#",
            "stock.#.nyse",
            "#.usd.#",
            "*.#",
            "#.*",
            "*.#.*",
        },
    ),
    ("stock", {"stock.#", "#", "*", "*.#", "#.*"}),
    ("stock.nyse", {"stock.#", "#.nyse", "#", "stock.#.nyse", "*.#", "#.*", "*.#.*"}),
    ("stock.eur.usd.nyse", {"stock.#", "#.nyse", "#", "stock.#.nyse", "#.usd.#", "*.#", "#.*", "*.#.*"}),
    ("usd", {"#", "*", "#.usd.#", "*.#", "#.*"}),
    ("", {"#", ""}),
    (".", {"#", "*.#", "#.*", "*.#.*"}),
    ("..", {"*.*.*", "#", "*.#", "#.*", "*.#.*"}),
    ("stock..nyse", {"stock.*.nyse", "*.*.*", "stock.#", "#.nyse", "#", "stock.#.nyse", "*.#", "#.*", "*.#.*"}),
    ("stock.", {"stock.#", "#", "*.#", "#.*", "*.#.*"}),
    ("STOCK.usd.nyse", {"*.*.*", "#.nyse", "#", "#.usd.#", "*.#", "#.*", "*.#.*"}),
]


@pytest.mark.parametrize(("key", "matching"), TOPICS, ids=[key or "empty" for key, _ in TOPICS])
def test_topic(channel: BlockingChannel, name: Name, key: str, matching: set[str]) -> None:
    reached = route(channel, name, "topic", [{"routing_key": pattern} for pattern in PATTERNS], {"key": key})
    assert {PATTERNS[number] for number in reached} == matching
    assert len(reached) == len(set(reached))


def test_topic_wildcards_count_only_as_whole_words(channel: BlockingChannel, name: Name) -> None:
    bindings = [{"routing_key": each} for each in ("st*", "stock#", "stock.*x")]
    assert route(channel, name, "topic", bindings, {"key": "stock.ax"}) == []
    assert route(channel, name, "topic", bindings, {"key": "st*"}) == [0]


def test_topic_queue_with_several_matches_gets_one_copy(channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    for pattern in (f"{queue}.#", f"{queue}.*", f"{queue}.a", f"#.{queue}.a"):
        channel.queue_bind(queue, "amq.topic", pattern)
    channel.basic_publish("amq.topic", f"{queue}.a", b"once")
    assert take_all(channel, queue) == [b"once"]
    channel.queue_unbind(queue, "amq.topic", f"{queue}.#")
    channel.queue_unbind(queue, "amq.topic", f"{queue}.*")
    channel.basic_publish("amq.topic", f"{queue}.a", b"still")
    channel.queue_unbind(queue, "amq.topic", f"#.{queue}.a")
    channel.queue_unbind(queue, "amq.topic", f"{queue}.a")
    channel.basic_publish("amq.topic", f"{queue}.a", b"no more")
    assert take_all(channel, queue) == [b"still"]


MATCHES: list[tuple[dict[str, Any], dict[str, Any] | None, bool]] = [
    ({"x-match": "all", "a": 1, "b": "two"}, {"a": 1, "b": "two", "c": 3}, True),
    ({"x-match": "all", "a": 1, "b": "two"}, {"a": 1}, False),
    ({"x-match": "all", "a": 1}, {"a": 2}, False),
    ({"x-match": "all", "a": 1}, {"a": "1"}, False),
    ({"a": 1, "b": 2}, {"a": 1}, False),  # all is the default
    ({"x-match": "any", "a": 1, "b": "two"}, {"b": "two"}, True),
    ({"x-match": "any", "a": 1, "b": "two"}, {"a": 2, "b": 2}, False),
    ({"x-match": "any", "a": 1}, {}, False),
    ({"x-match": "any"}, {"a": 1}, False),  # any of nothing
    ({"x-match": "all"}, {"a": 1}, True),  # all of nothing
    ({"x-match": "all"}, None, True),
    ({}, {}, True),
    ({"x-match": "all", "a": None}, {"a": "whatever"}, True),  # no value asks only that the header is there
    ({"x-match": "all", "a": None}, {"b": 1}, False),
    ({"x-match": "all", "x-a": 1, "b": 2}, {"b": 2}, True),  # names with x- do not count
    ({"x-match": "any", "x-a": 1}, {"x-a": 1}, False),
    ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
    ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"x-a": 1, "b": 2}, True),
    ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 1}, True),
    ({"x-match": "any-with-x", "x-a": 1}, {"x-a": 2}, False),
    ({"x-match": "all", "a": True}, {"a": True}, True),
    ({"x-match": "all", "a": True}, {"a": False}, False),
    ({"x-match": "all", "a": decimal.Decimal("1.5")}, {"a": decimal.Decimal("1.5")}, True),
    ({"x-match": "all", "a": ["x", 1]}, {"a": ["x", 1]}, True),
    ({"x-match": "all", "a": {"b": 1}}, {"a": {"b": 1}}, True),
    ({"x-match": "all", "a": {"b": 1}}, {"a": {"b": 2}}, False),
]


@pytest.mark.parametrize(("arguments", "headers", "reached"), MATCHES)
def test_headers(
    channel: BlockingChannel, name: Name, arguments: dict[str, Any], headers: dict[str, Any] | None, reached: bool
) -> None:
    got = route(channel, name, "headers", [{"arguments": arguments}], {"key": "ignored", "headers": headers})
    assert got == ([0] if reached else [])


def test_headers_bindings_differ_by_arguments(channel: BlockingChannel, name: Name) -> None:
    exchange = name("headers")
    channel.exchange_declare(exchange, "headers", auto_delete=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    for value in (1, 2):
        channel.queue_bind(queue, exchange, arguments={"a": value})
    channel.queue_unbind(queue, exchange, arguments={"a": 1})
    for value in (1, 2):
        channel.basic_publish(exchange, "", str(value).encode(), pika.BasicProperties(headers={"a": value}))
    assert take_all(channel, queue) == [b"2"]


def test_default_exchange_knows_every_queue_by_name(channel: BlockingChannel, name: Name) -> None:
    queues = [channel.queue_declare(name(), exclusive=True).method.queue for _ in range(5)]
    channel.confirm_delivery()
    for queue in queues:
        channel.basic_publish("", queue, queue.encode(), mandatory=True)
    assert [take_all(channel, queue) for queue in queues] == [[queue.encode()] for queue in queues]
    channel.queue_delete(queues[0])
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", queues[0], b"gone", mandatory=True)
