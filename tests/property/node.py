"""A node without sockets, threads and a clock of its own: the real engine with its real controllers.

Owns the loop that `weft.node.driver` is in a process: bytes in, signals, events, decisions, bytes out, until nothing
moves. Tests give bytes and time; output is kept by connection until a peer takes it. Every request of the engine must
be answered at once, by exactly one decision; that is checked here, for all tests.
It must know no protocol.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Self

from weft._kernel import EVENTS, MORE, Engine
from weft.broker import Topology
from weft.model.changes import Accept, AcceptLink, Challenge, Change, Grant, Refuse, SetAddress
from weft.model.events import AccessRequested, AddressRequested, ConnectionClosed, Event, HangUp
from weft.model.limits import Limits
from weft.policy import Policy, PolicySettings
from weft.store import Store

START_NS = 1_000_000_000
WALL_NS = 1_700_000_000_000_000_000
TURNS_MAX = 10_000
LIMITS = Limits(heartbeat_s=0, memory_bytes_max=64 << 20, unauthenticated_s=3600)


class Node:
    """One node; use it as a context, so that its policy's threads end."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        store = Store()
        self.now_ns = START_NS
        self.engine = Engine(limits, node="model", version="0", seed=7, now_ns=START_NS, wall_ns=WALL_NS)
        self.policy = Policy(store, PolicySettings(hash_cost=2), submit=_no_late_answers)
        self.topology = Topology(store, self.policy, self.engine.queue_stats)
        self.output: defaultdict[int, bytearray] = defaultdict(bytearray)
        self.closed: set[int] = set()
        self._store = store
        self._run(self.engine.apply(self.topology.start()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.policy.close()
        self._store.close()

    def open(self) -> int:
        """A new connection from this machine."""
        conn = self.engine.open(local=True)
        self.policy.connection_opened(conn, True)
        return conn

    def receive(self, conn: int, data: bytes) -> None:
        if conn not in self.closed:
            self._run(self.engine.receive(conn, data, self.now_ns))

    def cut(self, conn: int) -> None:
        """The socket of a connection is gone, without a word."""
        self.closed.add(conn)
        self._run(self.engine.close(conn, "cut"))
        self.output.pop(conn, None)

    def advance(self, now_ns: int) -> None:
        """Time passes, and the engine is called whenever it asked to be."""
        while (due_ns := self.engine.poll_timeout()) is not None and due_ns <= now_ns:
            self._tick(max(due_ns, self.now_ns))
        self._tick(now_ns)

    def _tick(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self._run(self.engine.advance(now_ns, self._wall_ns))

    @property
    def _wall_ns(self) -> int:
        return WALL_NS + self.now_ns - START_NS

    def _run(self, signals: int) -> None:
        for _ in range(TURNS_MAX):
            if signals & EVENTS:
                signals = self._decide() | signals & ~EVENTS
            elif signals & MORE:
                signals = self.engine.advance(self.now_ns, self._wall_ns)
            elif writes := self.engine.poll_transmit(1 << 20):
                for conn, data in writes:
                    self.output[conn] += data
                signals = self.engine.apply(())
            elif (due_ns := self.engine.poll_timeout()) is not None and due_ns <= self.now_ns:
                signals = self.engine.advance(self.now_ns, self._wall_ns)
            else:
                return
        raise AssertionError("the engine does not come to rest")

    def _decide(self) -> int:
        events = self.engine.poll_events()
        signals = 0
        decided: list[Change] = []
        for controller in (self.policy, self.topology):
            changes = controller.on_events(events, self.now_ns)
            signals |= self.engine.apply(changes)
            decided += changes
        _check_answers(events, decided)
        for event in events:
            match event:
                case HangUp():
                    signals |= self._write_last(event.conn)
                case ConnectionClosed():
                    self.closed.add(event.conn)
        return signals

    def _write_last(self, conn: int) -> int:
        """The engine has said everything: what is pending leaves, then the socket closes."""
        for other, data in self.engine.poll_transmit(1 << 20):
            self.output[other] += data
        self.closed.add(conn)
        return self.engine.close(conn, "hang up")


def _no_late_answers(changes: Sequence[Change]) -> None:
    raise AssertionError(f"answered late: {changes}")


def _check_answers(events: Sequence[Event], changes: Sequence[Change]) -> None:
    answers = (Accept, AcceptLink, Challenge, Refuse)
    answered = [change.request for change in changes if isinstance(change, answers)]
    grants = {
        (change.principal, change.operation, change.kind, change.name)
        for change in changes
        if isinstance(change, Grant)
    }
    addresses = {(change.principal, change.address) for change in changes if isinstance(change, SetAddress)}
    asked = []
    for event in events:
        match event:
            case AccessRequested():
                assert (event.principal, event.operation, event.kind, event.name) in grants, event
            case AddressRequested():
                assert (event.principal, event.address) in addresses, event
            case _ if hasattr(event, "request"):
                asked.append(event.request)
    assert sorted(asked) == sorted(answered), (events, changes)
