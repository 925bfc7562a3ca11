"""Streams into Spark: the batch reader and the micro-batch reader of `format("weft")`.

Owns the steps of a query: where it begins, how far a batch goes, what each task reads. Options and a schema come
in; positions, slices and Arrow batches in exactly Spark's schema go out.
It must never keep the truth about progress: that is Spark's checkpoint. What is told to a node is telemetry.
Rule: rows never become Python objects; docs/guides/spark.md.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from weft.model.errors import ConfigError
from weft.spark import offsets
from weft.spark.logs import Log, read_slice
from weft.spark.offsets import DataLost, Extent, Place, Position, Slice
from weft.spark.options import EARLIEST, LATEST, ReadOptions
from weft.spark.places import open_log
from weft.spark.schema import arrow_schema, narrow, shape


class _Reading:
    """What both readers do alike."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.columns = narrow(schema)
        self.arrow = arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, in Spark's schema. Runs on an executor."""
        if not isinstance(partition, Slice):
            # Spark makes up a partition of its own where there is nothing to read.
            return
        _settle()
        log = open_log(self.options)
        extent = _extent(log, partition)
        may_lack = not self.options.fail_on_data_loss
        if extent is None:
            if may_lack or partition.fresh:
                return
            raise DataLost(f"stream {partition.stream}/{partition.shard} is gone, in the life that was to be read")
        start = max(partition.start, extent.first) if partition.fresh else partition.start
        # Without a column a batch has no length: count() asks for none.
        columns = self.columns or ["offset"]
        if start < partition.end:
            for batch in read_slice(log, extent, start, partition.end, columns, lost=may_lack):
                yield shape(batch, self.arrow)


@functools.cache
def _settle() -> None:
    """Tell the collector, once per process, that what was imported stays.

    Spark has every worker collect its garbage after each task. To walk through all modules for it takes longer than to
    read fifty thousand rows.
    """
    gc.freeze()


def _extent(log: Log, piece: Slice) -> Extent | None:
    for extent in log.extents([piece.stream]):
        if (extent.stream, extent.shard, extent.life) == (piece.stream, piece.shard, piece.life):
            return extent
    return None


class BatchReader(_Reading, DataSourceReader):
    """A bounded range of streams."""

    def partitions(self) -> list[Slice]:
        """The range, cut for tasks."""
        log = open_log(self.options)
        extents = log.extents(self.options.streams)
        _must_be_there(extents, self.options)
        start = resolve(log, extents, self.options.starting)
        end = resolve(log, extents, self.options.ending)
        _no_surprise({extent.key: extent for extent in extents}, start, self.options)
        ends = {extent.key: extent.end for extent in extents}
        beyond = [key for key, place in sorted(end.items()) if place["next"] > ends[key]]
        if beyond and self.options.fail_on_data_loss:
            raise DataLost(
                f"endingOffsets: stream {beyond[0]} ends at offset {ends[beyond[0]]}, {end[beyond[0]]['next']} was to"
                f" be the end (failOnDataLoss=false reads what is there)"
            )
        end = {key: Place(life=place["life"], next=min(place["next"], ends[key])) for key, place in end.items()}
        end = {key: place for key, place in end.items() if place["next"] > start[key]["next"]}
        numbers = {"rows_max": self.options.partition_rows_max, "parts_min": self.options.partitions_min}
        return offsets.slices(start, end, **numbers)


