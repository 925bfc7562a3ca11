"""A network that is invented: listeners, connections, delay, cuts.

Owns every connection between the nodes of a world. It keeps TCP's promises and no more: bytes of one connection arrive
in order and once, after a delay; connections overtake each other; across a cut nothing moves until it heals, unless a
side has given up; a reset loses what was on its way. Of a process that was killed the system tells its peers; of a
machine that lost its power nobody does, until it is back.
It must never look into the bytes. Everything that arrives is hashed into the trace of the world.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, cast

from simulation.loop import LIFE, Life, VirtualLoop

DELAY_NS = (50_000, 3_000_000)
"""Shortest and longest way of a piece of bytes: one rack, one continent's backbone."""
EOF, RESET = b"eof", b"reset"


class Line(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, wire: Wire, number: int, context: Context, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.number = number
        self.life = context[LIFE]
        self.node = self.life.name
        self.peer: Line = self
        self._wire = wire
        self._context = context
        self._protocol = protocol
        self._incoming: deque[tuple[int, bytes, bool]] = deque()
        """(when it arrives, what, is it a mark and no data)"""
        self._incoming_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._closing = False
        self._lost = False
        self._high = 65_536
        self._full = False

    # as asyncio's transports

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 40_000 + self.number % 20_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or self._high

    def get_write_buffer_size(self) -> int:
        return self.peer._incoming_bytes

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._send(bytes(data), is_mark=False)
            if self.peer._incoming_bytes > self._high and not self._full:
                self._full = True
                self._protocol.pause_writing()

    def write_eof(self) -> None:
        self._send(EOF, is_mark=True)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._send(EOF, is_mark=True)
            self._lose(None)

    def abort(self) -> None:
        self.break_off()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.move()

    # the way of the bytes

    def connect(self) -> None:
        self._protocol.connection_made(self)

    def break_off(self, error: Exception | None = None) -> None:
        """End at once; what was on its way to the peer is lost."""
        if not self._closing:
            self._closing = True
            self.peer._incoming.clear()
            self.peer._incoming_bytes = 0
            self._send(RESET, is_mark=True)
            self._lose(error)

    def fall_silent(self, *, is_told: bool, keeps: bool) -> None:
        """Its process is no more; the system may still send what it had, and tell the peer."""
        self._closing = self._lost = True
        self._incoming.clear()
        self._wire.lines.pop((self.number, self.node), None)
        if not keeps:
            self.peer._incoming.clear()
            self.peer._incoming_bytes = 0
        if is_told:
            self._send(EOF if keeps else RESET, is_mark=True)

    def move(self) -> None:
        """Have the next piece arrive at its time."""
        if (
            self._timer is None
            and self._incoming
            and self._reading
            and not self._wire.is_cut(self.node, self.peer.node)
        ):
            when_ns = max(self._incoming[0][0], self._wire.loop.now_ns)
            self._timer = self._wire.loop.call_at(when_ns / 1e9, self._arrive, context=self._context)

    def _send(self, data: bytes, *, is_mark: bool) -> None:
        peer = self.peer
        soonest_ns = peer._incoming[-1][0] if peer._incoming else 0
        peer._incoming.append((max(soonest_ns, self._wire.arrival_ns()), data, is_mark))
        peer._incoming_bytes += 0 if is_mark else len(data)
        peer.move()

    def _arrive(self) -> None:
        self._timer = None
        if not self._incoming or not self._reading or self._wire.is_cut(self.node, self.peer.node):
            return
        _, data, is_mark = self._incoming.popleft()
        self._wire.note(f"{self.number} {self.node}", data)
        if is_mark:
            if data == RESET and not self._closing:
                self._closing = True
                self._lose(ConnectionResetError("reset by the peer"))
            elif data == EOF and not self._closing:
                self.close()
        else:
            self._incoming_bytes -= len(data)
            self.peer._drained()
            if not self._closing:
                self._protocol.data_received(data)
        self.move()

    def _drained(self) -> None:
        if self._full and self.peer._incoming_bytes <= self._high // 4:
            self._full = False
            self._wire.loop.call_soon(self._writable, context=self._context)

    def _writable(self) -> None:
        if not self._closing:
            self._protocol.resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._wire.lines.pop((self.number, self.node), None)
            self._wire.loop.call_soon(self._protocol.connection_lost, error, context=self._context)


@dataclass(frozen=True)
class Door:
    """Where a node listens; stands for asyncio's server and its socket."""

    wire: Wire
    host: str
    port: int
    factory: Callable[[], asyncio.BaseProtocol]
    context: Context

    @property
    def sockets(self) -> tuple[Door]:
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None:
        self.wire.doors.pop((self.host, self.port), None)


class Wire:
    """All connections of a world. A node listens at a host that is called as it is."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.doors: dict[tuple[str, int], Door] = {}
        self.lines: dict[tuple[int, str], Line] = {}
        self.trace = hashlib.sha256()
        self.pieces = 0
        self._chance = random.Random(seed)
        self._cut: set[frozenset[str]] = set()
        self._dark: set[str] = set()
        """Machines without power: nobody there says even that nobody listens."""
        self._waiting: list[asyncio.Future[None]] = []
        self._numbers = 0
        loop.create_server = self._create_server  # type: ignore[method-assign,assignment]
        loop.create_connection = self._create_connection  # type: ignore[method-assign,assignment]

    # faults

    def is_cut(self, one: str, other: str) -> bool:
        """Does nothing move between two nodes?"""
        return frozenset((one, other)) in self._cut

    def cut(self, one: str, other: str) -> None:
        """Let nothing pass between two nodes; nobody is told."""
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        """Undo every cut: what has waited moves on."""
        self._cut.clear()
        for line in list(self.lines.values()):
            line.move()
        self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def reset(self, one: str, other: str) -> None:
        """Break every connection between two nodes at both ends; what is on the way is lost."""
        for line in list(self.lines.values()):
            if {line.node, line.peer.node} == {one, other}:
                line.break_off(ConnectionResetError("reset by the network"))

    def die(self, life: Life, *, silently: bool) -> None:
        """A node is no more. What it sent goes on or is lost; its peers are told, or find out."""
        for place, door in list(self.doors.items()):
            if door.context[LIFE] is life:
                del self.doors[place]
        if silently:
            self._dark.add(life.name)
        for line in list(self.lines.values()):
            if line.life is life:
                line.fall_silent(is_told=not silently, keeps=not silently and self._chance.random() < 0.5)

    def light(self, name: str) -> None:
        """A machine has power again: it knows nothing of the connections it had."""
        self._dark.discard(name)
        for line in list(self.lines.values()):
            if line.peer.life.is_over and line.peer.node == name:
                line.break_off(ConnectionResetError("the peer knows of no such connection"))
        self._wake()

    # what happens

    def arrival_ns(self) -> int:
        """When something that is sent now arrives."""
        return self.loop.now_ns + self._chance.randint(*DELAY_NS)

    def note(self, what: str, data: bytes) -> None:
        """One more line of the trace."""
        self.pieces += 1
        self.trace.update(f"{self.loop.now_ns} {what} {len(data)}\n".encode())
        self.trace.update(data)

    async def _create_server(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any) -> Door:
        door = self.doors[host, port] = Door(self, host, port, factory, copy_context())
        return door

    async def _create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: Any
    ) -> None:
        await asyncio.sleep((self.arrival_ns() - self.loop.now_ns) / 1e9)
        while self.is_cut(LIFE.get().name, host) or host in self._dark:
            waiting = self.loop.create_future()
            self._waiting.append(waiting)
            await waiting
        door = self.doors.get((host, port))
        if door is None:
            raise ConnectionRefusedError("nobody listens there")
        self._numbers += 1
        ours = Line(self, self._numbers, copy_context(), cast("asyncio.Protocol", factory()))
        theirs = Line(self, self._numbers, door.context.copy(), cast("asyncio.Protocol", door.factory()))
        ours.peer, theirs.peer = theirs, ours
        for line in (ours, theirs):
            self.lines[line.number, line.node] = line
        self.loop.call_soon(theirs.connect, context=theirs._context)
        ours.connect()
