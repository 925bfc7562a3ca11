"""Where a query stands in the streams it reads, and how the way to go is cut into pieces.

Owns positions (a JSON object per shard of a stream), limits on a step, the cut into slices and the judgement
whether data was lost. Positions and what logs hold come in, positions and slices go out: all of it pure, since
Spark repeats a batch from nothing but its two positions.
It must never read a log, and never remember anything between two calls.
Rule: a slice is a function of start and end alone; docs/guides/spark.md, "Offsets".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

from pyspark.sql.datasource import InputPartition

from weft.model.errors import WeftError

SLICE_ROWS_MIN = 8_192
"""Below this a second task costs more than it saves."""

TASK_ROWS, TASKS = 100_000, 2
"""Rows that are worth a task of their own, and the tasks of a batch that has enough for more, where nobody says how
many: a worker and Spark's side of it run at the same time, and two cores have enough to do with one task.
"""
SLICES_MAX = 10_000
"""Tasks of one batch: beyond that Spark's driver is busy with them alone, whatever maxRowsPerPartition asks."""


class DataLost(WeftError):
    """Rows that a query was to read are gone: by retention, or because the stream was deleted and made again."""


class Place(TypedDict):
    """A position in one shard: the next offset to read, and in which life of the stream."""

    life: str
    next: int


Position = dict[str, Place]
"""Places by `stream/shard`; what Spark writes into a checkpoint."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What one shard of a stream holds now: offsets from `first` up to, not including, `end`."""

    stream: str
    shard: int
    life: str
    first: int
    end: int
    row_bytes: int = 0
    """What a message takes on average; 0 where it is not known."""

    @property
    def key(self) -> str:
        return f"{self.stream}/{self.shard}"


@dataclass(frozen=True)
class Slice(InputPartition):
    """A piece of one shard for one task. What went before the shard was new to the query is no loss: `fresh`."""

    stream: str
    shard: int
    life: str
    start: int
    end: int
    fresh: bool = False


def position(extents: Iterable[Extent], *, at: str = "end") -> Position:
    """The first or the end position of what logs hold."""
    return {extent.key: Place(life=extent.life, next=getattr(extent, at)) for extent in extents}


def stream_and_shard(key: str) -> tuple[str, int]:
    """The two halves of a position's key."""
    stream, _, shard = key.rpartition("/")
    return stream, int(shard)


def begin(start: Position, key: str, life: str) -> tuple[int, bool]:
    """Where to read on in a shard, and whether it is new to the query."""
    place = start.get(key)
    if place is None:
        return 0, True
    if place["life"] != life:
        return 0, False
    return place["next"], False


def available(start: Position, end: Position) -> int:
    """Rows between two positions."""
    return sum(max(0, place["next"] - begin(start, key, place["life"])[0]) for key, place in end.items())


def held(start: Position, end: Position, extents: Mapping[str, Extent]) -> Position:
    """Start, but nowhere before the first row that is still there: a limit is of rows, not of what is gone."""
    raised = dict(start)
    for key, place in end.items():
        extent = extents.get(key)
        if extent is not None and extent.life == place["life"]:
            first = max(begin(start, key, extent.life)[0], extent.first)
            raised[key] = Place(life=extent.life, next=min(first, place["next"]))
    return raised


def limit(start: Position, end: Position, rows_max: int) -> Position:
    """At most `rows_max` rows on from start, every shard by its share of what waits; at least one row in all."""
    waits = {key: max(0, place["next"] - begin(start, key, place["life"])[0]) for key, place in end.items()}
    total = sum(waits.values())
    if total <= rows_max:
        return end
    left = max(1, rows_max)
    limited: Position = {}
    for key, place in sorted(end.items(), key=lambda item: (waits[item[0]], item[0])):
        share = min(waits[key], max(1, rows_max * waits[key] // total), left)
        left -= share
        limited[key] = Place(life=place["life"], next=begin(start, key, place["life"])[0] + share)
    return limited


def forward(start: Position, end: Position) -> Position:
    """End, but nowhere behind start: a query never goes back, whatever a node that was restored says."""
    moved = dict(start)
    for key, place in end.items():
        known = start.get(key)
        behind = known is not None and known["life"] == place["life"] and known["next"] > place["next"]
        if not behind:
            moved[key] = place
    return moved


def losses(start: Position, extents: Mapping[str, Extent]) -> list[str]:
    """What cannot be read any more from start on, one line each."""
    told = []
    for key, place in sorted(start.items()):
        extent = extents.get(key)
        if extent is None:
            told.append(f"stream {key} is not there any more; the query had read up to offset {place['next']}")
        elif extent.life != place["life"]:
            told.append(f"stream {key} was deleted and made again after offset {place['next']}")
        elif extent.first > place["next"]:
            told.append(f"stream {key} holds nothing before offset {extent.first}; {place['next']} was to be read next")
        elif extent.end < place["next"]:
            told.append(f"stream {key} ends at offset {extent.end}, before {place['next']} where the query stands")
    return told


def slices(start: Position, end: Position, *, rows_max: int, parts_min: int) -> list[Slice]:
    """Cut what lies between two positions into pieces for tasks: by start, end and the two numbers, nothing else.

    Without a number of parts there are as many as the rows are worth.
    """
    total = available(start, end)
    parts = parts_min or max(1, min(total // TASK_ROWS, TASKS))
    wanted = min(rows_max, max(SLICE_ROWS_MIN, -(-total // parts)))
    rows = max(wanted, -(-total // SLICES_MAX))
    cut: list[Slice] = []
    for key, place in sorted(end.items()):
        stream, shard = stream_and_shard(key)
        first, fresh = begin(start, key, place["life"])
        pieces = max(1, -(-(place["next"] - first) // rows))
        size = -(-(place["next"] - first) // pieces)
        for low in range(first, place["next"], max(1, size)):
            high = min(low + size, place["next"])
            cut.append(Slice(stream, shard, place["life"], low, high, fresh))
    return cut
