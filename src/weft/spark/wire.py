"""A node's streams over the network: the same columns, asked for batch by batch.

Owns the questions (which streams, up to where, which rows) and one connection per process. A URL comes in; extents and
record batches go out, as the node made them: rows become Arrow in its kernel and stay so.
It must never read what is not safe on the node's disk, and never hold a consumer there: every question stands alone.
The questions are management's: class `stream`, operation `columns` (docs/reference/management.md).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa

from weft.client import Fabric
from weft.client.management import Management
from weft.model.errors import Refused, Unavailable, WeftError
from weft.spark.files import PARTITION, PARTITION_OF, PARTITIONS
from weft.spark.logs import ROWS_PER_BATCH, chosen
from weft.spark.offsets import Extent, Position

ASKED = ("name", "arguments", "number", "first_offset", "safe_offset", "bytes", "next_offset")
TIMEOUT_S = 30.0
WIRES_MAX = 16
"""Nodes that one process reads from at a time."""

T = TypeVar("T")


class Wire:
    """The streams of the virtual host that a URL enters."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._fabric = Fabric(url, name="spark-reader")
        self._run(self._fabric.open())
        self._management = Management(self._fabric, timeout_s=TIMEOUT_S)
        self._queues: dict[str, str] = {}

    def extents(self, names: Sequence[str]) -> list[Extent]:
        found = []
        for row in self._run(self._management.query("stream", columns=ASKED)):
            arguments = row.get("arguments") or {}
            stream, shard = str(arguments.get(PARTITION_OF, row["name"])), int(arguments.get(PARTITION, 0))
            if PARTITIONS not in arguments and chosen(stream, names):
                kept = row["next_offset"] - row["first_offset"]
                life = str(row["number"])
                self._queues[life] = row["name"]
                size = row["bytes"] // kept if kept else 0
                found.append(Extent(stream, shard, life, row["first_offset"], row["safe_offset"], size))
        return sorted(found, key=lambda extent: (extent.stream, extent.shard))

    def read(
        self, extent: Extent, start: int, end: int, columns: Sequence[str], rows: int = ROWS_PER_BATCH
    ) -> Iterator[pa.RecordBatch]:
        # The offset of the last row says where to go on, whether it was asked for or not.
        wanted = list(dict.fromkeys([*columns, "offset"]))
        while start < end:
            batch = self._batch(extent, start, end, wanted, rows)
            if batch is None:
                return
            start = batch.column("offset")[-1].as_py() + 1
            yield _named(batch.select(list(columns)), extent)

    def offset_at(self, extent: Extent, time_us: int) -> int:
        low, high = extent.first, extent.end
        while low < high:
            middle = (low + high) // 2
            batch = self._batch(extent, middle, high, ["offset", "enqueue_time"], 1)
            if batch is not None and batch.column("enqueue_time").cast(pa.int64())[0].as_py() < time_us:
                low = batch.column("offset")[0].as_py() + 1
            else:
                high = middle
        return low

    def report(self, query: str, position: Position) -> None:
        """An event of class `query`, kind `progress`, among the node's own on `weft.events`."""
        streams = {key: place["next"] for key, place in position.items()}
        event = {"class": "query", "kind": "progress", "object": query, "values": {"streams": streams}}
        with suppress(WeftError):  # a node that cannot be told is no reason to stop
            self._run(self._management.call("node", None, "tell", event))

    def _batch(self, extent: Extent, start: int, end: int, columns: Sequence[str], rows: int) -> pa.RecordBatch | None:
        asked = {"start": start, "end": end, "columns": list(columns), "rows": rows}
        answer = self._run(self._management.call("stream", self._queue(extent), "columns", asked))
        # A stream that was made again while this one was read has its name and other messages.
        if not answer["arrow"] or str(answer.get("number", extent.life)) != extent.life:
            return None
        with pa.ipc.open_stream(answer["arrow"]) as reader:
            return reader.read_next_batch()

    def _queue(self, extent: Extent) -> str:
        """The name under which the node keeps a shard, in the life that is meant."""
        if extent.life not in self._queues:
            self.extents([extent.stream])
        if extent.life not in self._queues:
            raise Unavailable(f"stream {extent.key} is gone, in the life that was to be read")
        return self._queues[extent.life]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except Refused as error:
            raise Unavailable(f"the node does not let its streams be read: {error}") from None


def _named(batch: pa.RecordBatch, extent: Extent) -> pa.RecordBatch:
    """The node calls a part by its own name; readers know the stream and the shard."""
    for name, value in (("stream", extent.stream), ("shard", extent.shard)):
        index = batch.schema.get_field_index(name)
        if index >= 0:
            field = batch.schema.field(index)
            column = pa.repeat(pa.scalar(value, field.type), batch.num_rows)
            batch = batch.set_column(index, field, column)
    return batch


@functools.lru_cache(maxsize=WIRES_MAX)
def wire(url: str) -> Wire:
    """The connection of this process to a node."""
    return Wire(url)
