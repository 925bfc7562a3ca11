"""Where a run keeps what it computed: bronze, silver and gold under one folder.

Owns the layout. Bronze is what a batch read (`weft.pipeline.bronze`). Silver is what a job made of a batch: one file
per table and batch, small, made to be merged. Gold is the merged answer: one file per table, replaced whole.
It must never show half a file, and a batch that is repeated replaces what it wrote before: names carry the batch,
and a file gets its name when it is whole. That, and Spark's checkpoint, is all there is to exactly once.
The layout is in docs/guides/pipeline.md, "Bronze, silver, gold".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from weft.pipeline.bronze import Bronze
from weft.spark.lake import file_system

BATCH = re.compile(r"(\d{12})(?:-(\d{12}))?\.parquet$")
MERGE_FILES = 64
"""Files of a silver table that are put together into one: a reader opens each of them."""

MERGE_BYTES = 64 << 20
"""What files that are put together come to at most: a file that is larger than its share of it stays as it is."""

KEPT = timedelta(days=7)
"""How long bronze, and silver that has a row per message, are kept, unless the operator says otherwise."""

FIRST, LAST = (datetime(year, 1, 1, tzinfo=UTC) for year in (1, 9999))


@dataclass(frozen=True)
class Keep:
    """How much of a silver table is kept; it ends with whole files, so a little more stays than is asked for."""

    time: str
    """The column that says how old a row is."""
    age: timedelta = KEPT
    """How much older than the newest row one may be."""
    series: tuple[str, str] | None = None
    """A column whose rows belong together, and the number that orders them: they are cut at one number for all."""


class File(NamedTuple):
    """A file of a silver table: its first and last batch, its path and size."""

    first: int
    last: int
    path: str
    size: int


@dataclass(frozen=True)
class Store:
    """The folder of a run, a path or a URL of a file system that pyarrow and Spark both know."""

    url: str

    @property
    def bronze(self) -> Bronze:
        """What batches read."""
        return Bronze(self.url)

    @property
    def files(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path in it."""
        return file_system(self.url)

    def path(self, *parts: str) -> str:
        """A place under the folder, as Spark names it."""
        return "/".join((self.url.rstrip("/"), *parts))

    # silver

    def write_silver(self, table: str, batch: int, rows: pa.Table) -> None:
        """What a job made of a batch; nothing is written for nothing, but what was there before goes."""
        system, root = self.files
        name = f"{root}/silver/{table}/{batch:012}.parquet"
        if rows.num_rows:
            _replace(system, name, rows)
        elif system.get_file_info(name).type == fs.FileType.File:
            system.delete_file(name)

    def silver(self, spark: SparkSession, table: str, schema: StructType | None = None) -> DataFrame | None:
        """Everything a job made of all batches; None before the first. With a schema Spark need not look for one."""
        names = [file.path.rpartition("/")[2] for file in self._batches(table)]
        reader = spark.read.schema(schema) if schema is not None else spark.read
        return reader.parquet(*[self.path("silver", table, name) for name in names]) if names else None

    def newest(self, table: str, column: str, *, before: int) -> datetime:
        """The latest time in what batches before this one made; the end of time where a file does not tell."""
        system, _ = self.files
        times = [_newest(system, file.path, column) for file in self._batches(table) if file.first < before]
        return max((time or LAST for time in times), default=FIRST)

    def tidy_silver(self, table: str, before: int, keep: Keep | None = None) -> None:
        """Put small files of batches that are done for good into one, when there are many; then drop what is old."""
        system, root = self.files
        run = _small([file for file in self._batches(table) if file.last < before])
        if not run:
            return
        rows = pa.concat_tables(
            [pq.read_table(file.path, filesystem=system) for file in run], promote_options="default"
        )
        # From here on readers see the new file alone: `_batches` leaves out what another covers.
        _replace(system, f"{root}/silver/{table}/{run[0].first:012}-{run[-1].last:012}.parquet", rows)
        kept = self._batches(table)
        # With those that somebody who was stopped here left behind.
        for file in self._listed(table):
            if file not in kept:
                system.delete_file(file.path)
        if keep is not None:
            self._drop_old(table, keep)

    def _drop_old(self, table: str, keep: Keep) -> None:
        """Remove files whose rows are all older than is kept, and what is left of series that they held a part of."""
        system, _ = self.files
        files = self._batches(table)
        newest = [_newest(system, file.path, keep.time) for file in files]
        # A clock that runs ahead must not make all the rest old.
        limit = (
            min([datetime.now(tz=UTC), max((time for time in newest if time), default=datetime.now(tz=UTC))]) - keep.age
        )
        old = [file for file, time in zip(files, newest, strict=True) if time is not None and time < limit]
        if old and keep.series is not None:
            ended = pa.concat_tables([pq.read_table(file.path, filesystem=system) for file in old])
            floor = ended.group_by(keep.series[0]).aggregate([(keep.series[1], "max")])
            for file in files:
                if file not in old:
                    _raise_floor(system, file.path, keep.series, floor)
        # Last, since a series is cut by what these hold: whoever is stopped in between does it again.
        for file in old:
            system.delete_file(file.path)

    def _batches(self, table: str) -> list[File]:
        """A table's files by their batches, those left out that a merged one covers."""
        kept: list[File] = []
        for file in self._listed(table):
            if not kept or file.last > kept[-1].last:
                kept.append(file)
        return kept

    def _listed(self, table: str) -> list[File]:
        """All files of a table by their first batch, of several the widest first."""
        system, root = self.files
        found = []
        for info in system.get_file_info(fs.FileSelector(f"{root}/silver/{table}", allow_not_found=True)):
            name = BATCH.search(info.path)
            if name:
                found.append(File(int(name[1]), int(name[2] or name[1]), info.path, info.size))
        return sorted(found, key=lambda file: (file.first, -file.last))

    # gold

    def write_gold(self, table: str, rows: pa.Table) -> None:
        """The answer as of now, in place of the one before."""
        system, root = self.files
        stamp = {b"weft.written": datetime.now(tz=UTC).isoformat(timespec="seconds").encode()}
        _replace(system, f"{root}/gold/{table}.parquet", rows.replace_schema_metadata(stamp))

    def gold(self, table: str) -> pa.Table | None:
        """The answer of a table; None where no run gave one yet."""
        system, root = self.files
        name = f"{root}/gold/{table}.parquet"
        return pq.read_table(name, filesystem=system) if system.get_file_info(name).type == fs.FileType.File else None

    def gold_rows(self, table: str) -> list[dict[str, Any]]:
        """The answer of a table as plain rows."""
        found = self.gold(table)
        return [] if found is None else found.to_pylist()


