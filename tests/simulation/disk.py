"""Disks whose time is invented: they stand for the kernel's threads that run disk jobs, and for what a crash leaves.

Owns the jobs of each such thread until they are due, and, per node, what its disk itself has rather than the cache
before it. A job is run when its time has come, and is told at once; what was not run when its node died never happened.
When the power goes, writes that were not synced are lost, or torn somewhere; definitions end at their last sync.
It must never start a thread. Rule: jobs of one kind come back in their order, as from `weft._kernel.DiskThreads`.
"""

from __future__ import annotations

import asyncio
import os
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from simulation.loop import LIFE, VirtualLoop
from weft import server
from weft._kernel import DiskJob
from weft.node import disk
from weft.node.folder import Folder
from weft.store import Store

SYNC_S = 0.0005
"""What a job takes."""
MESSAGES, DEFINITIONS = "messages/segments", server.DEFINITIONS
_numbers = count(1)


class VirtualDiskThreads:
    """Runs disk jobs in their order."""

    def __init__(self, _name: str, _count: int) -> None:
        self._number = next(_numbers)
        self._loop = cast("VirtualLoop", asyncio.get_running_loop())
        self._waiting: deque[DiskJob] = deque()
        self._finished: list[DiskJob] = []
        life = LIFE.get()
        life.mortal.append(self)
        self._platter = next((part for part in life.mortal if isinstance(part, Platter)), None)

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
            if self._platter is not None and job.kind == disk.WRITE:
                self._platter.before_write(is_synced=job.must_sync)
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


class Platter:
    """What the disk of one node has while it lives: it is told of each write before it is done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[Path, bytes] | None = None
        """As they were before the first write that nobody has synced."""
        self._store: VirtualStore | None = None
        self._lock: Folder | None = None
        self._definitions: dict[Path, bytes] = {}

    def before_write(self, *, is_synced: bool) -> None:
        """The next batch is written, and synced with all before it, or not."""
        if is_synced:
            self._logs = None
        elif self._logs is None:
            self._logs = {path: _data(path) for path in sorted((self._folder / MESSAGES).glob("*.log"))}

    def hold(self, part: VirtualStore | Folder) -> None:
        """The node has opened this."""
        if isinstance(part, Folder):
            self._lock = part
        else:
            self._store = part

    def die(self) -> None:
        """The process is no more; the system closes what it had open."""
        if self._store is not None:
            base = str(self._folder / DEFINITIONS)
            kept = {Path(base): -1, Path(f"{base}-wal"): self._store.synced_bytes}
            self._definitions = {
                path: path.read_bytes()[: None if size < 0 else size] for path, size in kept.items() if path.exists()
            }
            self._store.close()
        if self._lock is not None:
            self._lock.close()

    def lose_power(self, chance: random.Random) -> None:
        """Of what was not synced the disk has a part: what came first of it, up to some byte."""
        for path, before in (self._logs or {}).items():
            now = _data(path)
            same = bisect_left(
                range(min(len(before), len(now))), True, key=lambda at: before[: at + 1] != now[: at + 1]
            )
            torn = chance.choice((same, len(now), chance.randint(same, len(now))))
            with path.open("r+b") as file:
                file.seek(torn)
                file.write(before[torn:].ljust(len(now) - torn, b"\0"))
        for path in self._folder.glob(f"{DEFINITIONS}*"):
            path.unlink()
        for path, data in self._definitions.items():
            path.write_bytes(data)


def _data(path: Path) -> bytes:
    """What was written into a file that was made at its full size: from its beginning to the first hole."""
    with path.open("rb") as file:
        return file.read(os.lseek(file.fileno(), 0, os.SEEK_HOLE))


class VirtualStore(Store):
    """The definitions, with what of them is safe."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path)
        self.synced_bytes = self._log_bytes()
        """Length of SQLite's log at the last sync. It is never so long that SQLite begins it anew."""

    def sync(self) -> None:
        super().sync()
        self.synced_bytes = self._log_bytes()

    def _log_bytes(self) -> int:
        log = Path(f"{self.path}-wal")
        return log.stat().st_size if self.path is not None and log.exists() else 0


def _held(kind: Any) -> Any:
    """A class whose instances are known to the disk of the node that makes them."""

    def make(*args: Any) -> Any:
        made = kind(*args)
        for part in LIFE.get().mortal:
            if isinstance(part, Platter):
                part.hold(made)
        return made

    return make


@contextmanager
def virtual_disks() -> Iterator[None]:
    """Give weft these threads for those of the kernel, and know what it opens."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(disk, "DiskThreads", VirtualDiskThreads))
        stack.enter_context(patch.object(server, "Folder", _held(Folder)))
        stack.enter_context(patch.object(server, "Store", _held(VirtualStore)))
        yield
