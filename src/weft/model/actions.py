"""What controllers ask of the node itself: sockets to open and to close.

Owns the closed set of frozen action classes. A controller answers events with changes, which go to the engine, and with
actions, which go to the node; what becomes of an action comes back as an event (`Dialled`, `DialFailed`).
Nothing here may import the rest of weft or hold behaviour.
Rule: an action names its dial by a number of the caller's choice, so that late answers find their question.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Trust:
    """TLS as a client: whom to believe, and who we are."""

    ca_file: Path | None = None
    """Certificates of the authorities to trust; None takes the system's."""
    certificate: Path | None = None
    key: Path | None = None
    """Our own certificate and its key, for SASL EXTERNAL."""
    server_name: str | None = None
    """The name the peer's certificate must have; None takes the host that is dialled."""
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to a peer and speak AMQP 1.0 first. Dialled or DialFailed follows, then PeerOpened or
    ConnectionClosed.
    """

    dial: int
    host: str
    port: int
    trust: Trust | None = None
    """TLS, if the peer speaks it."""
    mechanism: str = "ANONYMOUS"
    """PLAIN, EXTERNAL or ANONYMOUS; empty leaves SASL out."""
    response: bytes = field(default=b"", repr=False)
    """What the mechanism sends, such as NUL user NUL password for PLAIN."""
    hostname: str = ""
    """open.hostname; `vhost:NAME` chooses a virtual host."""
    container: str = ""
    """Our container id; the node's name by default."""
    principal: int = 0
    """Who the peer is here, for links that it attaches itself; 0 refuses them."""
    idle_ms: int = 10_000
    """The peer must say something at least this often: after twice as long the connection is given up."""
    delay_ms: int = 0
    """How long to wait first: retries are paced with this."""
    timeout_ms: int = 10_000
    """How long the socket and TLS may take."""


@dataclass(frozen=True, slots=True)
class Hangup:
    """Give a dial up: it is not made, or its connection is closed."""

    dial: int


Action = Dial | Hangup
