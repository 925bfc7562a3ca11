"""Silver that is remembered: what it gives is all there is, or it gives nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from weft.pipeline import recent as recents
from weft.pipeline.recent import Recent

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


def rows(*minutes: int) -> pa.Table:
    times = pa.array([at(minute) for minute in minutes], pa.timestamp("us", "UTC"))
    return pa.table({"time": times, "minute": pa.array(minutes, pa.int64())})


def since(recent: Recent, minute: int) -> list[int] | None:
    found = recent.since(at(minute))
    return None if found is None else found["minute"].to_pylist()


@pytest.fixture
def recent() -> Recent:
    made = Recent("time")
    made.knows_files_end(at(2))
    return made


def test_what_files_may_have_is_not_told(recent: Recent) -> None:
    recent.add(7, rows(2, 3))
    assert since(recent, 2) is None
    assert since(recent, 3) == [3]
    unknown = Recent("time")
    unknown.add(7, rows(3))
    assert since(unknown, 3) is None


def test_a_batch_that_is_repeated_counts_once(recent: Recent) -> None:
    recent.add(1, rows(3))
    recent.add(2, rows(3, 4))
    recent.add(2, rows(5))
    assert since(recent, 3) == [3, 5]


@pytest.mark.parametrize("limit", [("BATCHES_MAX", 2), ("BYTES_MAX", 40)])
def test_what_is_forgotten_is_not_missed(
    recent: Recent, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]
) -> None:
    monkeypatch.setattr(recents, *limit)
    for batch, minute in enumerate((9, 4, 5, 10)):
        recent.add(batch, rows(minute))
    assert since(recent, 9) is None, "the first batch had a row of then"
    assert since(recent, 10) == [10]
