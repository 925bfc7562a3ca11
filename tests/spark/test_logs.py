"""Slices of logs: what is lost while it is read is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from spark.test_lake import offsets_of
from weft.spark.logs import Joined, read_slice
from weft.spark.offsets import DataLost, Extent, Position


class Holed:
    """A log of a hundred rows that loses some while they are read."""

    def extents(self, names: Sequence[str]) -> list[Extent]:
        return [Extent("s", 0, "1", 0, 100)]

    def read(
        self, extent: Extent, start: int, end: int, columns: Sequence[str], rows: int = 10
    ) -> Iterator[pa.RecordBatch]:
        for first in range(start, end, 10):
            if first != 50:
                yield pa.record_batch({"offset": range(first, min(first + 10, end))})

    def offset_at(self, extent: Extent, time_us: int) -> int:
        return 0

    def report(self, query: str, position: Position) -> None:
        pass


@pytest.mark.parametrize(("start", "end", "holds"), [(0, 50, True), (60, 100, True), (0, 100, False), (40, 60, False)])
def test_a_row_that_does_not_come_is_a_loss(start: int, end: int, holds: bool) -> None:
    log = Holed()
    (extent,) = log.extents([])
    whole = read_slice(log, extent, start, end, ["offset"], lost=False)
    if holds:
        assert sum(batch.num_rows for batch in whole) == end - start
    else:
        with pytest.raises(DataLost, match=f"of offsets {start} to {end - 1} only"):
            list(whole)
        assert list(read_slice(log, extent, start, end, ["offset"], lost=True)), "and may be allowed"


class Moving:
    """A log from which messages go, or to which they come, whenever it is looked at or read."""

    def __init__(self, *holds: tuple[int, int], lives: Sequence[str] = ("1",)) -> None:
        self.holds, self.lives = list(holds), lives

    def next(self) -> tuple[int, int]:
        return self.holds.pop(0) if len(self.holds) > 1 else self.holds[0]

    def extents(self, names: Sequence[str]) -> list[Extent]:
        first, end = self.next()
        return [Extent("s", 0, life, first, end) for life in self.lives]

    def read(
        self, extent: Extent, start: int, end: int, columns: Sequence[str], rows: int = 10
    ) -> Iterator[pa.RecordBatch]:
        while start < end:
            first, after = self.next()
            low, high = max(start, first), min(max(start, first) + 10, end, after)
            if low >= high:
                return
            yield pa.record_batch({"offset": range(low, high)}).select(list(columns))
            start = high

    def offset_at(self, extent: Extent, time_us: int) -> int:
        return 0

    def report(self, query: str, position: Position) -> None:
        pass


@pytest.mark.parametrize(
    ("lake", "node"),
    [
        # The lake grows, and retention takes what it has, while the lake's part is read.
        (Moving((0, 40), (0, 40), (0, 80)), Moving((60, 100))),
        # The same while the node's part is read: its second batch is gone when it is asked for.
        (Moving((0, 40), (0, 80)), Moving((40, 100), (70, 100))),
        # All of the node's part goes at once.
        (Moving((0, 40), (0, 40), (0, 100)), Moving((40, 100), (100, 100))),
    ],
)
def test_messages_that_move_into_the_lake_are_read_once(lake: Moving, node: Moving) -> None:
    extent = Extent("s", 0, "1", 0, 100)
    assert offsets_of(Joined(lake, node).read(extent, 0, 100, ["offset"])) == list(range(100))


def test_a_hole_that_nobody_can_fill_is_left_out() -> None:
    extent = Extent("s", 0, "1", 0, 100)
    joined = Joined(Moving((0, 40)), Moving((40, 100), (60, 100)))
    assert offsets_of(joined.read(extent, 0, 100, ["offset"])) == [*range(50), *range(60, 100)]


def test_the_lake_is_looked_at_after_the_node() -> None:
    class Tiered(Moving):
        def extents(self, names: Sequence[str]) -> list[Extent]:
            lake.holds = [(0, 80)]  # by the time retention takes a message, the lake has it
            return super().extents(names)

    lake = Moving((0, 40))
    (extent,) = Joined(lake, Tiered((60, 100))).extents(["s"])
    assert (extent.first, extent.end) == (0, 100)


def test_the_newest_life_of_a_stream_that_is_gone_counts() -> None:
    class Empty(Moving):
        def extents(self, names: Sequence[str]) -> list[Extent]:
            return []

    (extent,) = Joined(Moving((0, 40), lives=("9", "10")), Empty((0, 0))).extents(["s"])
    assert extent.life == "10"
