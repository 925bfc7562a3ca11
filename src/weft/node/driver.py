"""The loop around one engine: what its signals mean, who answers its events, when its output leaves.

Owns the engine of this process and all its connections. Bytes come from `connection`, time from `ticker`, decisions
from controllers; each engine call answers with signal bits and `on_signals` does what they say.
It must never know what a controller decides or what is in a message.
Rule: output is written once per turn of the loop, or at once when the engine says FLUSH (ARCHITECTURE.md, "Signals").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic_ns, sleep, time_ns
from typing import Any, Protocol, cast

from weft._kernel import DISK, EVENTS, FLUSH, LOCAL, MORE, OUTPUT, PAUSE, TIMER, DiskJob, Engine
from weft.model.actions import Action, Dial
from weft.model.changes import Change, CloseConnection, Quiesce
from weft.model.events import (
    AccessRequested,
    AddressRequested,
    AttachRequested,
    AuthRequested,
    ConnectionClosed,
    DiskAlarm,
    Event,
    HangUp,
    LinkClosed,
    MemoryAlarm,
    OpenRequested,
    ReadingResumed,
    TopologyRequested,
)
from weft.node.connection import Connection
from weft.node.dialer import Dialer
from weft.node.disk import Disk
from weft.node.local import Post
from weft.node.pace import Pace
from weft.node.ticker import Ticker

TRANSMIT_BYTES_MAX = 1_048_576
"""Bytes taken from the engine at once: a few flush watermarks, so that the list of writes stays small."""

FLUSH_ROUNDS_MAX = 16
"""Rounds of one flush before others get their turn: a reader as fast as we are could keep one flush going for ever."""

DISPATCH_ROUNDS_MAX = 4
"""Rounds of decisions before others get their turn: each answer lets a peer ask for the next thing it has sent already,
and a peer that attaches and detaches without end has sent thousands.
"""

LINGER_S = 3.0
"""Time a peer has to read our last words and close, once everything is said."""

DRAIN_S = 5.0
"""Time all peers together have to close when the node stops."""

RECOVER_S = 30.0
"""Time the disk has to give back the promises of the last life before the node serves without them."""

REST_S = 100e-6
"""A rest between two turns; with the slack of the system's timers about twice as long. See `pace`."""

RARE = ~(OUTPUT | FLUSH | DISK)
REQUESTS = (AuthRequested, OpenRequested, AccessRequested, TopologyRequested, AttachRequested, AddressRequested)


class Controller(Protocol):
    """Decides on events. It may leave a request open and answer later through `Driver.submit`."""

    @property
    def wants(self) -> frozenset[type]:
        """Kinds of events it is called for; what came with them it passes over."""
        ...

    def on_events(self, events: Sequence[Event], now_ns: int) -> Sequence[Change | Action]:
        """The changes and actions these events call for, in order; all changes are made before the first action."""
        ...


