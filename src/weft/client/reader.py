"""Who reads a client's bytes: the program's own loop while it is awake, else the connection's thread.

Owns the turns that a program's loop has at a connection's socket. While a turn lasts the transport does not read, and
what comes is understood where it is waited for, without one thread waking another for every reply. A loop that leaves
bytes unread for two looks in a row (it computes, is stopped or closed) loses its turn to the connection's thread, and
gets the next one when it runs again.
It must never have two readers at a time: who has the turn reads and tells the machine under one lock.
Rule: only a plain TCP socket is read so (decision 0013); TLS and memory are read by their transports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from time import monotonic_ns

READ_BYTES_MAX = 1 << 18


class Reader:
    """The turns of one program's loop at one connection after another."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        near: asyncio.AbstractEventLoop | None,
        receive: Callable[[memoryview, int], int],
        on_signals: Callable[[int], None],
    ) -> None:
        """`loop` is the connection's, `near` the program's; what is read goes to `receive`, its answer to the other."""
        self._loop = loop
        self._near = near
        self._receive = receive
        self._on_signals = on_signals
        self._lock = threading.Lock()
        self._transport: asyncio.Transport | None = None
        self._turn: _Turn | None = None

    # on the connection's loop

    def open(self, transport: asyncio.Transport) -> None:
        """A connection is open: the program's loop may read it, if it is a plain one."""
        plain = transport.get_extra_info("socket") is not None and transport.get_extra_info("sslcontext") is None
        if self._near is not None and plain:
            self._transport = transport
            self._offer()

    def look(self) -> None:
        """Some time has passed: take the turn from a loop that does not use it."""
        turn = self._turn
        if turn is None:
            return
        is_late, turn.is_late = turn.is_late, turn.has_unread()
        if is_late and turn.is_late and self._end(turn):
            self._resume()
            self._offer()

    def close(self) -> None:
        """The connection is given up: nothing of it is read any more."""
        self._transport = None
        turn = self._turn
        if turn is not None:
            with self._lock:
                if self._turn is turn:
                    turn.hang_up()
            self._end(turn)

    def _offer(self) -> None:
        """Ask the program's loop whether it is awake; it takes its turn once it answers."""
        self._call_near(lambda: self._call_loop(self._begin))

    def _begin(self) -> None:
        transport = self._transport
        if transport is None or self._turn is not None or transport.is_closing():
            return
        transport.pause_reading()
        self._turn = turn = _Turn(transport.get_extra_info("socket"))
        if not self._call_near(self._listen, turn):
            self._end(turn)
            self._resume()

    def _resume(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()

    def _end(self, turn: _Turn) -> bool:
        """End a turn, from any thread; False if it was over."""
        with self._lock:
            if self._turn is not turn:
                return False
            self._turn = None
        if not self._call_near(self._leave, turn):
            turn.close()  # the loop is closed, and looks at nothing any more
        return True

    # on the program's loop

    def _listen(self, turn: _Turn) -> None:
        if self._turn is not turn or self._near is None:
            return
        try:
            self._near.add_reader(turn.fileno, self._read, turn)
        except NotImplementedError:  # a loop that cannot watch sockets never has a turn
            self._near = None
            self._give_back(turn)

    def _leave(self, turn: _Turn) -> None:
        if self._near is not None:
            self._near.remove_reader(turn.fileno)
        turn.close()

    def _read(self, turn: _Turn) -> None:
        with self._lock:
            if self._turn is not turn:
                return
            turn.is_late = False
            count = turn.read()
            signals = self._receive(turn.view[:count], monotonic_ns()) if count > 0 else 0
        if count == 0:
            self._give_back(turn)  # it has ended: its transport finds out how
        elif signals:
            self._on_signals(signals)

    def _give_back(self, turn: _Turn) -> None:
        if self._end(turn):
            self._call_loop(self._resume)

    # between them

    def _call_near(self, what: Callable[..., object], *arguments: object) -> bool:
        try:
            if self._near is not None:
                self._near.call_soon_threadsafe(what, *arguments)
                return True
        except RuntimeError:
            self._near = None  # it is closed
        return False

    def _call_loop(self, what: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the process ends
            self._loop.call_soon_threadsafe(what)


class _Turn:
    """One loop's time at one socket, with a descriptor of its own: another's may be closed and its number reused."""

    __slots__ = ("_poll", "_socket", "fileno", "is_late", "view")

    def __init__(self, shared: socket.socket) -> None:
        self._socket = socket.socket(fileno=os.dup(shared.fileno()))
        self._socket.setblocking(False)
        self.fileno = self._socket.fileno()
        self.view = memoryview(bytearray(READ_BYTES_MAX))
        self._poll = select.poll()
        self._poll.register(self.fileno, select.POLLIN)
        self.is_late = False
        """Were there bytes to read at the last look, and has nobody read since?"""

    def has_unread(self) -> bool:
        """Are there bytes, or is there an end, that nobody has read?"""
        return bool(self._poll.poll(0))

    def read(self) -> int:
        """Read into the view; how many bytes that were, 0 at the end, -1 if there are none."""
        try:
            return self._socket.recv_into(self.view)
        except (BlockingIOError, InterruptedError):
            return -1
        except OSError:
            return 0

    def hang_up(self) -> None:
        """Have the peer know that this is over, however long the loop takes to let go of the descriptor."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the descriptor."""
        self._socket.close()
