"""One socket: where bytes arrive from a peer and where they leave to it.

Owns the asyncio protocol of a connection and nothing that outlives it. Bytes go to the engine as they came, once per
read; the signals that come back go to the driver, which also writes what the engine has to say.
It must never look into the bytes, log, or keep a timer, task or buffer of its own: five thousand of these are open at a
time.
Rule: `data_received` is the hot path; anything added to it is paid once per read of every peer (benchmarks/).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, cast

from weft.net.tls import peer_name

if TYPE_CHECKING:
    from weft.node.driver import Driver

WRITE_BUFFER_BYTES = 262_144
"""What a transport holds before the engine is told to stop: as much as one flush, so that a reader who keeps up never
stops it.
"""


class Connection(asyncio.Protocol):
    """The protocol object that asyncio drives."""

    __slots__ = ("_driver", "_receive", "_signal", "conn_id", "transport")

    conn_id: int
    transport: asyncio.Transport

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._receive: Callable[[int, bytes, int], int] = driver.receive
        self._signal = driver.on_signals

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are one without saying so
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        tls = transport.get_extra_info("sslcontext") is not None
        # Only what an authority of ours has signed is a certificate here: nothing else passes the handshake.
        name = peer_name(transport.get_extra_info("peercert")) if tls else None
        self.conn_id = self._driver.opened(self, tls=tls, local=_is_loopback(peer), peer_name=name)

    def data_received(self, data: bytes) -> None:
        driver = self._driver
        driver.read_bytes += len(data)
        signals = self._receive(self.conn_id, data, monotonic_ns())
        if signals:
            self._signal(signals, self)

    def pause_writing(self) -> None:
        self._driver.writable(self, False)

    def resume_writing(self) -> None:
        self._driver.writable(self, True)

    def connection_lost(self, error: Exception | None) -> None:
        self._driver.lost(self, str(error) if error else "closed by the peer")

    def hang_up(self) -> None:
        """Say nothing more; what the peer still sends is read and dropped, so that a reset does not eat our last
        words.
        """
        self._receive = discard
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()


def discard(_conn: int, _data: object, _now_ns: int) -> int:
    """Reads and drops."""
    return 0


def _is_loopback(peer: object) -> bool:
    if not isinstance(peer, tuple):
        return True  # a Unix socket has no address, and no peer from another machine
    host = str(peer[0])
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"
