"""The lake: ranges of streams as Parquet files, for ever, readable by anything that reads Parquet.

Owns the layout (`streams/<name>/<life>/shard=<n>/<first>-<end>.parquet`), the copying of ranges into it (tiering)
and reading them back by offset. A folder or a URL of a file system (file, s3, hdfs, webhdfs, gs) and a log come in;
files and record batches go out.
It must never hold a list of its own beside the files: their names say what they hold, and a file has its name only
when it is whole.
Rule: what is tiered never changes; docs/guides/pipeline.md, "The lake".
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from weft.model.errors import ConfigError, Unavailable
from weft.spark.files import BATCH_BYTES
from weft.spark.hdfs import SCHEMES, web_hdfs
from weft.spark.logs import ROWS_PER_BATCH, Log, age, chosen
from weft.spark.offsets import Extent, Position
from weft.spark.schema import STREAM, arrow_schema

FILE_ROWS = 1_000_000
"""Rows in one file: about 300 MB of 1 KiB messages after compression, a few seconds of one core."""

GROUP_ROWS = 32_768
"""Rows in one row group: the least that a reader has to fetch."""

GROUP_BYTES, FILE_BYTES = 64 << 20, 2 << 30
"""What a row group and a file hold at most, about, where bodies are large: a group is in memory whole while it is made,
and a file that is larger than 5 GiB cannot get its name in S3."""

NAME = re.compile(r"(\d{20})-(\d{20})\.parquet$")
SYSTEMS_MAX = 16
"""File systems that a process keeps open: to open one of an object store takes longer than to ask it."""
NO_LIBRARY = re.compile("load lib(hdfs|jvm)")
"""How pyarrow says that Hadoop's own client (libhdfs, or the Java for it) is not there."""
CREDENTIALS = re.compile(r"://[^/@]*@")


@dataclass(frozen=True)
class Lake:
    """A folder of tiered streams, as a log."""

    url: str
    _place: list[tuple[fs.FileSystem, str]] = field(default_factory=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, object]:
        return {"url": self.url, "_place": []}

    @property
    def place(self) -> tuple[fs.FileSystem, str]:
        """The file system and the folder in it, opened once per process."""
        if not self._place:
            system, root = file_system(self.url)
            self._place.append((system, f"{root}/streams"))
        return self._place[0]

    def folder(self, extent: Extent) -> str:
        """Where a shard's files are, in the file system."""
        _, root = self.place
        return f"{root}/{quote(extent.stream, safe='')}/{extent.life}/shard={extent.shard}"

    def files(self, extent: Extent) -> list[tuple[int, int, str]]:
        """What of a shard each file gives, as first offset, end and path: in order, up to the first gap.

        Two who tiered at one time may have left files that overlap: of each the part that the ones before lack is
        taken.
        """
        system, _ = self.place
        found = []
        for info in system.get_file_info(fs.FileSelector(self.folder(extent), allow_not_found=True)):
            name = NAME.search(info.path)
            if name:
                found.append((int(name[1]), int(name[2]), info.path))
        kept: list[tuple[int, int, str]] = []
        for first, end, path in sorted(found):
            reached = kept[-1][1] if kept else first
            if first > reached:
                break
            if end > reached:
                kept.append((reached, end, path))
        return kept

    def extents(self, names: Sequence[str]) -> list[Extent]:
        """What the lake has of the streams with these names or patterns."""
        system, root = self.place
        found = []
        for stream in _folders(system, root):
            if chosen(unquote(stream), names):
                for life in _folders(system, f"{root}/{stream}"):
                    for shard in _folders(system, f"{root}/{stream}/{life}"):
                        extent = Extent(unquote(stream), int(shard.removeprefix("shard=")), life, 0, 0)
                        files = self.files(extent)
                        if files:
                            found.append(Extent(extent.stream, extent.shard, life, files[0][0], files[-1][1]))
        return sorted(found, key=lambda item: (item.stream, item.shard, age(item.life)))

    def read(
        self, extent: Extent, start: int, end: int, columns: Sequence[str], rows: int = ROWS_PER_BATCH
    ) -> Iterator[pa.RecordBatch]:
        """These columns of the messages from one offset to before another."""
        system, _ = self.place
        for first, after, path in self.files(extent):
            if first < end and after > start:
                low, high = max(start, first), min(end, after)
                with system.open_input_file(path) as file:
                    parquet = pq.ParquetFile(file)
                    wanted = list(dict.fromkeys([*columns, "offset"]))
                    for group in _groups(parquet, low, high):
                        for batch in parquet.iter_batches(_rows(parquet, group, wanted, rows), [group], wanted):
                            part = _between(batch, low, high)
                            if part.num_rows:
                                yield part.select(list(columns))

    def offset_at(self, extent: Extent, time_us: int) -> int:
        """The offset of the first message that came at this time (microseconds since 1970) or later."""
        system, _ = self.place
        files = self.files(extent)
        for _, end, path in files:
            with system.open_input_file(path) as file:
                parquet = pq.ParquetFile(file)
                last = parquet.metadata.num_row_groups - 1
                if last < 0 or _time_us(parquet, last) < time_us:
                    continue
                table = parquet.read(["offset", "enqueue_time"])
                times = table["enqueue_time"].cast(pa.int64()).to_numpy()
                index = bisect_left(times, time_us)
                return int(table["offset"][index].as_py()) if index < len(times) else end
        return files[-1][1] if files else 0

    def report(self, query: str, position: Position) -> None:
        """Files have nobody to tell."""


