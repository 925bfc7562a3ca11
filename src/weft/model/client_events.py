"""What a client machine tells: a closed set of frozen classes, made by the kernel and matched by `weft.client`.

Owns the rare events of one connection and its links. Deliveries and outcomes are no events: they are polled in batches.
Nothing here may import the rest of weft.
They are named tuples, because the client's start pays for each class that is made.
Rule: arguments by position, in this order; `condition` is the peer's AMQP error condition, empty where it gave none.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Opened(NamedTuple):
    """The peer answered `open`: who it is and what it offers."""

    container: str
    capabilities: tuple[str, ...]
    properties: dict[str, Any]


class KeyRequested(NamedTuple):
    """The peer wants a proof of the password: what PBKDF2 makes of it goes to `prove`. Slow, so on a thread."""

    salt: bytes
    iterations: int


class LoginFailed(NamedTuple):
    """The peer did not let us in; `Closed` follows. `temporary`: trying again may help."""

    text: str
    temporary: bool


class Attached(NamedTuple):
    """A link is ready, again after each reconnect; `filters` are those the peer applies."""

    link: int
    address: str | None
    filters: tuple[str, ...]
    properties: dict[str, Any]


class Detached(NamedTuple):
    """A link is gone for good."""

    link: int
    condition: str
    description: str


class Drained(NamedTuple):
    """The peer has used or given back the credit of a link."""

    link: int


class SessionEnded(NamedTuple):
    """A session is gone, and its links with it."""

    session: int
    condition: str
    description: str


class Closed(NamedTuple):
    """The connection is over; the transport is to be closed."""

    condition: str
    description: str
    by_peer: bool


ClientEvent = Opened | KeyRequested | LoginFailed | Attached | Detached | Drained | SessionEnded | Closed
