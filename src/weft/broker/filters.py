"""Filters of an AMQP 1.0 source: which of them this node applies.

Owns the symbols of the Apache filter registry and the reading of their values.
The filter set of an attach comes in; the parts of the answer that it becomes go out, with the symbols really applied.
It must not refuse: a filter that is unknown or has a wrong value is not applied and not echoed, which tells the peer
(AMQP 1.0, 3.5.8).
Rule: on a queue, direct and topic filters skip what does not match; on an exchange, they and the headers filter are
the binding.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.model.events import Table
from weft.model.names import NAME_BYTES_MAX

DIRECT = "apache.org:legacy-amqp-direct-binding:string"
TOPIC = "apache.org:legacy-amqp-topic-binding:string"
HEADERS = "apache.org:legacy-amqp-headers-binding:map"
NO_LOCAL = "apache.org:no-local-filter:list"
SELECTOR = "apache.org:selector-filter:string"
STREAM = (
    "rabbitmq:stream-offset-spec",
    "rabbitmq:stream-filter",
    "rabbitmq:stream-match-unfiltered",
    "x-stream-offset",
    "x-stream-filter",
    "x-stream-match-unfiltered",
)
"""Filters of a source that is a stream; the kernel reads their values itself."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What the peer asked for and this node can do."""

    selector: str | None
    no_local: bool
    direct: str | None
    topic: str | None
    headers: Table | None
    stream: tuple[str, ...] = ()

    @property
    def binding_key(self) -> str | None:
        """The key a subscription is bound with."""
        return self.topic if self.topic is not None else self.direct

    @property
    def subject(self) -> str | None:
        """The pattern a queue's messages are compared with; words of a direct key must not be taken for wildcards."""
        if self.topic is not None or self.direct is None:
            return self.topic
        return None if {"*", "#"} & set(self.direct.split(".")) else self.direct

    def applied_to_queue(self, *, is_stream: bool = False) -> tuple[str, ...]:
        """Symbols to echo for a link from a queue."""
        is_direct = self.topic is None and self.subject is not None
        applied = self._applied({DIRECT: is_direct, TOPIC: self.topic is not None})
        return applied + self.stream if is_stream else applied

    def applied_to_exchange(self) -> tuple[str, ...]:
        """Symbols to echo for a link from an exchange."""
        is_direct = self.topic is None and self.direct is not None
        return self._applied({DIRECT: is_direct, TOPIC: self.topic is not None, HEADERS: self.headers is not None})

    def _applied(self, others: dict[str, bool]) -> tuple[str, ...]:
        applied = others | {NO_LOCAL: self.no_local, SELECTOR: self.selector is not None}
        return tuple(symbol for symbol, is_applied in applied.items() if is_applied)


def read_filters(filters: Table) -> Filters:
    """What of a filter set this node understands."""
    headers = filters.get(HEADERS)
    return Filters(
        selector=_text(filters.get(SELECTOR)),
        no_local=NO_LOCAL in filters,
        direct=_text(filters.get(DIRECT)),
        topic=_text(filters.get(TOPIC)),
        headers=headers if isinstance(headers, dict) and _is_field(headers) else None,
        stream=tuple(symbol for symbol in STREAM if symbol in filters),
    )


def _is_field(value: object) -> bool:
    """Can a 0-9-1 field table hold this? AMQP 1.0 has longer keys and larger numbers."""
    match value:
        case int():
            return -(2**63) <= value < 2**63
        case list():
            return all(_is_field(item) for item in value)
        case dict():
            return all(len(key.encode()) <= NAME_BYTES_MAX and _is_field(item) for key, item in value.items())
        case _:
            return True


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
