"""Definitions of a node that may be running: read from a copy.

Owns the one way to look into a definitions file that a node holds locked: it is copied with its write-ahead log, and
the copy is opened. A path comes in, records go out.
It must never open the original, since SQLite would write beside it.
Rule: https://www.sqlite.org/walformat.html; a log that was begun anew while it was copied has other salts in its
header.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weft.model.errors import Unavailable
from weft.store.definitions import NODE, Store
from weft.store.records import Queue

TRIES_MAX = 8
WAL_HEADER_BYTES = 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What readers of files ask for."""

    node: str
    """The name of the node that last used the file; empty if none told."""
    queues: list[Queue]


def read_snapshot(path: Path) -> Snapshot:
    """The durable queues that a definitions file has, and whose it is."""
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        copy = Path(folder) / path.name
        _copy(path, copy)
        store = Store(copy)
        try:
            return Snapshot(next(iter(store.objects(NODE)), ""), store.queues())
        finally:
            store.close()


def copy_definitions(path: Path, copy: Path) -> None:
    """Make another definitions file with the same in it."""
    _copy(path, copy)
    Store(copy).close()  # it says if it cannot be read, and needs no log beside it any more


def _copy(path: Path, copy: Path) -> None:
    log, log_copy = Path(f"{path}-wal"), Path(f"{copy}-wal")
    for _ in range(TRIES_MAX):
        try:
            before = _header(log)
            shutil.copyfile(path, copy)
            with suppress(FileNotFoundError):
                shutil.copyfile(log, log_copy)
            if _header(log) == before:
                return
        except OSError as error:
            raise Unavailable(f"cannot read definitions {path}: {(error.strerror or str(error)).lower()}") from None
    raise Unavailable(f"definitions {path} change too fast to be copied; try again")


def _header(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            return file.read(WAL_HEADER_BYTES)
    except FileNotFoundError:
        return b""
