"""The disk: where the engine's disk jobs are run.

Owns the threads that jobs run on. Jobs come from the engine through the driver and go back to it when they have run,
on the loop's thread; what they did or could not do is the engine's to judge.
It must never look into a job, and never run one on the loop's thread while the node serves.
Rule: one thread writes, so that batches reach the disk in their order; two read, so that the disk is busy while what it
gave is verified; another tidies, so that none waits for it. They are the kernel's: a thread of Python's would wait for
the loop to let go of the interpreter, and the loop for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from weft._kernel import DiskJob, DiskThreads

WRITE, READ, BACKGROUND = "write", "read", "background"
THREADS = {WRITE: 1, READ: 2, BACKGROUND: 1}
"""Threads for each kind of job. Whatever makes a sidecar is of one kind, so that no two make the same."""

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
        self._threads = {kind: DiskThreads(f"weft-{kind}", count) for kind, count in THREADS.items()}
        for threads in self._threads.values():
            loop.add_reader(threads.fileno(), self._back, threads)
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
            self._threads[job.kind].start(job)

    def _back(self, threads: DiskThreads) -> None:
        for job in threads.finished():
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
        for threads in self._threads.values():
            self._loop.remove_reader(threads.fileno())
            threads.close()
