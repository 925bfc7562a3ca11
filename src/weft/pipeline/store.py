"""Where a run keeps what it computed: bronze, silver and gold under one folder.

Owns the layout. Bronze is what a batch read, as Spark writes it. Silver is what a job made of a batch: one file per
table and batch, small, made to be merged. Gold is the merged answer: one file per table, replaced whole.
It must never show half a file, and a batch that is repeated replaces what it wrote before: names carry the batch,
and a file gets its name when it is whole. That, and Spark's checkpoint, is all there is to exactly once.
The layout is in docs/guides/pipeline.md, "Bronze, silver, gold".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from weft.spark.lake import file_system

BATCH = re.compile(r"(\d{12})(?:-(\d{12}))?\.parquet$")
MERGE_FILES = 64
"""Files of a silver table that are put together into one: a reader opens each of them."""


@dataclass(frozen=True)
class Store:
    """The folder of a run, a path or a URL of a file system that pyarrow and Spark both know."""

    url: str

    @property
    def files(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path in it."""
        return file_system(self.url)

    def path(self, *parts: str) -> str:
        """A place under the folder, as Spark names it."""
        return "/".join((self.url.rstrip("/"), *parts))

    # bronze

    def write_bronze(self, rows: DataFrame, batch: int) -> DataFrame:
        """Keep the rows of a batch, and read them from there: columns nobody wants are then never decoded."""
        place = self.path("bronze", f"batch={batch}")
        rows.write.mode("overwrite").parquet(place)
        return rows.sparkSession.read.schema(rows.schema).parquet(place)

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
        names = [path.rpartition("/")[2] for _, _, path in self._batches(table)]
        reader = spark.read.schema(schema) if schema is not None else spark.read
        return reader.parquet(*[self.path("silver", table, name) for name in names]) if names else None

    def merge_silver(self, table: str, before: int) -> None:
        """Put files of batches that are done for good into one, when there are many."""
        system, _ = self.files
        whole = [item for item in self._batches(table) if item[1] < before]
        small = [item for item in whole if item[0] == item[1]]
        if len(small) < MERGE_FILES:
            return
        rows = pa.concat_tables([pq.read_table(path, filesystem=system) for _, _, path in small])
        folder = small[0][2].rpartition("/")[0]
        # From here on readers see the new file alone: `_batches` leaves out what another covers.
        _replace(system, f"{folder}/{small[0][0]:012}-{small[-1][1]:012}.parquet", rows)
        for _, _, path in small:
            system.delete_file(path)

    def _batches(self, table: str) -> list[tuple[int, int, str]]:
        """First and last batch and path of a table's files, those left out that a merged one covers."""
        system, root = self.files
        found = []
        for info in system.get_file_info(fs.FileSelector(f"{root}/silver/{table}", allow_not_found=True)):
            name = BATCH.search(info.path)
            if name:
                found.append((int(name[1]), int(name[2] or name[1]), info.path))
        merged = [item for item in found if item[0] != item[1]]
        covered = [item for item in found if any(a <= item[0] and item[1] <= b and item[2] != p for a, b, p in merged)]
        return sorted(item for item in found if item not in covered)

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


def _replace(system: fs.FileSystem, name: str, rows: pa.Table) -> None:
    system.create_dir(name.rpartition("/")[0], recursive=True)
    unfinished = f"{name}.unfinished"
    pq.write_table(rows, unfinished, filesystem=system, compression="zstd")
    system.move(unfinished, name)
