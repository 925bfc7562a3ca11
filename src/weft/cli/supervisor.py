"""What the service manager of a process is told: ready, reloading, stopping, and still alive.

Owns systemd's socket for that, if the process was given one. Words come in and go out as datagrams; a process that
nobody supervises tells nobody.
It must never fail or wait: a service manager that does not listen is no reason to stop serving.
Rule: sd_notify(3); the watchdog is fed from the node's own loop, so that a loop that hangs is found.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

US_PER_S = 1_000_000
PAUSE_S_MIN = 0.01
"""However often a watchdog wants to hear of us, the node has other work."""


class Supervisor:
    """The service manager, as far as it listens."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) if path else None
        span = environment.get("WATCHDOG_USEC", "")
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        asked_s = int(span) / US_PER_S / 2 if span.isdecimal() and is_ours else 0.0
        self._pause_s = max(asked_s, PAUSE_S_MIN) if asked_s else 0.0

    def ready(self, status: str) -> None:
        """What was to be done is done."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` ends it."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")

    def stopping(self) -> None:
        """The process ends by itself."""
        self._tell("STOPPING=1", "STATUS=draining")

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say twice as often as is asked for that the loop still turns."""
        if self._pause_s:
            self._tell("WATCHDOG=1")
            loop.call_later(self._pause_s, self.watch, loop)

    def _tell(self, *lines: str) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto("\n".join(lines).encode(), self._address)
