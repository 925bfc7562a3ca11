"""What an AMQP 1.0 address means here.

Owns the forms of address this node understands and the order in which a plain one is tried.
An address and the tables come in; a `Place` (a queue, or an exchange with or without a key) or a refusal goes out.
It must not create anything or ask for permission: that is `links`' to do with the place.
Forms: plain (`queue`, `exchange`, `exchange/key`), RabbitMQ's v2 (`/queues/:q`, `/exchanges/:x/:key`) and v1
(`/queue/:q`,
`/amq/queue/:q`, `/exchange/:x/:key`, `/topic/:key`), percent-encoded, ActiveMQ's `queue://` and `topic://`, and
`service://`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from weft.broker.names import MANAGEMENT, is_reply_to
from weft.broker.tables import Tables
from weft.model.errors import Refused
from weft.model.names import clean_name
from weft.model.services import GATEWAY_EXCHANGE, SCHEME, impl_name, request_name

DEFAULT_EXCHANGE = ""
TOPIC_EXCHANGE = "amq.topic"
"""Where topics live that have no exchange of their own."""
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an address leads: to `queue`, or to `exchange`."""

    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    """With `exchange`: the key in the address; None if it has none."""
    is_missing: bool = False
    """The queue does not exist, but may be made."""


def resolve(tables: Tables, address: str, *, wants_topic: bool = False) -> Place:
    """The place an address leads to; Refused(404) if there is none."""
    for prefix, form in _FORMS.items():
        if address.startswith(prefix):
            return form(tables, address.removeprefix(prefix))
    return _plain(tables, address, wants_topic)


def served_queue(tables: Tables, service: str) -> Place:
    """Where a service takes its requests: a queue that is made for the first who serves."""
    queue = impl_name(_decode(service))
    return Place(queue=queue, is_missing=queue not in tables.queues)


def is_known_topic(tables: Tables, address: str) -> bool:
    """Does someone listen to a topic of exactly this name?"""
    return any(binding.routing_key == address for binding in tables.bindings.of_source(TOPIC_EXCHANGE))


def _plain(tables: Tables, address: str, wants_topic: bool) -> Place:
    name = clean_name(address)
    if name in tables.queues and not wants_topic:
        return Place(queue=name)
    if name == MANAGEMENT or is_reply_to(name):
        return Place(exchange=DEFAULT_EXCHANGE, routing_key=name)
    if name in tables.exchanges:
        return Place(exchange=name)
    exchange, slash, key = address.partition("/")
    if slash and clean_name(exchange) in tables.exchanges:
        return Place(exchange=clean_name(exchange), routing_key=key)
    if wants_topic:
        return Place(exchange=TOPIC_EXCHANGE, routing_key=address)
    return Place(queue=name, is_missing=True)


def _existing_queue(tables: Tables, rest: str) -> Place:
    name = clean_name(_decode(rest))
    if name == MANAGEMENT or is_reply_to(name):
        return Place(exchange=DEFAULT_EXCHANGE, routing_key=name)
    return Place(queue=tables.queue(name).name)


def _queue(tables: Tables, rest: str) -> Place:
    name = clean_name(_decode(rest))
    return Place(queue=name, is_missing=name not in tables.queues)


def _exchange(tables: Tables, rest: str) -> Place:
    name, slash, key = rest.partition("/")
    return Place(exchange=tables.exchange(clean_name(_decode(name))).name, routing_key=_decode(key) if slash else None)


def _topic(_tables: Tables, rest: str) -> Place:
    return Place(exchange=TOPIC_EXCHANGE, routing_key=_decode(rest))


def _service(tables: Tables, rest: str) -> Place:
    return Place(exchange=tables.exchange(GATEWAY_EXCHANGE).name, routing_key=request_name(_decode(rest)))


def _decode(text: str) -> str:
    if "%" not in text:
        return text
    if _BAD_ESCAPE.search(text):
        raise Refused(f"NOT_FOUND - '{text}' is not a percent-encoded name", 404)
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise Refused(f"NOT_FOUND - '{text}' is not a percent-encoded name in UTF-8", 404) from None


_FORMS: dict[str, Callable[[Tables, str], Place]] = {
    "/queues/": _existing_queue,
    "/exchanges/": _exchange,
    "/queue/": _queue,
    "/amq/queue/": _existing_queue,
    "/exchange/": _exchange,
    "/topic/": _topic,
    "queue://": _queue,
    "topic://": _topic,
    SCHEME: _service,
}
