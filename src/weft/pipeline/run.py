"""A run of the pipeline: one streaming query over the streams, fanned out to the jobs batch by batch.

Owns the step that a batch takes (bronze, then each job's silver, then its messages), gold, and what is told
meanwhile. Settings come in; files and messages go out.
It must never be the memory of what was done: Spark's checkpoint is, and every output of a batch can be written
again over itself. So a run that was killed anywhere goes on without a gap or a double.
One query for all jobs, since each query costs a gigabyte and a Python process per reader (docs/guides/pipeline.md).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from weft.model.errors import Unavailable
from weft.pipeline.bronze import MERGE_BATCHES
from weft.pipeline.exchanges import prepare
from weft.pipeline.jobs import Job
from weft.pipeline.recent import Recent
from weft.pipeline.store import KEPT, Store
from weft.spark.options import write_options
from weft.spark.schema import MESSAGE
from weft.spark.sending import Outbox

ROWS_PER_TRIGGER = 200_000
GOLD_EVERY_S = 60.0
BRONZE_EVERY_S = 3600.0
"""How often is looked for batches of bronze that are old: a folder each, and listing them takes a while."""
PROMPT_ROWS_MAX = 5_000
"""Rows of a batch up to which it costs little to read them twice."""


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
    keep: timedelta = KEPT
    """How long bronze, and silver with a row per message, are kept."""


@dataclass
class Run:
    """One run; `start` it, then wait for its query."""

    spark: SparkSession
    settings: Settings
    say: Callable[[str], None] = print
    check: Callable[[], None] = lambda: None
    """Called before every batch; raises when the lake is not this run's any more."""
    _gold_at: float = field(default=0.0, init=False)
    _bronze_at: float = field(default=-BRONZE_EVERY_S, init=False)
    _bronze_next: int = field(default=0, init=False)
    _recent: dict[str, Recent] = field(default_factory=dict, init=False)
    _stepping: threading.Lock = field(default_factory=threading.Lock, init=False)
    _is_ended: bool = field(default=False, init=False)
    _unheard: set[str] = field(default_factory=set, init=False)
    """Jobs of which it was told that nobody listens."""

    def __post_init__(self) -> None:
        self.store = Store(self.settings.lake)
        self._progress = Progress(self.say)

    def start(self) -> StreamingQuery:
        """Begin, or go on where the checkpoint says."""
        if self.settings.answers_to:
            asyncio.run(prepare(self.settings.answers_to, self.say))
        options = {"maxRowsPerTrigger": str(ROWS_PER_TRIGGER)} | self.settings.source
        rows = self.spark.readStream.format("weft").options(**options).load()
        self.spark.streams.addListener(self._progress)
        writer = rows.writeStream.foreachBatch(self.step).queryName("weft-pipeline")
        writer = writer.option("checkpointLocation", self.store.path("checkpoint"))
        if self.settings.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(self.settings.trigger_s * 1000)} milliseconds").start()

    def end(self, query: StreamingQuery) -> None:
        """Let the batch that is being done come to its end, and none after it begin.

        Stopped in the middle, a query fails in Java in ways of its own, which it tells at length.
        """
        with self._stepping:
            self._is_ended = True
        query.stop()

    def step(self, rows: DataFrame, batch: int) -> None:
        """One batch: all of it can be done again. That it is here says that the batches before are done for good."""
        with self._stepping:
            if self._is_ended:
                raise Unavailable("the run was told to end")
            self._step(rows, batch)

    def _step(self, rows: DataFrame, batch: int) -> None:
        self.check()
        self._tidy(batch)
        # Small batches follow each other where messages are answered as they come: nobody waits for bronze then, and
        # it is written when the answers are on their way. Large ones are a backlog, and to read that from the source
        # once for each job would take longer than to keep it first.
        is_small = self._progress.rows <= PROMPT_ROWS_MAX
        prompt = [job for job in self.settings.jobs if job.answer and is_small]
        for job in prompt:
            self._do(job, _parted(rows, is_small), batch)
        if self.settings.bronze:
            rows = self.store.bronze.write(_parted(rows, is_small), batch, is_small=is_small)
        for job in self.settings.jobs:
            if job not in prompt:
                self._do(job, _parted(rows, is_small), batch)
        self._tidy_bronze(batch)
        if not self.settings.once and time.monotonic() - self._gold_at > GOLD_EVERY_S:
            self.write_gold()

    def _do(self, job: Job, rows: DataFrame, batch: int) -> None:
        rows = rows.select(*job.columns, *_extra(job, rows)).where(job.where)
        # What is answered comes first: somebody waits for it.
        for table in sorted(job.silver, key=lambda name: job.answer is None or name != job.answer[0]):
            made = job.silver[table](rows).toArrow()
            self.store.write_silver(table, batch, made)
            if job.answer is not None and table == job.answer[0] and made.num_rows and self.settings.answers_to:
                self._send(job.answer[1](made, self._whole(job, table, batch, made)), job, batch)

    def _whole(self, job: Job, table: str, batch: int, made: pa.Table) -> DataFrame:
        """What all batches made, as far as this one's answer needs it."""
        if job.latest is not None:
            recent = self._recent.setdefault(table, Recent(job.latest))
            if recent.is_new:
                recent.knows_files_end(self.store.newest(table, job.latest, before=batch))
            recent.add(batch, made)
            rows = recent.since(pc.min(made[job.latest]).as_py())
            if rows is not None:
                return self.spark.createDataFrame(rows).coalesce(1)
        whole = self.store.silver(self.spark, table, from_arrow_schema(made.schema))
        assert whole is not None, "this batch is there at least"
        return whole

    def _send(self, messages: DataFrame, job: Job, batch: int) -> None:
        """Few and small, so they go from here: a writer of Spark's would take four processes and as many tenths."""
        assert self.settings.answers_to is not None
        assert set(messages.columns) <= set(MESSAGE.names)
        found = messages.toArrow()
        if found.num_rows:
            # A topic that nobody listens to is no mistake: whoever comes later gets what is sent then.
            with Outbox(write_options({"url": self.settings.answers_to}), heedless=True) as outbox:
                sent = 0
                for part in found.to_batches():
                    outbox.send(part, f"pipeline.{job.name}:{batch}:0", sent)
                    sent += part.num_rows
            if outbox.unheard and job.name not in self._unheard:
                self._unheard.add(job.name)
                self.say(f"nobody listens to answers of {job.name}: {outbox.unheard} of {sent} had no queue to go to")

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
                keep = job.keep.get(table)
                self.store.tidy_silver(table, before, keep and replace(keep, age=self.settings.keep))

    def _tidy_bronze(self, before: int) -> None:
        """When nobody waits for this batch any more."""
        if not self.settings.bronze:
            return
        if before >= self._bronze_next:
            self.store.bronze.tidy(before)
            self._bronze_next = before + MERGE_BATCHES
        if time.monotonic() - self._bronze_at >= BRONZE_EVERY_S:
            self.store.bronze.drop(before, self.settings.keep)
            self._bronze_at = time.monotonic()


def _parted(rows: DataFrame, is_small: bool) -> DataFrame:
    """Of few rows one task makes less work than two: nothing is shuffled then."""
    return rows.coalesce(1) if is_small else rows


def _extra(job: Job, rows: DataFrame) -> list[str]:
    """Columns that a job's condition names beside its own."""
    return [name for name in rows.columns if name in job.where and name not in job.columns]


class Progress(StreamingQueryListener):
    """Tells each batch in one line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.rows = PROMPT_ROWS_MAX + 1
        """What the last batch read; a query begins with what it missed."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        """Nothing to tell: the command has said what it reads."""

    def onQueryIdle(self, event: object) -> None:  # noqa: N802
        """Nothing new."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A batch is done."""
        progress = json.loads(event.progress.json)
        rows = progress.get("numInputRows", 0)
        self.rows = rows
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