class Driver:
    """Runs an engine on the current loop until `stop`."""

    def __init__(
        self,
        engine: Engine,
        controllers: Sequence[Controller],
        *,
        connections_max: int,
        on_opened: Callable[[int, bool, bool, str | None], None],
    ) -> None:
        """`on_opened` is told of each connection before its first byte: its id, is it local, is it TLS, and the name in
        the peer's certificate.
        """
        self.engine = engine
        self.receive = engine.receive
        self.connections: dict[int, Connection] = {}
        self.quiesced = False
        self._controllers = tuple(controllers)
        self._by_kind: dict[type | None, tuple[Controller, ...]] = {}
        """Of events that come alone, as most do: who wants them."""
        self._connections_max = connections_max
        self._on_opened = on_opened
        self._loop = asyncio.get_running_loop()
        self._call_soon = self._loop.call_soon
        self._poll_transmit = engine.poll_transmit
        self._apply = engine.apply
        self._writes: dict[int, Callable[[bytes | memoryview], None]] = {}
        self._flush_due = False
        self._flushing = False
        self.read_bytes = 0
        self.flushed_ns = 0
        """When output was last written."""
        self._turn = Pace().turn
        self._advance_due = False
        self._dispatch_due = False
        self._alarms: set[type[Event]] = set()
        self._lingering: dict[int, float] = {}
        self._reaper: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None
        self._recovered: asyncio.Future[None] | None = None
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            HangUp: self._on_hang_up,
            ReadingResumed: self._on_reading_resumed,
            MemoryAlarm: self._hold_local,
            DiskAlarm: self._hold_local,
            LinkClosed: self._on_link_closed,
            ConnectionClosed: self._on_connection_closed,
        }
        self._notices: list[Event] = []
        self._dialer = Dialer(self, self._notify)
        self.has_dialled = self._dialer.has_dialled
        self._disk = Disk(self._loop, self._on_disk_done, engine.rest)
        self._ticker = Ticker(self._loop, engine.poll_timeout, self.advance)
        self.local = Post(engine, self.advance_soon)
        self._ticker.rearm()

    def add_controller(self, controller: Controller) -> None:
        """From now on this one is asked as well, after the others."""
        self._controllers = (*self._controllers, controller)
        self._by_kind.clear()

    # the hot path

    def on_signals(self, signals: int, connection: Connection | None = None) -> None:
        """Do what an engine call asked for; `connection` is the one it was about."""
        if signals & DISK:
            # Before any output: the disk works while peers are written to.
            self._disk.start(self.engine.poll_disk())
        if signals & FLUSH:
            self.flush()
        elif signals & OUTPUT and not self._flush_due:
            self._flush_due = True
            self._call_soon(self.flush)
        if signals & RARE:
            self._on_rare_signals(signals, connection)

    def flush(self) -> None:
        """Write what the engine has for its peers."""
        if self._flushing:
            return  # called back from a write below; the loop there goes on until nothing is left
        self._flushing = self._flush_due = True
        poll_transmit, apply, writes = self._poll_transmit, self._apply, self._writes
        try:
            for _ in range(FLUSH_ROUNDS_MAX):
                for conn_id, data in poll_transmit(TRANSMIT_BYTES_MAX):
                    writes[conn_id](data)
                # Writing makes room: more may be delivered, and publishers that were held may go on.
                signals = apply(())
                if signals & DISK:
                    self._disk.start(self.engine.poll_disk())
                if not signals & OUTPUT:
                    break
        finally:
            self._flushing = self._flush_due = False
        if signals:
            self.on_signals(signals & ~(FLUSH | DISK))
        read_bytes, self.read_bytes = self.read_bytes, 0
        self.flushed_ns = now_ns = monotonic_ns()
        if self._turn(read_bytes, now_ns):
            sleep(REST_S)

    # the rest runs per connection, decision or deadline

    def _on_rare_signals(self, signals: int, connection: Connection | None) -> None:
        if signals & PAUSE and connection is not None and not connection.transport.is_closing():
            connection.transport.pause_reading()
        if signals & EVENTS:
            self._dispatch()
        if signals & LOCAL:
            self.local.deliver()
        if signals & MORE:
            self.advance_soon()
        if signals & TIMER:
            self._ticker.rearm()

    def _dispatch(self) -> None:
        """Have every waiting event decided on; each batch before the next, which its changes may have caused."""
        self._dispatch_due = False
        for _ in range(DISPATCH_ROUNDS_MAX):
            events = self.engine.poll_events()
            if self._notices:
                events += self._notices
                self._notices.clear()
            now_ns = monotonic_ns()
            signals = 0
            for controller in self._concerned(events):
                decisions = self._decide(controller, events, now_ns)
                if decisions:
                    signals = self._carry_out(decisions)
            for event in events:
                handle = self._handlers.get(type(event))
                if handle is not None:
                    handle(event)
            self.on_signals(signals & ~EVENTS)
            if not (signals & EVENTS or self._notices):
                return
        if not self._dispatch_due:
            self._dispatch_due = True
            self._call_soon(self._dispatch)

    def _concerned(self, events: Sequence[Event]) -> Sequence[Controller]:
        """Who wants one of these, in the order of asking."""
        if len(events) > 1:
            kinds = {type(event) for event in events}
            return [one for one in self._controllers if not one.wants.isdisjoint(kinds)]
        kind = type(events[0]) if events else None
        known = self._by_kind.get(kind)
        if known is None:
            known = self._by_kind[kind] = tuple(one for one in self._controllers if kind in one.wants)
        return known

    def _notify(self, event: Event) -> None:
        """Something of the node itself that controllers want to know."""
        self._notices.append(event)
        self._call_soon(self._dispatch)

    def _carry_out(self, decisions: Sequence[Change | Action]) -> int:
        """Changes go to the engine, actions to the dialer."""
        actions = [decision for decision in decisions if isinstance(decision, Action)]
        if not actions:
            return self._apply(cast("Sequence[Change]", decisions))
        signals = self._apply([decision for decision in decisions if not isinstance(decision, Action)])
        for action in actions:
            self._dialer.do(action)
        return signals

    def _decide(self, controller: Controller, events: Sequence[Event], now_ns: int) -> Sequence[Change | Action]:
        try:
            return controller.on_events(events, now_ns)
        except Exception as error:
            # A mistake of ours that a peer has found: those who asked are closed, all others go on.
            message = f"{type(controller).__name__} failed on {events!r}"
            self._loop.call_exception_handler({"message": message, "exception": error})
            asked = {event.conn for event in events if isinstance(event, REQUESTS)}
            return [CloseConnection(conn, 541, "INTERNAL_ERROR") for conn in sorted(asked)]

    def apply(self, decisions: Sequence[Change | Action]) -> None:
        """Carry out decisions now; only on the loop's thread."""
        if decisions:
            self.on_signals(self._carry_out(decisions))

    def submit(self, decisions: Sequence[Change | Action]) -> None:
        """Carry out late decisions, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.apply, decisions)

    def advance(self) -> None:
        """Tell the engine the time; it does what is due and what a budget left over."""
        self._advance_due = False
        self.on_signals(self.engine.advance(monotonic_ns(), time_ns()))
        self._ticker.rearm()

    def _on_disk_done(self, job: DiskJob) -> None:
        self.on_signals(self.engine.disk_done(job))
        self.local.disk_moved()
        if self._recovered is not None and not self.engine.is_recovering():
            self._recovered.set_result(None)
            self._recovered = None

    def advance_soon(self) -> None:
        """Have the engine called once more in the next turn of the loop."""
        if not self._advance_due:
            self._advance_due = True
            self._call_soon(self.advance)

    # connections

    def accept(self) -> Connection:
        """The protocol factory of listeners."""
        return Connection(self)

    def opened(self, connection: Connection, *, tls: bool, local: bool, peer_name: str | None = None) -> int:
        """A socket was connected: the id of its connection, or 0 if there are too many."""
        if len(self.connections) >= self._connections_max:
            connection.transport.abort()
            return 0
        # An idle engine's clock stands still, and the peer's time to open counts from it.
        signals = self.engine.advance(monotonic_ns(), time_ns())
        conn_id = self.engine.open(tls=tls, local=local)
        self.connections[conn_id] = connection
        self._writes[conn_id] = connection.transport.write
        self._on_opened(conn_id, local, tls, peer_name)
        self.on_signals(signals | TIMER)
        return conn_id

    def dialled(self, connection: Connection, action: Dial) -> int:
        """A socket that we opened is connected: the id of its connection, or 0 if there are too many."""
        if len(self.connections) >= self._connections_max:
            connection.transport.abort()
            return 0
        signals = self.engine.advance(monotonic_ns(), time_ns())
        conn_id = self.engine.connect(
            container=action.container,
            hostname=action.hostname,
            mechanism=action.mechanism,
            response=action.response,
            principal=action.principal,
            idle_ms=action.idle_ms,
            tls=action.trust is not None,
        )
        self.connections[conn_id] = connection
        self._writes[conn_id] = connection.transport.write
        self.on_signals(signals | OUTPUT | TIMER)
        return conn_id

    def writable(self, connection: Connection, yes: bool) -> None:
        """The transport of a connection filled up or has room again."""
        if connection.conn_id in self.connections:
            self.on_signals(self.engine.writable(connection.conn_id, yes))

    def lost(self, connection: Connection, cause: str) -> None:
        """A socket is gone."""
        conn_id = connection.conn_id
        if self.connections.pop(conn_id, None) is None:
            return
        del self._writes[conn_id]
        self._lingering.pop(conn_id, None)
        self.on_signals(self.engine.close(conn_id, cause))
        if self._empty is not None and not self.connections and not self._empty.done():
            self._empty.set_result(None)

    def _on_hang_up(self, event: HangUp) -> None:
        connection = self.connections.get(event.conn)
        if connection is None or connection.transport.is_closing():
            return
        self.flush()
        connection.hang_up()
        self._writes[event.conn] = _say_nothing  # what the engine still answers, nobody is there to hear
        self._lingering[event.conn] = self._loop.time() + LINGER_S
        if self._reaper is None:
            self._reaper = self._loop.call_later(LINGER_S, self._reap)

    def _on_reading_resumed(self, event: ReadingResumed) -> None:
        connection = self.connections.get(event.conn)
        if connection is not None:
            connection.transport.resume_reading()

    def _hold_local(self, alarm: MemoryAlarm | DiskAlarm) -> None:
        """Senders of this process wait while any alarm is on."""
        if alarm.raised:
            self._alarms.add(type(alarm))
        else:
            self._alarms.discard(type(alarm))
        self.local.hold(bool(self._alarms))

    def _on_link_closed(self, event: LinkClosed) -> None:
        if event.conn == 0:
            self.local.ended(int(event.link))

    def _on_connection_closed(self, event: ConnectionClosed) -> None:
        self._dialer.on_closed(event)

    def _reap(self) -> None:
        """Abort who did not close in time. All linger equally long, so the oldest is always the first."""
        self._reaper = None
        now = self._loop.time()
        for conn_id, deadline in list(self._lingering.items()):
            if deadline > now:
                self._reaper = self._loop.call_at(deadline, self._reap)
                return
            del self._lingering[conn_id]
            self.connections[conn_id].transport.abort()

    # life

    def quiesce(self, on: bool) -> None:
        """Stop or resume delivery from every queue; publishers go on and queues grow."""
        self.quiesced = on
        self.apply([Quiesce(on)])

    async def recover(self) -> None:
        """Wait until the promises of the last life are known."""
        if self.engine.is_recovering():
            self._recovered = self._loop.create_future()
            await asyncio.wait([self._recovered], timeout=RECOVER_S)

    async def stop(self) -> None:
        """Close every connection in its protocol's own way, then for good."""
        self.local.close()
        self._dialer.close()
        self.apply([CloseConnection(conn_id) for conn_id in self.connections])
        await self._wait_empty(DRAIN_S)
        for connection in list(self.connections.values()):
            connection.transport.abort()
        await self._wait_empty(DRAIN_S)
        if self._reaper is not None:
            self._reaper.cancel()
        self._ticker.stop()
        self.on_signals(self.engine.finish())
        await self._disk.settle()
        self._disk.close()
        self.local.abandon()

    async def _wait_empty(self, timeout_s: float) -> None:
        if self.connections:
            self._empty = self._loop.create_future()
            await asyncio.wait([self._empty], timeout=timeout_s)


def _say_nothing(_data: bytes | memoryview) -> None:
    """In place of a transport's write, once we have hung up."""
