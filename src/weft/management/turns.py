"""Long work in short parts, so that messages need not wait for it.

Owns the order in which parts of management's work have the loop. Whoever has much to do asks after every few rows
whether its part is over, and gives way then; it goes on when everything that arrived meanwhile was read, routed and
written, and all others with long work had a part of theirs.
It must not know what the work is.
Rule: docs/decisions/0033-one-part-at-a-time.md and 0045-who-works-for-long-leaves-the-core.md; a part is over after
`PART_NS`, whoever works in it; parts never follow each other without a look at all sockets, however many work at once,
and where messages flow the process sleeps in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from weakref import WeakKeyDictionary

PART_NS = 150_000
"""What a part may take, and the longest that one row takes beyond it."""
REST_S = 0.001
"""Between two parts while messages flow: the shortest time for which a loop sleeps."""


class Turns:
    """The parts of one piece of work."""

    __slots__ = ("_end_ns",)

    def __init__(self) -> None:
        self._end_ns = _gate().part_end_ns()

    @property
    def is_over(self) -> bool:
        """Has this part taken its time?"""
        return monotonic_ns() >= self._end_ns

    async def give_way(self) -> None:
        """Let all others go first, then begin another part."""
        gate = _gate()
        await gate.passed()
        self._end_ns = gate.part_end_ns()

    async def next_row(self) -> None:
        """Give way if this part is over."""
        if monotonic_ns() >= self._end_ns:
            await self.give_way()


def heed(is_busy: Callable[[], bool]) -> None:
    """Long work on this loop gives up the processor between two parts, as long as this says that others need it."""
    _gate().is_busy = is_busy


class _Gate:
    """Lets one part pass at a time, in the order of asking, with two turns of the loop between them: in the first
    sockets are read, in the second what follows from that is written.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_busy: Callable[[], bool] = lambda: False
        self._call_soon = loop.call_soon
        self._call_later = loop.call_later
        self._new = loop.create_future
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._end_ns = 0

    def part_end_ns(self) -> int:
        """When the part of this turn of the loop is over: one work that follows another has what that one left."""
        if not self._end_ns:
            self._end_ns = monotonic_ns() + PART_NS
            self._call_soon(self._turned)
        return self._end_ns

    def _turned(self) -> None:
        self._end_ns = 0

    def passed(self) -> asyncio.Future[None]:
        """Done when it is this one's turn."""
        mine = self._new()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            self._open_soon()
        return mine

    def _open_soon(self) -> None:
        if self.is_busy():
            # A process that computes without a pause keeps the core for milliseconds, whoever else wants it: its own
            # peers, which it has just woken.
            self._call_later(REST_S, self._open)
        else:
            self._call_soon(self._call_soon, self._open)

    def _open(self) -> None:
        first = self._waiting.popleft()
        if not first.done():
            first.set_result(None)
        if self._waiting:
            self._open_soon()


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gate] = WeakKeyDictionary()
"""Of every loop of this process: there is one in a node, and another in each test."""


def _gate() -> _Gate:
    loop = asyncio.get_running_loop()
    gate = _gates.get(loop)
    if gate is None:
        gate = _gates[loop] = _Gate(loop)
    return gate
