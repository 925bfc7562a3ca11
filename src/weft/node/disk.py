"""The disk: where the engine's disk jobs are run.

Owns the threads that jobs run on. Jobs come from the engine through the driver and go back to it when they have run,
on the loop's thread; what they did or could not do is the engine's to judge.
It must never look into a job, and never run one on the loop's thread while the node serves.
Rule: one thread writes, so that batches reach the disk in their order; another reads and tidies, so that neither waits.
Both are the kernel's: a thread of Python's would wait for the loop to let go of the interpreter, and the loop for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from weft._kernel import DiskJob, DiskThread

WRITE = "write"

REST_S = 0.5
"""Quiet after which memory that is kept for the next flood is given back."""


class Disk:
    """Runs disk jobs and hands them back."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, done: Callable[[DiskJob], None], rest: Callable[[], None]
    ) -> None:
        """Jobs come back through `done`; `rest` is called once when there was nothing to do for a while."""
        self._loop = loop
        self._done = done
        self._rest = rest
        self._resting: asyncio.TimerHandle | None = None
        self._begun = 0
        self._writer = DiskThread("weft-write")
        self._reader = DiskThread("weft-read")
        for thread in (self._writer, self._reader):
            loop.add_reader(thread.fileno(), self._back, thread)
        self._out = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self, jobs: Sequence[DiskJob]) -> None:
        """Run jobs; each comes back through `done`."""
        self._out += len(jobs)
        self._begun += len(jobs)
        if jobs:
            self._idle.clear()
        for job in jobs:
            (self._writer if job.kind == WRITE else self._reader).start(job)

    def _back(self, thread: DiskThread) -> None:
        for job in thread.finished():
            self._out -= 1
            self._done(job)
        if self._out == 0:
            self._idle.set()
            if self._resting is None:
                self._look_later()

    def _look_later(self) -> None:
        self._resting = self._loop.call_later(REST_S, self._look, self._begun)

    def _look(self, begun: int) -> None:
        """One timer for any number of jobs: the disk rests if none was begun since it was set."""
        self._resting = None
        if begun == self._begun and self._out == 0:
            self._rest()
        else:
            self._look_later()

    async def settle(self) -> None:
        """Wait until no job is out and none follows."""
        await self._idle.wait()

    def close(self) -> None:
        """End the threads."""
        if self._resting is not None:
            self._resting.cancel()
        for thread in (self._writer, self._reader):
            self._loop.remove_reader(thread.fileno())
            thread.close()
