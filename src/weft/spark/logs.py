"""Logs as the source sees them: what is there, and rows between two offsets as Arrow batches.

Owns the one interface behind which a node's files, its wire and the lake stand, and how history and live tail are
joined. Names and offsets come in, extents and record batches go out.
It must never know Spark, and no reader has an identity: any number may read the same range at the same time.
Rule: the joined log reads each offset from exactly one place, the lake as far as it goes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from weft.spark.offsets import DataLost, Extent, Position

ROWS_PER_BATCH = 2_048
"""Two megabytes of 1 KiB messages: Spark takes batches of one to four fastest."""

NARROW_ROWS_PER_BATCH = 16_384
"""Without bodies a row takes some dozens of bytes, and a batch may have more of them."""


class Log(Protocol):
    """One place that keeps streams."""

    def extents(self, names: Sequence[str]) -> list[Extent]:
        """What is there of the streams whose names or patterns are given, all shards, by name."""
        ...

    def read(
        self, extent: Extent, start: int, end: int, columns: Sequence[str], rows: int = ROWS_PER_BATCH
    ) -> Iterator[pa.RecordBatch]:
        """Rows with start ≤ offset < end in their order; what is not there is left out."""
        ...

    def offset_at(self, extent: Extent, time_us: int) -> int:
        """The first offset that came at this time or later; the end if there is none."""
        ...

    def report(self, query: str, position: Position) -> None:
        """Tell whoever keeps the streams how far a query is; nothing may depend on it."""
        ...


def chosen(name: str, wanted: Iterable[str]) -> bool:
    """Whether a stream is among the names and patterns."""
    return any(name == word or fnmatch.fnmatchcase(name, word) for word in wanted)


@dataclass(frozen=True)
class Joined:
    """History in the lake and the live tail of a node as one log, without gap or overlap."""

    history: Log
    live: Log

    def extents(self, names: Sequence[str]) -> list[Extent]:
        # In this order: what retention takes after the first look is in the lake by the second.
        live = self.live.extents(names)
        old = {(extent.key, extent.life): extent for extent in self.history.extents(names)}
        joined = []
        for extent in live:
            before = old.pop((extent.key, extent.life), None)
            first = min(before.first, extent.first) if before and before.end >= extent.first else extent.first
            joined.append(replace(extent, first=first))
        known = {extent.key for extent in joined}
        # A stream that the node has no more is still history; of its earlier lives the newest counts.
        gone = {extent.key: extent for extent in sorted(old.values(), key=lambda item: age(item.life))}
        return sorted(joined + [item for key, item in gone.items() if key not in known], key=lambda item: item.key)

    def read(
        self, extent: Extent, start: int, end: int, columns: Sequence[str], rows: int = ROWS_PER_BATCH
    ) -> Iterator[pa.RecordBatch]:
        wanted = list(dict.fromkeys([*columns, "offset"]))
        while start < end:
            # Asked again after each part: while one is read, messages go from the node into the lake.
            before = _of(self.history, extent)
            if before is not None and before.first <= start < before.end:
                middle = min(before.end, end)
                yield from self.history.read(before, start, middle, columns, rows)
                start = middle
                continue
            for batch in self.live.read(extent, start, end, wanted, rows):
                if batch.column("offset")[0].as_py() > start and _has(self.history, extent, start):
                    break
                start = batch.column("offset")[-1].as_py() + 1
                yield batch.select(list(columns))
            if start < end and not _has(self.history, extent, start):
                return

    def offset_at(self, extent: Extent, time_us: int) -> int:
        before = _of(self.history, extent)
        if before is not None:
            found = self.history.offset_at(before, time_us)
            if found < before.end:
                return found
        return max(self.live.offset_at(extent, time_us), before.end if before else 0)

    def report(self, query: str, position: Position) -> None:
        self.live.report(query, position)


def age(life: str) -> tuple[int, str]:
    """Lives are numbers that rise; by this the newest is the last."""
    return len(life), life


def _has(log: Log, extent: Extent, offset: int) -> bool:
    found = _of(log, extent)
    return found is not None and found.first <= offset < found.end


def _of(log: Log, extent: Extent) -> Extent | None:
    """The same life of the same shard in another log."""
    same = [item for item in log.extents([extent.stream]) if item.key == extent.key and item.life == extent.life]
    return same[0] if same else None


def read_slice(
    log: Log, extent: Extent, start: int, end: int, columns: Sequence[str], *, lost: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of a range; raises DataLost when some are gone, be it in the middle of reading, unless allowed."""
    if extent.first > start and not lost:
        raise DataLost(
            f"stream {extent.key} holds nothing before offset {extent.first}, {start} was to be read: retention was"
            f" faster than the query (failOnDataLoss=false reads on from what is there)"
        )
    rows = ROWS_PER_BATCH if "body" in columns else NARROW_ROWS_PER_BATCH
    came = 0
    for batch in log.read(extent, max(start, extent.first), end, columns, rows):
        came += batch.num_rows
        yield batch
    # A stream's offsets have no holes: a row that did not come was there, or was to be.
    if came < end - start and not lost:
        raise DataLost(
            f"stream {extent.key}: of offsets {start} to {end - 1} only {came} are there; retention was faster than the"
            f" query, or files were lost (failOnDataLoss=false reads on from what is there)"
        )
