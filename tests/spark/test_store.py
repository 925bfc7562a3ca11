"""Silver over a long run: many batches become few files, and what is old goes without a false loss."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weft.pipeline.store import Keep, Store

START = datetime(2026, 1, 1, tzinfo=UTC)
TIMES = pa.timestamp("us", "UTC")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("weft.pipeline.store.MERGE_FILES", 4)
    return Store(str(tmp_path))


def names(store: Store, table: str = "t") -> list[str]:
    return sorted(
        path.name.removesuffix(".parquet").replace("0", "") for path in Path(store.url, "silver", table).iterdir()
    )


def rows(store: Store, table: str = "t") -> list[dict[str, object]]:
    return [
        row for path in sorted(Path(store.url, "silver", table).iterdir()) for row in pq.read_table(path).to_pylist()
    ]


def write(store: Store, batch: int, day: float, seen: Iterable[tuple[str, int, str]]) -> None:
    at = START + timedelta(days=day)
    senders, numbers, paths = zip(*seen, strict=True)
    times = pa.array([at] * len(senders), TIMES)
    table = {"sender": senders, "sequence": numbers, "path": paths, "at": times}
    store.write_silver("t", batch, pa.table(table))


def test_few_files_stay_few(store: Store) -> None:
    for batch in range(1, 131):
        store.tidy_silver("t", batch)
        store.write_silver("t", batch, pa.table({"batch": [batch]}))
        assert len(names(store)) <= 4
    assert [row["batch"] for row in rows(store)] == list(range(1, 131))


def test_large_files_are_left_as_they_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.pipeline.store.MERGE_BYTES", 4 * 2_000)
    store.write_silver("t", 1, pa.table({"batch": list(range(5_000))}))
    for batch in range(2, 7):
        store.write_silver("t", batch, pa.table({"batch": [batch]}))
    store.tidy_silver("t", before=7)
    assert names(store) == ["1", "2-6"]


def test_what_a_stopped_run_left_behind_goes(store: Store) -> None:
    for batch in range(1, 5):
        store.write_silver("t", batch, pa.table({"batch": [batch]}))
    left = {path: path.read_bytes() for path in Path(store.url, "silver", "t").iterdir()}
    store.tidy_silver("t", before=5)
    assert names(store) == ["1-4"]
    for path, content in left.items():
        path.write_bytes(content)
    for batch in range(5, 9):
        store.write_silver("t", batch, pa.table({"batch": [batch]}))
    store.tidy_silver("t", before=9)
    assert names(store) == ["1-8"]
    assert [row["batch"] for row in rows(store)] == list(range(1, 9))


def test_old_rows_go_and_series_are_cut_at_one_number_for_all_paths(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file of a few hundred rows counts as large, so that old ones stand for themselves.
    monkeypatch.setattr("weft.pipeline.store.MERGE_BYTES", 4 * 3_000)
    keep = Keep("at", timedelta(days=7), series=("sender", "sequence"))
    for batch in range(1, 5):
        many = [("a", number, "fast") for number in range(batch * 300, batch * 300 + 300)]
        write(store, batch, day=0, seen=[*many, ("a", batch, "slow"), ("b", batch, "fast")])
    store.tidy_silver("t", before=5, keep=keep)
    assert names(store) == ["1-4"]
    assert len(rows(store)) == 4 * 302, "nothing is old yet"
    # The slow path is behind: of numbers that went with the old ones it brings some only now.
    for batch in range(5, 9):
        seen = [("a", 1_495 + batch, "fast"), ("a", 1_490 + batch, "slow"), ("b", batch, "fast"), ("c", 1, "fast")]
        write(store, batch, day=30, seen=seen)
    store.tidy_silver("t", before=9, keep=keep)
    assert names(store) == ["5-8"]
    found = {(row["sender"], row["sequence"], row["path"]) for row in rows(store)}
    assert found == {
        *(("a", number, "fast") for number in range(1_500, 1_504)),
        *(("b", number, "fast") for number in range(5, 9)),
        ("c", 1, "fast"),
    }


def test_a_clock_that_runs_ahead_takes_nothing_away(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.pipeline.store.MERGE_BYTES", 4 * 3_000)
    yesterday, ahead = datetime.now(tz=UTC) - timedelta(days=1), datetime(2199, 1, 1, tzinfo=UTC)
    for batch in range(1, 5):
        times = pa.array([yesterday] * 300, TIMES)
        store.write_silver("t", batch, pa.table({"number": range(batch * 300, batch * 300 + 300), "at": times}))
    store.tidy_silver("t", before=5, keep=Keep("at"))
    for batch in range(5, 9):
        store.write_silver("t", batch, pa.table({"number": [batch], "at": pa.array([ahead], TIMES)}))
    store.tidy_silver("t", before=9, keep=Keep("at"))
    assert names(store) == ["1-4", "5-8"]