def _small(files: list[File]) -> list[File]:
    """Files beside each other that are to be one: enough of them, and none that is large already."""
    run: list[File] = []
    for file in files:
        if file.size <= MERGE_BYTES // MERGE_FILES and sum(each.size for each in run) < MERGE_BYTES:
            run.append(file)
        elif len(run) >= MERGE_FILES:
            break
        else:
            run = []
    return run if len(run) >= MERGE_FILES else []


def _newest(system: fs.FileSystem, path: str, column: str) -> datetime | None:
    """The latest time in a file, by its statistics; None where they do not tell."""
    with system.open_input_file(path) as file:
        metadata = pq.ParquetFile(file).metadata
    leaves = [leaf for leaf in range(metadata.num_columns) if metadata.schema.column(leaf).path == column]
    known = [
        metadata.row_group(group).column(leaf).statistics for group in range(metadata.num_row_groups) for leaf in leaves
    ]
    times = [each.max for each in known if each is not None and each.has_min_max]
    return max(times) if times and len(times) == len(known) else None


def _raise_floor(system: fs.FileSystem, path: str, series: tuple[str, str], floor: pa.Table) -> None:
    """Leave rows out of a file whose number is not above that which their series was cut at."""
    name, number = series
    rows = pq.read_table(path, filesystem=system)
    cut = rows.join(floor, name, join_type="left outer")
    kept = cut.filter(pc.fill_null(pc.greater(cut[number], cut[f"{number}_max"]), fill_value=True))
    if kept.num_rows < rows.num_rows:
        _replace(system, path, kept.select(rows.schema.names))


def _replace(system: fs.FileSystem, name: str, rows: pa.Table) -> None:
    system.create_dir(name.rpartition("/")[0], recursive=True)
    unfinished = f"{name}.unfinished"
    pq.write_table(rows, unfinished, filesystem=system, compression="zstd")
    system.move(unfinished, name)
