"""The disk: where the engine's disk jobs are run.

Owns the threads that jobs run on. Jobs come from the engine through the driver and go back to it when they have run,
on the loop's thread; what they did or could not do is the engine's to judge.
It must never look into a job, and never run one on the loop's thread while the node serves.
Rule: one thread writes, so that batches reach the disk in their order; another reads and tidies, so that neither waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from weft._kernel import DiskJob

WRITE = "write"


class Disk:
    """Runs disk jobs and hands them back."""

    def __init__(self, loop: asyncio.AbstractEventLoop, done: Callable[[DiskJob], None]) -> None:
        self._loop = loop
        self._done = done
        self._writer = ThreadPoolExecutor(1, "weft-write")
        self._reader = ThreadPoolExecutor(1, "weft-read")
        self._out = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self, jobs: Sequence[DiskJob]) -> None:
        """Run jobs; each comes back through `done`."""
        for job in jobs:
            self._out += 1
            self._idle.clear()
            thread = self._writer if job.kind == WRITE else self._reader
            thread.submit(self._run_on_disk_thread, job)

    def _run_on_disk_thread(self, job: DiskJob) -> None:
        job.run()
        self._loop.call_soon_threadsafe(self._back, job)

    def _back(self, job: DiskJob) -> None:
        self._out -= 1
        self._done(job)
        if self._out == 0:
            self._idle.set()

    async def settle(self) -> None:
        """Wait until no job is out and none follows."""
        await self._idle.wait()

    def close(self) -> None:
        """End the threads."""
        self._writer.shutdown()
        self._reader.shutdown()
