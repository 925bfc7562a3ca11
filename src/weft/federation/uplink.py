"""One link's life: waiting, connecting, operational, and the reason for each.

Owns the state machine of a link: which address is tried next and when. Dialled, DialFailed, PeerOpened and
ConnectionClosed come in; a `Dial` to carry out goes out when it is due.
It must not open sockets or know routes: it says what is to be done and when to ask again.
Rule: every address is tried once before the wait grows (qpidd's failover list); a refused password is tried again too,
at the longest wait, because operators mend passwords at the other end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from weft.federation.backoff import wait_ns
from weft.federation.records import Link, Peer
from weft.model.actions import Dial, Trust
from weft.model.events import Table

State = Literal["waiting", "connecting", "operational", "closed"]


class Uplink:
    """The state of one link."""

    def __init__(self, link: Link, chance: Callable[[], float]) -> None:
        """`chance` gives a number from 0 to 1, as random.random does."""
        self.link = link
        self.state: State = "waiting"
        self.cause = "not tried yet"
        self.conn = 0
        self.peer_name = ""
        self.product = ""
        self.is_weft = False
        self.since_ns = 0
        self.connects = 0
        """How often it became operational."""
        self.dial = 0
        """The number of the dial under way."""
        self._chance = chance
        self._due_ns = 0
        self._failures = 0
        self._next = 0

    @property
    def at(self) -> int:
        """Which of its addresses is in use, or tried next."""
        return self._next % len(self.link.urls)

    @property
    def peer(self) -> Peer:
        """The address in use, or tried next."""
        return self.link.peers[self.at]

    @property
    def due_ns(self) -> int | None:
        """When `tick` has something to do."""
        return self._due_ns if self.state == "waiting" else None

    def tick(self, number: int, now_ns: int) -> Dial | None:
        """Try under this number, if it is time to."""
        if self.state != "waiting" or now_ns < self._due_ns:
            return None
        peer = self.peer
        self._enter("connecting", f"dialling {peer}", now_ns)
        self.dial = number
        is_plain = peer.user is not None
        return Dial(
            number,
            peer.host,
            peer.port,
            trust=Trust(Path(self.link.tls_ca) if self.link.tls_ca else None) if peer.tls else None,
            mechanism="PLAIN" if is_plain else "ANONYMOUS",
            response=f"\0{peer.user}\0{peer.password}".encode() if is_plain else b"",
            hostname="" if peer.vhost == "/" else f"vhost:{peer.vhost}",
            idle_ms=self.link.heartbeat_s * 1_000,
        )

    def dialled(self, conn: int, now_ns: int) -> None:
        """The socket is there; the peer has not said who it is."""
        self.conn = conn
        self._enter("connecting", f"opening with {self.peer}", now_ns)

    def opened(self, container: str, node: str, properties: Table, now_ns: int) -> None:
        """The peer let us in; `node` is its name if it is one of ours."""
        self.peer_name = node or container
        self.is_weft = bool(node)
        self.product = str(properties.get("product", ""))
        self.connects += 1
        self._failures = 0
        self._enter("operational", f"connected to {self.peer_name} at {self.peer}", now_ns)

    def lost(self, cause: str, now_ns: int) -> None:
        """The connection is over, or never came to be."""
        if self.state == "closed":
            return
        self.conn = 0
        where = self.peer
        self._next += 1
        self._failures += 1
        rounds = 1 + (self._failures - 1) // len(self.link.urls)
        self._due_ns = now_ns + wait_ns(rounds, self.link.retry_max_s * 1_000, self._chance())
        self._enter("waiting", f"{where}: {cause}", now_ns)

    def close(self, now_ns: int) -> None:
        """It was taken away."""
        self._enter("closed", "removed", now_ns)

    def retry_now(self, now_ns: int) -> None:
        """Try at the next tick, whatever the wait was."""
        self._due_ns = now_ns

    def _enter(self, state: State, cause: str, now_ns: int) -> None:
        self.state, self.cause, self.since_ns = state, cause, now_ns

    def row(self) -> dict[str, Any]:
        """For people."""
        return {
            "name": self.link.name,
            "state": self.state,
            "cause": self.cause,
            "peer": self.peer_name,
            "address": str(self.peer),
            "product": self.product,
            "role": self.link.role,
            "management": self.link.management,
            "heartbeat_s": self.link.heartbeat_s,
            "retry_max_s": self.link.retry_max_s,
            "tls_ca": self.link.tls_ca,
            "connects": self.connects,
            "durable": self.link.durable,
            "urls": [str(peer) for peer in self.link.peers],
        }
