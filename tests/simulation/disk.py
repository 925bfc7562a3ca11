"""A disk whose time is invented: stands for the kernel's threads that run disk jobs.

Owns the jobs of one such thread until they are due. A job is run when its time has come, and is told at once; what was
not run when its node died never happened.
It must never start a thread. Rule: jobs of one thread are run in their order, as `weft._kernel.DiskThread` does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AbstractContextManager
from itertools import count
from typing import Any, cast
from unittest.mock import patch

from simulation.loop import VirtualLoop
from weft._kernel import DiskJob
from weft.node import disk

SYNC_S = 0.0005
"""What a job takes."""
_numbers = count(1)


class VirtualDiskThread:
    """Runs disk jobs in their order."""

    def __init__(self, _name: str) -> None:
        self._number = next(_numbers)
        self._loop = cast("VirtualLoop", asyncio.get_running_loop())
        self._waiting: deque[DiskJob] = deque()
        self._finished: list[DiskJob] = []

    def fileno(self) -> int:
        """What the loop knows it by."""
        return self._number

    def start(self, job: DiskJob) -> None:
        """Run a job after those before it."""
        self._waiting.append(job)
        self._loop.call_later(SYNC_S, self._run)

    def _run(self) -> None:
        if self._waiting:
            job = self._waiting.popleft()
            job.run()
            self._finished.append(job)
            self._loop.readable(self._number)

    def finished(self) -> list[DiskJob]:
        """Jobs that have run since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Run what is left."""
        while self._waiting:
            self._run()

    def die(self) -> None:
        """What has not been run never will be."""
        self._waiting.clear()


def virtual_disks() -> AbstractContextManager[Any]:
    """Give weft these threads for those of the kernel."""
    return patch.object(disk, "DiskThread", VirtualDiskThread)
