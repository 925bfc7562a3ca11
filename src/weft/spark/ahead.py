"""Rows of a batch that are read while Spark has yet to plan it.

Owns the memory in which they wait. The process that plans a query knows how far a batch goes before Spark has written
that down, planned the batch and started its tasks. It reads the first rows of each slice meanwhile, into files that are
in memory only and go with the process. Slices come in and go out with the place of their rows; a task takes what is
there when it begins, and reads on from the log.
It must never be needed, make a task wait, or hold rows of another slice: what a place holds is its slice's beginning,
without a hole. Why: docs/decisions/0085-what-is-planned-is-read.md.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from weft.model.errors import WeftError
from weft.spark.files import Files
from weft.spark.logs import NARROW_ROWS_PER_BATCH, Log
from weft.spark.offsets import SLICE_ROWS_MIN, Extent, Kept, Slice
from weft.spark.schema import shape

ASKED_FOR = "WEFT_READ_AHEAD"
"""Set where tasks run beside the process that plans them: elsewhere they could not reach what it has read."""

SLICES_MAX = 64
"""Slices of a batch that are begun; each takes a file's number."""
BYTES_MAX = 32 << 20
"""What may wait for the tasks of one batch."""
NICE = 10
"""Spark has work of its own meanwhile, on which all tasks wait: that goes first."""

SEALED = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK if hasattr(fcntl, "F_SEAL_WRITE") else 0


@dataclass(frozen=True)
class _Begun:
    """One slice whose rows are being read."""

    kept: Kept
    batches: Iterator[pa.RecordBatch]


class Ahead:
    """The slices of one batch, read by a thread of its own until a task takes over."""

    def __init__(
        self, log: Files, cut: list[Slice], extents: Mapping[str, Extent], columns: list[str], schema: pa.Schema
    ) -> None:
        self._schema = schema
        self._begun: list[_Begun] = []
        self.slices = list(cut)
        for at, piece in enumerate(cut[:SLICES_MAX]):
            extent = extents.get(f"{piece.stream}/{piece.shard}")
            if extent is not None and extent.life == piece.life and extent.first <= piece.start:
                rows = log.read(extent, piece.start, piece.end, columns, NARROW_ROWS_PER_BATCH, whole=True)
                try:
                    number = os.memfd_create("weft-ahead", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                except OSError:
                    break
                kept = Kept(os.getpid(), number, os.fstat(number).st_ino)
                self._begun.append(_Begun(kept, rows))
                self.slices[at] = replace(piece, kept=kept)
        self._ended = threading.Event()
        # Not by `threading.Thread`, whose `start` waits until the thread runs: Spark waits for our answer meanwhile.
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._read()
        finally:
            self._ended.set()

    def _read(self) -> None:
        """A batch of each slice in turn: all tasks begin at the same time."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        turns, size = list(self._begun), 0
        while turns and size < BYTES_MAX:
            one = turns.pop(0)
            try:
                batch = next(one.batches, None)
                if batch is not None:
                    written = shape(batch, self._schema).serialize()
                    if os.write(one.kept.number, written) == written.size:
                        size += written.size
                        turns.append(one)
            except (WeftError, OSError, pa.ArrowException):
                # A task has taken over, or cannot read it either and will say so.
                continue

    def close(self) -> None:
        """When no task needs it any more."""
        for one in self._begun:
            fcntl.fcntl(one.kept.number, fcntl.F_ADD_SEALS, SEALED)
        self._ended.wait()
        for one in self._begun:
            os.close(one.kept.number)


def begin(
    log: Log, cut: list[Slice], extents: Mapping[str, Extent], columns: list[str], schema: pa.Schema
) -> Ahead | None:
    """Begin to read, where it pays: bodies are no less to copy than to read, and a few rows are read in no time."""
    few = sum(piece.end - piece.start for piece in cut) < SLICE_ROWS_MIN
    if not SEALED or ASKED_FOR not in os.environ or not columns or "body" in columns or few:
        return None
    return Ahead(log, cut, extents, columns, schema) if isinstance(log, Files) else None


def taken(kept: Kept, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows that a slice begins with, as far as they were read; from now on nobody adds to them."""
    try:
        number = os.open(f"/proc/{kept.process}/fd/{kept.number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    with open(number, "rb", buffering=0) as file:
        if os.fstat(number).st_ino != kept.inode:
            # The process has closed it, and opened another under the number.
            return
        fcntl.fcntl(number, fcntl.F_ADD_SEALS, SEALED)
        source = pa.BufferReader(file.read())
    while source.tell() < source.size():
        yield pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
