"""What is known of each connection beyond what the kernel keeps: its name, its client, when it came.

Owns one small record per connection. Events of the engine come in as to any controller; it answers none of them, and
tells of connections, sessions and links that come and go, and of alarms.
It must never see a message or decide anything.
Rule: a connection is named `PEER -> NODE` by addresses and ports, as RabbitMQ names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Any

from weft.management.events import Events
from weft.management.host import Host
from weft.model.changes import Change
from weft.model.events import (
    AuthRequested,
    ConnectionClosed,
    ConsumerChanged,
    DiskAlarm,
    DoubtEnded,
    Event,
    MemoryAlarm,
    OpenRequested,
    ReadAlarm,
    SessionChanged,
    Table,
)

Ends = Callable[[str], object]
"""Answers to `sockname` and `peername`, as a transport does even when it is closed."""


@dataclass(slots=True)
class Peer:
    """One connection. Its ends are put into words when somebody first asks: most come and go, and nobody looks."""

    ends: Ends
    since_ms: int
    wire: str = ""
    mechanism: str = ""
    container: str = ""
    vhost: str = ""
    user: str = ""
    properties: Table = field(default_factory=dict)
    _name: str = field(default="", init=False)

    @property
    def name(self) -> str:
        """What it is called by."""
        if not self._name:
            self._name = f"{self.address} -> {_place(self.ends('sockname'))}"
        return self._name

    @property
    def address(self) -> str:
        """Where the peer is."""
        return _place(self.ends("peername"))


class Peers:
    """Every connection that said who it is."""

    def __init__(self, host: Host, events: Events) -> None:
        self._host = host
        self._events = events
        self._peers: dict[int, Peer] = {}
        self._mechanisms: dict[int, str] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        """Connections of each user in each virtual host."""
        self.alarms: dict[str, str] = {}
        """Alarms that are on, and what they say."""

    def get(self, conn: int) -> Peer | None:
        """What is known of a connection."""
        return self._peers.get(conn)

    def items(self) -> Iterable[tuple[int, Peer]]:
        """Every connection, and what is known of it; for a look at all of them that ends at once."""
        return self._peers.items()

    def conns(self) -> list[int]:
        """Every connection, to be looked at in parts: pairs would be thousands of objects for the collector."""
        return list(self._peers)

    def find(self, name: str) -> int | None:
        """The connection of this name."""
        return next((conn for conn, peer in self._peers.items() if peer.name == name), None)

    wants = frozenset(
        {
            AuthRequested,
            OpenRequested,
            ConnectionClosed,
            SessionChanged,
            ConsumerChanged,
            MemoryAlarm,
            DiskAlarm,
            ReadAlarm,
            DoubtEnded,
        }
    )

    def on_events(self, events: Sequence[Event], now_ns: int) -> Sequence[Change]:  # noqa: ARG002 - it keeps no time
        """Remember and tell; nothing is decided here."""
        for event in events:
            match event:
                case AuthRequested():
                    self._mechanisms[event.conn] = event.mechanism
                case OpenRequested():
                    self._on_open(event)
                case ConnectionClosed():
                    self._on_closed(event)
                case SessionChanged():
                    self._on_session(event)
                case ConsumerChanged():
                    self._on_consumer(event)
                case MemoryAlarm():
                    values = {"used_bytes": event.used_bytes, "max_bytes": event.max_bytes}
                    self._on_alarm("memory_alarm", event.raised, "messages take too much memory", **values)
                case DiskAlarm():
                    self._on_alarm("disk_alarm", event.raised, event.text, reason=event.text)
                case ReadAlarm():
                    self._on_alarm("read_alarm", event.raised, event.text, reason=event.text)
                case DoubtEnded():
                    self._events.tell("queue", "undecided", event.queue, event.vhost, messages=event.messages)
        return ()

    def _on_open(self, event: OpenRequested) -> None:
        """The policy had its turn: a connection that is in has a virtual host now."""
        entered = self._host.policy.entered(event.conn)
        connection = self._host.driver.connections.get(event.conn)
        if entered is None or connection is None:
            return
        peer = self._peers[event.conn] = Peer(
            connection.transport.get_extra_info,
            time_ns() // 1_000_000,
            event.wire,
            self._mechanisms.pop(event.conn, "ANONYMOUS"),
            event.container,
            *entered,
            event.properties,
        )
        self.counts[peer.user, peer.vhost] += 1
        if self._events.wants("connection", "opened"):
            self._events.tell("connection", "opened", peer.name, peer.vhost, user=peer.user, protocol=peer.wire)

    def _on_closed(self, event: ConnectionClosed) -> None:
        tried = self._mechanisms.pop(event.conn, None)
        peer = self._peers.pop(event.conn, None)
        if peer is not None:
            self.counts[peer.user, peer.vhost] -= 1
            if not self.counts[peer.user, peer.vhost]:
                del self.counts[peer.user, peer.vhost]
        if peer is not None and self._events.wants("connection", "closed"):
            self._events.tell("connection", "closed", peer.name, peer.vhost, user=peer.user, cause=event.cause)
        elif peer is None and tried is not None:
            self._events.tell("connection", "refused", str(event.conn), mechanism=tried, cause=event.cause)

    def _on_session(self, event: SessionChanged) -> None:
        peer = self._peers.get(event.conn)
        if peer is not None:
            kind, name = "created" if event.begun else "deleted", session_name(peer, event.number)
            self._events.tell("session", kind, name, peer.vhost, user=peer.user, number=event.number)

    def _on_consumer(self, event: ConsumerChanged) -> None:
        peer = self._peers.get(event.conn)
        if peer is not None:
            kind, about = "created" if event.joined else "deleted", {"queue": event.queue, "connection": peer.name}
            self._events.tell("link", kind, str(event.consumer), event.vhost, user=peer.user, **about)

    def _on_alarm(self, kind: str, raised: bool, text: str, **values: Any) -> None:
        if raised:
            self.alarms[kind] = text
        else:
            self.alarms.pop(kind, None)
        self._events.tell("node", kind if raised else f"{kind}_cleared", self._host.name, **values)


def session_name(peer: Peer, number: int) -> str:
    """A channel or session, by its connection and number."""
    return f"{peer.name} ({number})"


def _place(address: object) -> str:
    if isinstance(address, tuple) and len(address) >= 2:
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        return f"{host}:{address[1]}"
    return str(address or "local")
