"""Bronze: what batches read, as Spark writes it, and small batches put together.

Owns `bronze/batch=<n>/`, one folder per batch, and `bronze/_small/batch=<n>/` for those of few rows, which become
one file `bronze/batch=<last>/<first>-<last>.parquet` when there are many. Rows of a batch come in; files go out, and
all of them as one DataFrame.
It must never show a row twice: a merged file has its name when it is whole, whoever reads through `read` passes by what
it covers, and to whoever reads the folder as Spark does, names with an underscore are not there. Nor may it take a file
from somebody who is reading: small ones stay for an hour after they were merged.
The layout is in docs/guides/pipeline.md, "Bronze, silver, gold".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession

from weft.spark.lake import file_system
from weft.spark.schema import STREAM, arrow_schema

MERGE_BATCHES = 64
"""Small batches that become one file."""
MERGE_BYTES = 64 << 20
"""What such a file takes, about, at most."""
STAYS = timedelta(hours=1)
"""How long small batches stay that were merged: a query that has listed them may still open them."""
SMALL = "_small"
MERGED = re.compile(r"(\d{12})-(\d{12})\.parquet$")


class Batch(NamedTuple):
    """A folder of one batch, or of all up to one."""

    number: int
    path: str


@dataclass(frozen=True)
class Bronze:
    """Bronze of a lake, a path or a URL of a file system that pyarrow and Spark both know."""

    url: str

    @property
    def _place(self) -> tuple[fs.FileSystem, str]:
        system, root = file_system(self.url)
        return system, f"{root}/bronze"

    def write(self, rows: DataFrame, batch: int, *, is_small: bool) -> DataFrame:
        """Keep the rows of a batch, and read them from there: columns nobody wants are then never decoded."""
        system, root = self._place
        # What an earlier attempt at this batch took for something else.
        other = f"{root}/batch={batch}" if is_small else f"{root}/{SMALL}/batch={batch}"
        if system.get_file_info(other).type == fs.FileType.Directory:
            system.delete_dir(other)
        place = self._named(f"{SMALL}/batch={batch}" if is_small else f"batch={batch}")
        rows.write.mode("overwrite").parquet(place)
        return rows.sparkSession.read.schema(rows.schema).parquet(place)

    def read(self, spark: SparkSession) -> DataFrame | None:
        """All rows of all batches, each once; None before the first."""
        _, root = self._place
        small = self._listed(SMALL)
        covered = self._covered(small)
        found = self._listed() + [each for each in small if each not in covered]
        names = [self._named(each.path.removeprefix(f"{root}/")) for each in found]
        return spark.read.schema(STREAM).parquet(*names) if names else None

    def tidy(self, before: int) -> None:
        """Put small batches that are done for good into one file, where there are many."""
        system, _ = self._place
        small = self._listed(SMALL)
        covered = self._covered(small)
        limit = datetime.now(tz=UTC) - STAYS
        for each, merged_at in covered.items():
            if merged_at < limit:
                system.delete_dir(each.path)
        run = [each for each in small if each not in covered and each.number < before]
        if len(run) >= MERGE_BATCHES:
            self._merge(run)

    def drop(self, before: int, age: timedelta) -> None:
        """Remove batches that were written longer ago than this; they go in the order in which they came."""
        system, _ = self._place
        limit = datetime.now(tz=UTC) - age
        for folder in ("", SMALL):
            for each in self._listed(folder):
                if each.number >= before or _written(system, each.path, limit) > limit:
                    break
                system.delete_dir(each.path)

    def _merge(self, run: list[Batch]) -> None:
        system, root = self._place
        last = run[-1].number
        unfinished, schema = f"{root}/{SMALL}/unfinished", arrow_schema(STREAM)
        with system.open_output_stream(unfinished) as out, pq.ParquetWriter(out, schema, compression="zstd") as merged:
            for each in run:
                for info in sorted(_data(system, each.path), key=lambda info: info.path):
                    # Spark's times are of a kind that has nanoseconds, which it does not read in other files.
                    rows = pq.read_table(
                        info.path, filesystem=system, coerce_int96_timestamp_unit="us", partitioning=None
                    )
                    merged.write_table(rows.cast(schema))
                if out.tell() >= MERGE_BYTES:
                    last = each.number
                    break
        system.create_dir(f"{root}/batch={last}")
        # From here on readers see this file, and what it covers no more.
        system.move(unfinished, f"{root}/batch={last}/{run[0].number:012}-{last:012}.parquet")

    def _covered(self, small: list[Batch]) -> dict[Batch, datetime]:
        """Small batches that are in a merged file, and since when."""
        system, _ = self._place
        found: dict[Batch, datetime] = {}
        if not small:
            return found
        for folder in self._listed():
            if folder.number < small[0].number:
                continue
            for info in _data(system, folder.path):
                name = MERGED.search(info.path)
                if name:
                    inside = range(int(name[1]), int(name[2]) + 1)
                    found |= {each: _time(info) for each in small if each.number in inside}
        return found

    def _listed(self, folder: str = "") -> list[Batch]:
        system, root = self._place
        selector = fs.FileSelector(f"{root}/{folder}".rstrip("/"), allow_not_found=True)
        named = [(info.base_name.partition("=")[2], info) for info in system.get_file_info(selector)]
        return sorted(
            Batch(int(number), info.path)
            for number, info in named
            if number.isdigit() and info.type == fs.FileType.Directory
        )

    def _named(self, path: str) -> str:
        return f"{self.url.rstrip('/')}/bronze/{path}"


def _data(system: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    found = system.get_file_info(fs.FileSelector(path))
    return [info for info in found if info.base_name.endswith(".parquet") and info.base_name[0] not in "_."]


def _time(info: fs.FileInfo) -> datetime:
    return info.mtime if info.mtime is not None else datetime.now(tz=UTC)


def _written(system: fs.FileSystem, path: str, absent: datetime) -> datetime:
    """When the newest file of a batch was written."""
    return max((_time(info) for info in system.get_file_info(fs.FileSelector(path))), default=absent)
