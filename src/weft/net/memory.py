"""Connections inside one process: two transports whose bytes change hands without a socket.

Owns the table of names that are listened on in this process, and the transports. A protocol factory comes in under a
name; whoever connects to the name gets the other end of a new pair. So does a peer that came through something that is
not a plain socket, such as a WebSocket.
It must never look at a byte.
Rule: asyncio's contract for transports, flow control included; the two ends may run on the loops of two threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

from weft.model.errors import Unavailable

BUFFER_BYTES_MAX = 262_144
"""Bytes under way before the writer is asked to pause."""

Listening = tuple[asyncio.AbstractEventLoop, Callable[[], asyncio.Protocol]]
"""Who takes connections, on which loop."""

_LISTENERS: dict[str, list[Listening]] = {}


def listen_here(name: str, factory: Callable[[], asyncio.Protocol]) -> Callable[[], None]:
    """Take connections under a name, before whoever took them so far; returns how to stop."""
    entry = (asyncio.get_running_loop(), factory)
    _LISTENERS.setdefault(name, []).insert(0, entry)

    def stop() -> None:
        left = [other for other in _LISTENERS.get(name, ()) if other is not entry]
        if left:
            _LISTENERS[name] = left
        else:
            _LISTENERS.pop(name, None)

    return stop


def names_here() -> list[str]:
    """Names that are listened on."""
    return sorted(_LISTENERS)


def accept_here(factory: Callable[[], asyncio.Protocol], known: Mapping[str, Any], protocol: asyncio.Protocol) -> None:
    """Connect a protocol to one that a factory makes, on this loop, for a peer that came some other way; `known` is
    what the transport tells of it (`peername`, `sslcontext`).
    """
    loop = asyncio.get_running_loop()
    ours, theirs = MemoryTransport(loop), MemoryTransport(loop, known)
    ours.pair(protocol, theirs)
    _accept(theirs, factory, ours)
    protocol.connection_made(ours)


async def connect_here(name: str, protocol: asyncio.Protocol) -> MemoryTransport:
    """Connect to a name; the empty name is the only listener there is."""
    if not name and len(_LISTENERS) == 1:
        name = next(iter(_LISTENERS))
    if name not in _LISTENERS:
        known = ", ".join(names_here()) or "none"
        raise Unavailable(f"no node {name!r} runs in this process (running: {known})")
    their_loop, factory = _LISTENERS[name][0]
    own_loop = asyncio.get_running_loop()
    ours, theirs = MemoryTransport(own_loop), MemoryTransport(their_loop)
    ours.pair(protocol, theirs)
    if their_loop is own_loop:
        _accept(theirs, factory, ours)
    else:
        accepted = asyncio.run_coroutine_threadsafe(_accept_there(theirs, factory, ours), their_loop)
        await asyncio.wrap_future(accepted)
    protocol.connection_made(ours)
    return ours


def _accept(theirs: MemoryTransport, factory: Callable[[], asyncio.Protocol], ours: MemoryTransport) -> None:
    protocol = factory()
    theirs.pair(protocol, ours)
    protocol.connection_made(theirs)


async def _accept_there(
    theirs: MemoryTransport, factory: Callable[[], asyncio.Protocol], ours: MemoryTransport
) -> None:
    _accept(theirs, factory, ours)


class MemoryTransport(asyncio.Transport):
    """One end of a connection inside this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, known: Mapping[str, Any] | None = None) -> None:
        super().__init__(known)
        self._loop = loop
        self._arrived: list[bytes] = []
        self._arrived_bytes = 0
        self._due = False
        self._reading = True
        self._paused = False
        self._closing = False
        self._ended = False
        self._high = BUFFER_BYTES_MAX
        self._lock = threading.Lock()

    def pair(self, protocol: asyncio.Protocol, peer: MemoryTransport) -> None:
        """Say who reads here, and where writes go."""
        self._protocol = protocol
        self._peer = peer
        self._call = self._loop.call_soon if self._loop is peer._loop else self._loop.call_soon_threadsafe

    # towards the peer

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not data:
            return
        peer = self._peer
        with peer._lock:
            peer._arrived.append(bytes(data))
            peer._arrived_bytes += len(data)
            is_due, peer._due = peer._due or not peer._reading, peer._reading
        if not is_due:
            peer._call(peer._deliver)
        if peer._arrived_bytes > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def _deliver(self) -> None:
        with self._lock:
            self._due = False
            if not self._reading or self._ended:
                return
            arrived, self._arrived, self._arrived_bytes = self._arrived, [], 0
        peer = self._peer
        if peer._paused:
            peer._call(peer._resume)
        if arrived:
            self._protocol.data_received(arrived[0] if len(arrived) == 1 else b"".join(arrived))

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._protocol.resume_writing()

    # the rest of the contract

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        with self._lock:
            is_due, self._reading, self._due = self._due or self._reading, True, True
        if not is_due:
            self._call(self._deliver)

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self._high = BUFFER_BYTES_MAX if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._peer._arrived_bytes

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def close(self) -> None:
        """End both sides; what is under way to the peer still arrives."""
        if not self._closing:
            self._closing = True
            self._peer._call(self._peer._end)
            self._call(self._end)

    def abort(self) -> None:
        self.close()

    def _end(self) -> None:
        if self._ended:
            return
        self._reading = True
        self._deliver()
        self._ended = self._closing = True
        self._protocol.connection_lost(None)
        if not self._peer._ended:
            self._peer._call(self._peer._end)
