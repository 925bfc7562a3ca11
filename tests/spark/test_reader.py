"""How far a batch goes: limits by rows and bytes, and a wait for more rows that ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql.streaming.datasource import ReadLimit

from spark.test_lake import TableLog, offsets_of
from weft.pipeline import synthetic
from weft.spark import STREAM
from weft.spark.offsets import DataLost, Extent, Position, Slice
from weft.spark.options import read_options
from weft.spark.reader import StreamReader

ROW_BYTES = 100


class Growing(TableLog):
    """A log whose end is what the test says."""

    end = 0

    def extents(self, names: object) -> list[Extent]:
        return [Extent("s", 0, "1", self.first, self.end, ROW_BYTES)]


@pytest.fixture
def log() -> Growing:
    return Growing(synthetic.rows("s", 1))


@pytest.fixture
def reader(log: Growing) -> Callable[..., StreamReader]:
    def made(**options: object) -> StreamReader:
        given = {"url": "amqp://nobody", "stream": "s"} | {key: str(value) for key, value in options.items()}
        reader = StreamReader(read_options(given, streaming=True), STREAM)
        reader._log = log
        return reader

    return made


def at(offset: int) -> Position:
    return {"s/0": {"life": "1", "next": offset}}


def step(reader: StreamReader, start: int) -> int:
    limit: ReadLimit = reader.getDefaultReadLimit()
    return reader.latestOffset(at(start), limit)["s/0"]["next"] - start


def test_a_batch_waits_for_rows_but_not_for_ever(
    log: Growing, reader: Callable[..., StreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("weft.spark.reader.time.monotonic", lambda: now)
    waits = reader(minRowsPerTrigger=100, maxTriggerDelay=60)
    log.end = 99
    assert step(waits, 0) == 0
    log.end = 100
    assert step(waits, 0) == 100, "there are enough"
    log.end = 101
    assert step(waits, 100) == 0
    now = 59.9
    assert step(waits, 100) == 0
    now = 60.0
    assert step(waits, 100) == 1, "that was long enough"
    log.end, now = 102, 61.0
    assert step(waits, 101) == 0, "and the wait begins anew"
    now = 1e6
    assert step(waits, 102) == 0, "nothing is no batch, however long"


def test_without_a_delay_rows_are_waited_for(log: Growing, reader: Callable[..., StreamReader]) -> None:
    waits = reader(minRowsPerTrigger=10)
    log.end = 9
    assert step(waits, 0) == 0
    waits.prepareForTriggerAvailableNow()
    assert step(waits, 0) == 9, "who reads what is there waits for nothing"


@pytest.mark.parametrize(
    ("options", "rows"),
    [({}, 1_000), ({"maxRowsPerTrigger": 70}, 70), ({"maxBytesPerTrigger": 5_000}, 50),
     ({"maxRowsPerTrigger": 70, "maxBytesPerTrigger": 5_000}, 50), ({"maxBytesPerTrigger": 1}, 1)],
)  # fmt: skip
def test_limits(log: Growing, reader: Callable[..., StreamReader], options: dict[str, int], rows: int) -> None:
    log.end = 1_000
    assert step(reader(**options), 0) == rows


def test_a_limit_is_of_rows_that_are_there(log: Growing, reader: Callable[..., StreamReader]) -> None:
    log.first, log.end = 50_000, 50_100
    assert step(reader(maxRowsPerTrigger=10, failOnDataLoss="false"), 0) == 50_010, "and not of those that are gone"


@pytest.mark.parametrize("fresh", [True, False])
def test_what_went_before_a_stream_was_new_to_the_query(
    reader: Callable[..., StreamReader], monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    held = TableLog(synthetic.rows("s", 100), first=60)
    monkeypatch.setattr("weft.spark.reader.open_log", lambda _: held)
    pieces = [Slice("s", 0, "1", low, low + 25, fresh) for low in range(0, 100, 25)]
    if fresh:
        assert [offset for piece in pieces for offset in offsets_of(reader().read(piece))] == list(range(60, 100))
    else:
        with pytest.raises(DataLost, match="nothing before offset 60"):
            list(reader().read(pieces[1]))
