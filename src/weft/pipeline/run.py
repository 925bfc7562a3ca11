"""A run of the pipeline: one streaming query over the streams, fanned out to the jobs batch by batch.

Owns the step that a batch takes (bronze, then each job's silver, then its messages), gold, and what is told
meanwhile. Settings come in; files and messages go out.
It must never be the memory of what was done: Spark's checkpoint is, and every output of a batch can be written
again over itself. So a run that was killed anywhere goes on without a gap or a double.
One query for all jobs, since each query costs a gigabyte and a Python process per reader (docs/guides/pipeline.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from weft.pipeline.jobs import Job
from weft.pipeline.store import Store
from weft.spark.schema import MESSAGE

ROWS_PER_TRIGGER = 200_000
GOLD_EVERY_S = 60.0


@dataclass(frozen=True)
class Settings:
    """What a run reads, where it keeps things and where its answers go."""

    source: dict[str, str]
    """Options of `format("weft")`: url or path, streams."""
    lake: str
    jobs: tuple[Job, ...]
    answers_to: str | None = None
    """URL of the node that gets the messages; without it nothing is sent."""
    once: bool = False
    trigger_s: float = 1.0
    bronze: bool = True
    """Whether raw rows are kept; jobs then read them from there."""


@dataclass
class Run:
    """One run; `start` it, then wait for its query."""

    spark: SparkSession
    settings: Settings
    say: Callable[[str], None] = print
    _gold_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.store = Store(self.settings.lake)

    def start(self) -> StreamingQuery:
        """Begin, or go on where the checkpoint says."""
        options = {"maxRowsPerTrigger": str(ROWS_PER_TRIGGER)} | self.settings.source
        rows = self.spark.readStream.format("weft").options(**options).load()
        self.spark.streams.addListener(Progress(self.say))
        writer = rows.writeStream.foreachBatch(self.step).queryName("weft-pipeline")
        writer = writer.option("checkpointLocation", self.store.path("checkpoint"))
        if self.settings.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(self.settings.trigger_s * 1000)} milliseconds").start()

    def step(self, rows: DataFrame, batch: int) -> None:
        """One batch: all of it can be done again. That it is here says that the batches before are done for good."""
        self._tidy(batch)
        if self.settings.bronze:
            rows = self.store.write_bronze(rows, batch)
        for job in self.settings.jobs:
            self._do(job, rows.select(*job.columns, *_extra(job, rows)).where(job.where), batch)
        if not self.settings.once and time.monotonic() - self._gold_at > GOLD_EVERY_S:
            self.write_gold()

    def _do(self, job: Job, rows: DataFrame, batch: int) -> None:
        made = {}
        for table, partial in job.silver.items():
            made[table] = partial(rows).toArrow()
            self.store.write_silver(table, batch, made[table])
        if job.answer is None or self.settings.answers_to is None:
            return
        table, answer = job.answer
        whole = self.store.silver(self.spark, table)
        if made[table].num_rows and whole is not None:
            self._send(answer(self.spark.createDataFrame(made[table]), whole), job, batch)

    def _send(self, messages: DataFrame, job: Job, batch: int) -> None:
        assert self.settings.answers_to is not None
        assert set(messages.columns) <= set(MESSAGE.names)
        # Few and small: one task sends them, in one connection.
        (
            messages.coalesce(1)
            .write.format("weft")
            .option("url", self.settings.answers_to)
            .option("producer", f"pipeline.{job.name}")
            .option("batch", str(batch))
            .mode("append")
            .save()
        )

    def write_gold(self) -> None:
        """What silver comes to by now."""
        for job in self.settings.jobs:
            for table, (source, result) in job.gold.items():
                whole = self.store.silver(self.spark, source)
                if whole is not None:
                    self.store.write_gold(table, result(whole).toArrow())
        self._gold_at = time.monotonic()

    def _tidy(self, before: int) -> None:
        for job in self.settings.jobs:
            for table in job.silver:
                self.store.merge_silver(table, before)


def _extra(job: Job, rows: DataFrame) -> list[str]:
    """Columns that a job's condition names beside its own."""
    return [name for name in rows.columns if name in job.where and name not in job.columns]


class Progress(StreamingQueryListener):
    """Tells each batch in one line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        """Nothing to tell: the command has said what it reads."""

    def onQueryIdle(self, event: object) -> None:  # noqa: N802
        """Nothing new."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A batch is done."""
        progress = json.loads(event.progress.json)
        rows = progress.get("numInputRows", 0)
        if rows:
            behind = sum(_behind(source) for source in progress.get("sources", ()))
            seconds = progress.get("durationMs", {}).get("triggerExecution", 0) / 1000
            rate = rows / seconds if seconds else 0.0
            self._say(
                f"batch {progress['batchId']}: {rows:,} rows in {seconds:.1f} s ({rate:,.0f}/s), {behind:,} behind"
            )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The command tells how it ended."""


def _behind(source: dict[str, object]) -> int:
    """Rows between where a source is and the head of its streams."""
    places = [source.get(name) for name in ("endOffset", "latestOffset")]
    end, head = (json.loads(place) if isinstance(place, str) else place for place in places)
    if not isinstance(end, dict) or not isinstance(head, dict):
        return 0
    return sum(max(0, place["next"] - end.get(key, {"next": 0})["next"]) for key, place in head.items())
