"""Sources that weft's own is compared with: one of Python tuples, and one whose rows cost nothing to read.

Owns two small data sources for `spark_streams.py`, both made of weft's. The same options come in; the same rows go out
as tuples, or the first batch of a range again and again, as many rows as the range has. What the second reaches is what
Spark's interface for Python sources can reach, whoever reads: the bound for every figure.
It must never do more work than its name says.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from weft.spark.offsets import Slice
from weft.spark.options import read_options
from weft.spark.reader import BatchReader, StreamReader
from weft.spark.source import WeftSource

KEPT: dict[str, pa.RecordBatch] = {}
"""The first batch of a schema; a worker lives longer than its tasks."""


class Tuples(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:  # type: ignore[override]
        for batch in super().read(partition):
            columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
            columns["headers"] = [dict(pairs) for pairs in columns["headers"]]
            yield from zip(*columns.values(), strict=True)


class TupleSource(WeftSource):
    """The same source, but with a Python tuple per message."""

    @classmethod
    def name(cls) -> str:
        return "weft-tuples"

    def reader(self, schema: StructType) -> DataSourceReader:  # type: ignore[override]
        return Tuples(read_options(self.options, streaming=False), schema)


def _moved(batch: pa.RecordBatch, by_us: int) -> pa.RecordBatch:
    """The same batch at a later time: a watermark that stood still would save the query its last batch."""
    if "enqueue_time" not in batch.schema.names:
        return batch
    at = batch.schema.get_field_index("enqueue_time")
    later = pc.add(batch.column(at), pa.scalar(by_us, pa.duration("us")))
    return batch.set_column(at, batch.schema.field(at), later)


class _Free:
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Slice):
            return
        key = str(self.arrow)  # type: ignore[attr-defined]
        if key not in KEPT:
            KEPT[key] = next(super().read(partition))  # type: ignore[misc]
        batch, rows = _moved(KEPT[key], partition.start), partition.end - partition.start
        while rows > 0:
            yield batch.slice(0, min(rows, batch.num_rows))
            rows -= batch.num_rows


class FreeBatches(_Free, BatchReader):
    pass


class FreeStream(_Free, StreamReader):
    pass


class FreeSource(WeftSource):
    """A source that hands out the same batch again: what Spark itself costs."""

    @classmethod
    def name(cls) -> str:
        return "weft-free"

    def reader(self, schema: StructType) -> DataSourceReader:  # type: ignore[override]
        return FreeBatches(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # type: ignore[override] # noqa: N802
        return FreeStream(read_options(self.options, streaming=True), schema)
