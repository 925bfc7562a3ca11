"""Slices of logs: what is lost while it is read is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from weft.spark.logs import read_slice
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
