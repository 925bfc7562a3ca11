"""What a client machine tells: a closed set of frozen classes, made by the kernel and matched by `weft.client`.

Owns the rare events of one connection and its links. Deliveries and outcomes are no events: they are polled in batches.
Nothing here may import the rest of weft.
Rule: arguments by position, in this order; `condition` is the peer's AMQP error condition, empty where it gave none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer answered `open`: who it is and what it offers."""

    container: str
    capabilities: tuple[str, ...]
    properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoginFailed:
    """The peer did not let us in; `Closed` follows. `temporary`: trying again may help."""

    text: str
    temporary: bool


@dataclass(frozen=True, slots=True)
class Attached:
    """A link is ready, again after each reconnect; `filters` are those the peer applies."""

    link: int
    address: str | None
    filters: tuple[str, ...]
    properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Detached:
    """A link is gone for good."""

    link: int
    condition: str
    description: str


@dataclass(frozen=True, slots=True)
class Drained:
    """The peer has used or given back the credit of a link."""

    link: int


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session is gone, and its links with it."""

    session: int
    condition: str
    description: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is over; the transport is to be closed."""

    condition: str
    description: str
    by_peer: bool


ClientEvent = Opened | LoginFailed | Attached | Detached | Drained | SessionEnded | Closed