class StreamReader(SupportsTriggerAvailableNow, _Reading, DataSourceStreamReader):
    """Streams without end, in micro-batches. One object lives as long as its query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._log: Log | None = None
        self._target: Position | None = None
        self._waiting_since: float | None = None

    @property
    def log(self) -> Log:
        """Opened at first use, in the process that plans the query."""
        if self._log is None:
            self._log = open_log(self.options)
        return self._log

    def initialOffset(self) -> Position:  # noqa: N802 - Spark's name, as all below
        """Where a query begins that has no checkpoint yet."""
        extents = self.log.extents(self.options.streams)
        _must_be_there(extents, self.options)
        return resolve(self.log, extents, self.options.starting)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit Spark shows; the finer ones are kept in `latestOffset`."""
        return ReadMaxRows(self.options.rows_max) if self.options.rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember what is there now: the query ends when it has read that."""
        self._target = offsets.position(self.log.extents(self.options.streams))

    def reportLatestOffset(self) -> Position:  # noqa: N802
        """The heads of the streams, for the lag in a query's progress."""
        return offsets.position(self.log.extents(self.options.streams))

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        """How far the next batch goes."""
        extents = {extent.key: extent for extent in self.log.extents(self.options.streams)}
        _no_surprise(extents, start, self.options)
        end = self._target if self._target is not None else offsets.position(extents.values())
        end = offsets.forward(start, end)
        held = offsets.held(start, end, extents)
        waits = offsets.available(held, end)
        if self._target is None and self._too_few(waits):
            return start
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        if self.options.bytes_max:
            row_bytes = max((extent.row_bytes for extent in extents.values()), default=0) or 1_024
            by_size = max(1, self.options.bytes_max // row_bytes)
            rows_max = min(rows_max, by_size) if rows_max else by_size
        return offsets.limit(held, end, rows_max) if 0 < rows_max < waits else end

    def _too_few(self, waits: int) -> bool:
        """Whether to wait for more rows; never longer than was allowed."""
        if not self.options.rows_min or waits >= self.options.rows_min or waits == 0:
            self._waiting_since = None
            return False
        now = time.monotonic()
        since = self._waiting_since = self._waiting_since if self._waiting_since is not None else now
        if self.options.delay_max_s and now - since >= self.options.delay_max_s:
            self._waiting_since = None
            return False
        return True

    def partitions(self, start: Position, end: Position) -> list[Slice]:
        """Slices of a batch, by its two positions alone."""
        numbers = {"rows_max": self.options.partition_rows_max, "parts_min": self.options.partitions_min}
        return offsets.slices(start, end, **numbers)

    def commit(self, end: Position) -> None:
        """Tell the node how far the query is; nothing depends on it."""
        self.log.report(self.options.query, end)

    def stop(self) -> None:
        """Spark does not call it when a query ends; nothing is held that would matter."""


def resolve(log: Log, extents: list[Extent], bound: str | int | Mapping[str, int]) -> Position:
    """A bound as the user gave it, as a position in what is there."""
    if bound == EARLIEST:
        return offsets.position(extents, at="first")
    if bound == LATEST:
        return offsets.position(extents)
    if isinstance(bound, int):
        return {item.key: Place(life=item.life, next=log.offset_at(item, bound)) for item in extents}
    assert not isinstance(bound, str)
    if "" in bound:
        return {item.key: Place(life=item.life, next=min(bound[""], item.end)) for item in extents}
    strangers = sorted(set(bound) - {extent.key for extent in extents})
    if strangers:
        known = ", ".join(extent.key for extent in extents)
        raise ConfigError(f"offsets name {', '.join(strangers)}, which is not read; known: {known}")
    return {item.key: Place(life=item.life, next=bound.get(item.key, item.first)) for item in extents}


def _must_be_there(extents: list[Extent], options: ReadOptions) -> None:
    exact = [name for name in options.streams if not any(char in name for char in "*?[")]
    there = {extent.stream for extent in extents}
    absent = [name for name in exact if name not in there]
    if absent:
        place = options.url or options.path or options.lake
        raise ConfigError(f"there is no stream {', '.join(absent)} in {place}: declare it first (x-queue-type: stream)")


def _no_surprise(extents: dict[str, Extent], start: Position, options: ReadOptions) -> None:
    if options.fail_on_data_loss:
        told = offsets.losses(start, extents)
        if told:
            raise DataLost(
                f"{'; '.join(told)}. Set failOnDataLoss=false to read on from what is there, or begin anew with"
                f" another checkpoint"
            )
