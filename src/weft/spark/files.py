"""A node's own files as a log: streams read straight from its data folder, whether the node runs or not.

Owns which streams a folder has, as extents, and their readers. A folder and a virtual host come in; extents and record
batches go out, built by the kernel without a Python object per message.
It must never disturb the node or write into its folder. What is told is what the disk has, so a row
that is read here was never seen before it was safe.
The life of a stream is the number its queue was given when it was made (docs/internals/segment.md).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from weft.log import DEFINITIONS, MESSAGES, LogReader, StoredQueue, stored_queues
from weft.spark.logs import ROWS_PER_BATCH, chosen
from weft.spark.offsets import Extent, Position

PARTITIONS, PARTITION_OF, PARTITION = "x-partitions", "x-partition-of", "x-partition"
"""Arguments of a stream in parts, and of each part."""

BATCH_BYTES = 4 << 20
"""What a batch takes at most, but for a single message: Spark is fastest with a few megabytes."""


FOLDERS_MAX = 16
"""Folders that one process keeps readers of."""


@dataclass
class Files:
    """The streams of one virtual host in a data folder."""

    folder: str
    vhost: str = "/"
    _queues: list[StoredQueue] = field(default_factory=list, repr=False)
    _node: str = field(default="", repr=False)
    _stamp: tuple[int, ...] = field(default=(), repr=False)
    _readers: dict[int, LogReader] = field(default_factory=dict, repr=False)

    def extents(self, names: Sequence[str]) -> list[Extent]:
        found = []
        for queue in self._streams():
            stream, shard = stream_of(queue)
            if chosen(stream, names):
                first, end, messages, size = self._reader(queue.number, stream, shard).extent()
                row_bytes = size // messages if messages else 0
                found.append(Extent(stream, shard, str(queue.number), first, end, row_bytes))
        return sorted(found, key=lambda extent: (extent.stream, extent.shard))

    def read(
        self, extent: Extent, start: int, end: int, columns: Sequence[str], rows: int = ROWS_PER_BATCH
    ) -> Iterator[pa.RecordBatch]:
        reader = self._reader(int(extent.life), extent.stream, extent.shard)
        stream = reader.read(start, end, list(columns), batch_rows=rows, batch_bytes=BATCH_BYTES)
        yield from pa.RecordBatchReader.from_stream(stream)

    def offset_at(self, extent: Extent, time_us: int) -> int:
        return self._reader(int(extent.life), extent.stream, extent.shard).find(time_us)

    def report(self, query: str, position: Position) -> None:
        """Files have nobody to tell."""

    def _streams(self) -> list[StoredQueue]:
        """The streams that are declared; the definitions are read again only when they have changed."""
        definitions = Path(self.folder) / DEFINITIONS
        stamp = _stamp(definitions) + _stamp(Path(f"{definitions}-wal"))
        if stamp != self._stamp or not stamp:
            found = [queue for queue in stored_queues(self.folder) if queue.is_stream and queue.vhost == self.vhost]
            # A stream in parts holds nothing itself.
            self._queues = [queue for queue in found if PARTITIONS not in queue.arguments]
            self._node = next((queue.node for queue in found), "")
            self._stamp = stamp
        return self._queues

    def _reader(self, number: int, stream: str, shard: int) -> LogReader:
        if number not in self._readers:
            folder = os.path.join(self.folder, MESSAGES)
            self._streams()
            # Folders of nodes that did not yet write their names down are called after them, as a rule.
            node = self._node or Path(self.folder).resolve().name
            self._readers[number] = LogReader(folder, number, stream=stream, shard=shard, origin=node)
        return self._readers[number]


@functools.lru_cache(FOLDERS_MAX)
def files(folder: str, vhost: str) -> Files:
    """The folder as this process knows it: readers are kept, since opening one costs more than looking again."""
    return Files(folder, vhost)


def stream_of(queue: StoredQueue) -> tuple[str, int]:
    """The stream's name and the shard that a queue is; a part of a stream belongs to the stream."""
    whole, part = queue.arguments.get(PARTITION_OF), queue.arguments.get(PARTITION)
    return (whole, part) if isinstance(whole, str) and isinstance(part, int) else (queue.name, 0)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size
