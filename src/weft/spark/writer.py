"""Rows of Spark as messages: confirmed, and each with an identity that a repeated batch gives it again.

Owns the identity of rows (producer, batch, partition, row), the addresses they go to and what a task reports. Arrow
batches come in; confirmed messages and a small receipt go out.
It must never call a row written that the node has not confirmed. A batch that is repeated sends the same ids, and
an idempotency barrier on `message-id` makes of that exactly once.
Rule: docs/guides/spark.md, "Writing".
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from weft.spark.options import WriteOptions
from weft.spark.sending import Outbox

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Properties that Spark gives the tasks of a streaming query; the same again when a batch is repeated."""


@dataclass
class Receipt(WriterCommitMessage):
    """What one task sent and the node confirmed."""

    partition: int
    rows: int


class _Writing:
    """What both writers do alike."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = options
        self.columns = schema.names
        # Made on the driver and sent to every task, so a task that is tried again has the same.
        self.producer = options.producer or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        """Send a partition and wait for its confirms. Runs on an executor."""
        context = TaskContext.get()
        assert context is not None, "tasks run inside Spark"
        partition = context.partitionId()
        identity = f"{self._producer(context)}:{self._batch(context)}:{partition}"
        rows = 0
        with Outbox(self.options) as outbox:
            for batch in iterator:
                outbox.send(batch, identity, rows)
                rows += batch.num_rows
        return Receipt(partition, rows)

    def _producer(self, context: TaskContext) -> str:
        return self.options.producer or context.getLocalProperty(QUERY) or self.producer

    def _batch(self, context: TaskContext) -> str:
        return str(self.options.batch) if self.options.batch is not None else context.getLocalProperty(BATCH) or "0"


class BatchWriter(_Writing, DataSourceArrowWriter):
    """For `df.write`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Everything was confirmed already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was sent stays sent; the same rows written again under the same producer are recognised."""


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """For `df.writeStream`."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Everything was confirmed already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Spark repeats the batch under the same ids."""
