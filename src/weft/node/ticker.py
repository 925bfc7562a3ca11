"""Time for the engine: one timer for all its deadlines.

Owns the single pending call of the loop. The engine says when it wants to be woken (`poll_timeout`), the ticker calls
back then.
It must never keep a timer per connection or message, nor wake an idle node.
Rule: time comes in with each call and is never read inside the kernel (docs/decisions/0002-time-comes-with-bytes.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Ticker:
    """Calls `wake` when the engine's earliest deadline has passed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, poll_timeout: Callable[[], int | None], wake: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._poll_timeout = poll_timeout
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_ns = 0

    def rearm(self) -> None:
        """The earliest deadline may have moved. A timer that is too early stays: waking once for nothing is cheaper
        than cancelling.
        """
        deadline_ns = self._poll_timeout()
        if deadline_ns is None:
            return
        if self._timer is not None:
            if self._deadline_ns <= deadline_ns:
                return
            self._timer.cancel()
        # The loop's clock is the same monotonic one, read in milliseconds. Rounded up: a call just before the deadline
        # would find nothing due and spin.
        self._deadline_ns = deadline_ns
        self._timer = self._loop.call_at(-(-deadline_ns // 1_000_000) / 1_000, self._fire)

    def stop(self) -> None:
        """Never wake again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._wake()
