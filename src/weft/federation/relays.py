"""Relays as values: two nodes that keep an exchange, or a queue, in step, and the link and routes that do it.

Owns the frozen `Relay`, its checks, and what it is made of. Tables come in from commands, files and the store; a link
and its routes go out, which federation carries as any others.
It must not know what a relay is doing now.
Rule: an exchange's messages go both ways, as far as the other side has bindings for them; a queue's go one way, since
each of them is one copy (docs/guides/network.md, "Relays").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.federation.records import (
    CREDIT_DEFAULT,
    EXPIRES_MS_DEFAULT,
    Link,
    RelayMode,
    Route,
    check_name,
    record_of,
    with_urls,
)
from weft.model.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Relay:
    """An exchange or a queue that this node and a peer have in common."""

    name: str
    urls: tuple[str, ...]
    """Where the peer is; the next is tried when one fails."""
    exchange: str = ""
    """Both sides get what their bindings ask for of what was published at the other."""
    queue: str = ""
    """What comes into this queue here goes to the queue of the same name there."""
    mode: RelayMode = "ring"
    vhost: str = "/"
    role: str = ""
    heartbeat_s: int = 5
    retry_max_s: int = 30
    tls_ca: str = ""
    credit: int = CREDIT_DEFAULT
    bytes_per_s_max: int = 0
    expires_ms: int = EXPIRES_MS_DEFAULT

    def __post_init__(self) -> None:
        check_name("relay", self.name)
        if bool(self.exchange) == bool(self.queue):
            raise ConfigError(f"relay {self.name!r} keeps either an exchange or a queue in step: name one of them")
        self.link, self.routes  # noqa: B018 - their own checks

    @property
    def link(self) -> Link:
        """The connection it needs; it is remembered with the relay."""
        waits: dict[str, Any] = {"heartbeat_s": self.heartbeat_s, "retry_max_s": self.retry_max_s}
        return Link(self.name, self.urls, self.role, durable=False, tls_ca=self.tls_ca, **waits)

    @property
    def routes(self) -> tuple[Route, ...]:
        """What the link carries: names end in `.in` and `.out`."""
        shared: dict[str, Any] = {
            "vhost": self.vhost,
            "credit": self.credit,
            "bytes_per_s_max": self.bytes_per_s_max,
            "expires_ms": self.expires_ms,
        }
        if self.queue:
            shared |= {"queue": self.queue, "key": self.queue}
            return (Route(f"{self.name}.out", self.name, "queue", direction="push", **shared),)
        shared |= {"exchange": self.exchange, "relay": self.mode}
        return (
            Route(f"{self.name}.in", self.name, "dynamic", direction="pull", **shared),
            Route(f"{self.name}.out", self.name, "dynamic", direction="push", **shared),
        )


def relay_of(table: Mapping[str, Any]) -> Relay:
    """A relay from a table; `urls` may be one text."""
    record: Relay = record_of(Relay, "relay", with_urls(table), ("name", "urls"))
    return record
