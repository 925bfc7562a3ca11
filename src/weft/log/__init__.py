"""Streams and backlogs read from a node's data folder, as Arrow, without asking the node.

Owns the way from names to files: which streams and durable queues a data folder has, and a reader for each.
A folder and a name come in, `LogReader`s go out; the node may be running, stopped or dead, and is never disturbed.
It must never write into a data folder. What a reader gives is in docs/reference/columns.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from weft._kernel import LogReader
from weft.model.errors import Unavailable
from weft.model.events import Table
from weft.store.snapshot import read_snapshot

DEFINITIONS = "definitions.sqlite"
MESSAGES = "messages"
"""Where a data folder has its definitions and its store."""

__all__ = ["DEFINITIONS", "MESSAGES", "LogReader", "StoredQueue", "open_log", "stored_queues"]


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A stream or a durable queue that has files."""

    vhost: str
    name: str
    number: int
    arguments: Table
    node: str = ""
    """The node that keeps it; empty if its folder does not tell."""

    @property
    def is_stream(self) -> bool:
        """A queue holds what waits; a stream holds what was sent."""
        return self.arguments.get("x-queue-type") == "stream"


def stored_queues(data_dir: Path | str) -> list[StoredQueue]:
    """The streams and durable queues of a data folder, by name."""
    folder = Path(data_dir)
    if not (folder / DEFINITIONS).is_file():
        raise Unavailable(f"there is no node's data in {folder}")
    found = read_snapshot(folder / DEFINITIONS)
    queues = [StoredQueue(q.vhost, q.name, q.number, q.arguments, found.node) for q in found.queues]
    return sorted(queues, key=lambda queue: (queue.vhost, queue.name))


def open_log(data_dir: Path | str, vhost: str, stream: str, *, shard: int = 0, origin: str = "") -> LogReader:
    """A reader of one stream or durable queue; `origin` is the node's name, if not what the folder says."""
    for queue in stored_queues(data_dir):
        if (queue.vhost, queue.name) == (vhost, stream):
            folder = os.fspath(Path(data_dir) / MESSAGES)
            return LogReader(folder, queue.number, stream=stream, shard=shard, origin=origin or queue.node)
    raise Unavailable(f"no stream or durable queue '{stream}' in vhost '{vhost}' of {data_dir}")
