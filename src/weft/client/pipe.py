"""Where a client's bytes leave: through the transport, or straight into its socket.

Owns one connection's way out. The connection's thread may always write; another thread may too, as long as nothing
waits in the transport, which saves it from waking the connection's thread for every request.
It must never change the order of bytes: who polls the machine and writes what it gave holds one lock for both.
Rule: only a plain TCP socket is written to directly; TLS and memory have no bytes of their own to send.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable

BUFFER_BYTES_MAX = 1 << 20


class Pipe:
    """The way out of one connection at a time."""

    def __init__(self) -> None:
        self.is_full = False
        self._lock = threading.Lock()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._is_behind = False
        """Are there bytes with the transport that have to go first?"""
        self._rest = b""
        """Bytes that another thread could not write, on their way to the transport."""

    @property
    def is_direct(self) -> bool:
        """May another thread write now?"""
        return self._socket is not None and not self._is_behind

    def open(self, transport: asyncio.Transport) -> None:
        """A transport is connected."""
        transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)
        plain = transport.get_extra_info("socket")
        with self._lock:
            self._transport = transport
            self.is_full = self._is_behind = False
            self._rest = b""
            if plain is not None and transport.get_extra_info("sslcontext") is None:
                # A descriptor of our own: the transport may close its at any time, and another may get the number.
                self._socket = socket.socket(fileno=os.dup(plain.fileno()))
                self._socket.setblocking(False)

    def close(self) -> None:
        """Give the transport up."""
        with self._lock:
            transport, self._transport = self._transport, None
            direct, self._socket = self._socket, None
        if direct is not None:
            direct.close()
        if transport is not None:
            transport.abort()

    def abandon(self) -> None:
        """Nobody writes any more; the transport, which may be another process's, is left as it is."""
        direct, self._socket = self._socket, None
        if direct is not None:
            direct.close()

    def end(self) -> None:
        """Close the transport once everything is written."""
        if self._transport is not None:
            self._transport.close()

    def write_all(self, poll: Callable[[], bytes]) -> None:
        """Write what there is, on the connection's thread."""
        with self._lock:
            transport = self._transport
            if transport is None:
                return
            if self._rest:
                rest, self._rest = self._rest, b""
                transport.write(rest)
            elif self._is_behind and transport.get_write_buffer_size() == 0:
                self._is_behind = False
            while not self.is_full and (data := poll()):
                rest = self._send(data)
                if rest:
                    self._is_behind = True
                    transport.write(rest)

    def write_now(self, poll: Callable[[], bytes]) -> bool:
        """Write what there is, on any thread; False if the connection's own thread must do it."""
        with self._lock:
            if not self.is_direct or self._transport is None:
                return False
            while data := poll():
                rest = self._send(data)
                if rest:
                    # The rest goes first, and its thread writes it before anything else.
                    self._is_behind, self._rest = True, rest
                    return False
            return True

    def _send(self, data: bytes) -> bytes:
        """Send directly if that keeps the order; what is left for the transport."""
        if self._socket is None or self._is_behind:
            return data
        try:
            return data[self._socket.send(data) :]
        except (BlockingIOError, InterruptedError):
            return data
        except OSError:
            return b""  # the connection is gone, and its thread about to notice