@functools.lru_cache(SYSTEMS_MAX)
def file_system(url: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URL, and the path in it. Spark's word for S3 is `s3a`, pyarrow's `s3`."""
    try:
        scheme, is_url, _ = url.partition("://")
        if not is_url:
            return fs.LocalFileSystem(), url.rstrip("/")
        if scheme in SCHEMES:
            return web_hdfs(url)
        system, root = fs.FileSystem.from_uri(url.replace("s3a://", "s3://", 1))
    except (pa.ArrowInvalid, OSError) as error:
        if NO_LIBRARY.search(str(error)):
            return web_hdfs(url)
        shown = CREDENTIALS.sub("://***@", url)
        raise ConfigError(f"lake {shown.partition('?')[0]}: {str(error).replace(url, shown)}") from None
    return system, root.rstrip("/")


def _folders(system: fs.FileSystem, path: str) -> list[str]:
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(info.base_name for info in found if info.type == fs.FileType.Directory)


def _groups(parquet: pq.ParquetFile, start: int, end: int) -> list[int]:
    """Row groups that may hold offsets of the range, by their statistics."""
    index = parquet.schema_arrow.get_field_index("offset")
    kept = []
    for number in range(parquet.metadata.num_row_groups):
        known = parquet.metadata.row_group(number).column(_leaf(parquet, "offset", index)).statistics
        if known is None or not known.has_min_max or (known.min < end and known.max >= start):
            kept.append(number)
    return kept


def _rows(parquet: pq.ParquetFile, group: int, columns: Sequence[str], most: int) -> int:
    """Rows of a batch with these columns: fewer where they are large, as from a node's files."""
    known = parquet.metadata.row_group(group)
    leaves = [known.column(number) for number in range(known.num_columns)]
    wanted = [leaf for leaf in leaves if leaf.path_in_schema.partition(".")[0] in columns]
    size: int = sum(leaf.total_uncompressed_size for leaf in wanted)
    return max(1, min(most, BATCH_BYTES * int(known.num_rows) // max(1, size)))


def _leaf(parquet: pq.ParquetFile, name: str, guess: int) -> int:
    """The number of a flat column among Parquet's leaves; maps and lists before it count more than one."""
    for number in range(guess, parquet.metadata.num_columns):
        if parquet.metadata.schema.column(number).path == name:
            return number
    return guess


def _time_us(parquet: pq.ParquetFile, group: int) -> int:
    """The latest arrival in a row group."""
    leaf = _leaf(parquet, "enqueue_time", 0)
    known = parquet.metadata.row_group(group).column(leaf).statistics
    return 2**62 if known is None or not known.has_min_max else int(known.max.timestamp() * 1e6)


def _between(batch: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    offsets = batch.column("offset")
    if not batch.num_rows or (offsets[0].as_py() >= start and offsets[-1].as_py() < end):
        return batch
    inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
    return batch.filter(inside)


def tier(log: Log, lake: Lake, names: Sequence[str], *, rows: int = FILE_ROWS, partial: bool = False) -> dict[str, int]:
    """Copy what the lake lacks of these streams; the end of each shard in the lake.

    Whole files only, so that a stream that runs is not copied in crumbs; with `partial` the rest goes too.
    """
    if rows < 1:
        raise ConfigError("a file of the lake holds at least one row")
    reached = {}
    for extent in log.extents(names):
        files = lake.files(extent)
        start = files[-1][1] if files else extent.first
        if start < extent.first:
            raise _behind(extent, f"the lake ends at {start}, the log begins at {extent.first}")
        while start < extent.end and (partial or extent.end - start >= rows):
            start = _write(log, lake, extent, start, min(start + rows, extent.end))
        reached[extent.key] = start
    return reached


def _write(log: Log, lake: Lake, extent: Extent, start: int, end: int) -> int:
    """Make one file of these messages, or of as many of them as a file may hold; where it ends."""
    system, _ = lake.place
    folder = lake.folder(extent)
    system.create_dir(folder, recursive=True)
    unfinished = f"{folder}/{start:020}.unfinished"
    schema = arrow_schema(STREAM)
    reached, gone = start, _behind(extent, f"messages from {start} to {end - 1} went while they were copied")
    with (
        system.open_output_stream(unfinished) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as out,
    ):
        for group in _row_groups(log.read(extent, start, end, schema.names, GROUP_ROWS), schema):
            # The name says what is inside: what retention took while this was read must not be missing there.
            if (group["offset"][0].as_py(), group["offset"][-1].as_py()) != (reached, reached + group.num_rows - 1):
                raise gone
            out.write_table(group)
            reached += group.num_rows
            if file.tell() >= FILE_BYTES:
                break
        else:
            if reached < end:
                raise gone
    system.move(unfinished, f"{folder}/{start:020}-{reached:020}.parquet")
    return reached


def _row_groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches put together, as many rows and bytes as one row group holds."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch.cast(schema) if batch.schema != schema else batch)
        if sum(part.num_rows for part in waiting) >= GROUP_ROWS or sum(part.nbytes for part in waiting) >= GROUP_BYTES:
            yield pa.Table.from_batches(waiting, schema)
            waiting.clear()
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def _behind(extent: Extent, what: str) -> Unavailable:
    return Unavailable(
        f"stream {extent.key}: {what}: retention was faster than tiering, and a lake with a gap would lie; tier more"
        f" often, or into a new lake"
    )
