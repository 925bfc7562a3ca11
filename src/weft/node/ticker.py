"""Time for the engine: one timer for all its deadlines.

Owns the single pending timer. The engine says when it wants to be woken (`poll_timeout`), the ticker calls back then:
by a timer of the system where there is one, since loops count in milliseconds and round up twice.
It must never keep a timer per connection or message, nor wake an idle node.
Rule: time comes in with each call and is never read inside the kernel (docs/decisions/0002-time-comes-with-bytes.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

SECOND_NS = 1_000_000_000
CLOCK_MONOTONIC, ABSOLUTE = 1, 1


class Alarm:
    """A timer of the system as a file that becomes readable (timerfd). Python has it itself from 3.13 on."""

    def __init__(self) -> None:
        """OSError if there is none."""
        self._system = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._system.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._times = (ctypes.c_long * 4)()  # an interval, which is none, and a time: seconds and nanoseconds each

    def set(self, at_ns: int) -> None:
        """Ring at this time of the monotonic clock, at once if it is over, and no more at another."""
        self._times[2], self._times[3] = divmod(max(at_ns, 1), SECOND_NS)
        self._system.timerfd_settime(self.fd, ABSOLUTE, self._times, None)

    def hush(self) -> None:
        """It was heard."""
        with contextlib.suppress(BlockingIOError):  # set anew since it rang
            os.read(self.fd, 8)


def find_alarm() -> Alarm | None:
    """The system's timer, where it is known to be as above."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    try:
        return Alarm()
    except (OSError, AttributeError):
        return None


class Ticker:
    """Calls `wake` when the engine's earliest deadline has passed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, poll_timeout: Callable[[], int | None], wake: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._poll_timeout = poll_timeout
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_ns: int | None = None
        self._alarm = find_alarm()
        if self._alarm is not None:
            loop.add_reader(self._alarm.fd, self._fire)

    def rearm(self) -> None:
        """The earliest deadline may have moved. A timer that is too early stays: waking once for nothing is cheaper
        than setting it anew.
        """
        deadline_ns = self._poll_timeout()
        if deadline_ns is None or (self._deadline_ns is not None and self._deadline_ns <= deadline_ns):
            return
        self._deadline_ns = deadline_ns
        if self._alarm is not None:
            self._alarm.set(deadline_ns)
            return
        if self._timer is not None:
            self._timer.cancel()
        # The loop's clock is the same monotonic one, read in milliseconds. Rounded up: a call just before the deadline
        # would find nothing due and spin.
        self._timer = self._loop.call_at(-(-deadline_ns // 1_000_000) / 1_000, self._fire)

    def stop(self) -> None:
        """Never wake again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._alarm is not None:
            self._loop.remove_reader(self._alarm.fd)
            os.close(self._alarm.fd)
            self._alarm = None

    def _fire(self) -> None:
        self._timer = self._deadline_ns = None
        if self._alarm is not None:
            self._alarm.hush()
        self._wake()
