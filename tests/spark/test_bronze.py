"""Bronze over a long run: small batches become one file, no row is seen twice or missed, whenever somebody looks."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from weft.pipeline import bronze as bronzes
from weft.pipeline import synthetic
from weft.pipeline.bronze import Bronze

BATCHES, ROWS = 4, 3
LONG_AGO = (datetime.now(tz=UTC) - timedelta(days=8)).timestamp()


@pytest.fixture
def bronze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bronze:
    monkeypatch.setattr(bronzes, "MERGE_BATCHES", BATCHES)
    return Bronze(str(tmp_path))


def folder(bronze: Bronze, *parts: str) -> Path:
    return Path(bronze.url, "bronze", *parts)


def keep(bronze: Bronze, batch: int, *, is_small: bool = True) -> None:
    """A batch as Spark leaves it, without Spark: its times are of the kind that Spark writes."""
    place = folder(bronze, "_small" if is_small else "", f"batch={batch}")
    place.mkdir(parents=True)
    rows = synthetic.rows("s", ROWS, message_id=[f"{batch}-{number}" for number in range(ROWS)])
    pq.write_table(rows, place / "part-00000.snappy.parquet", use_deprecated_int96_timestamps=True)
    (place / "_SUCCESS").touch()


def ids(rows: DataFrame | None) -> list[str]:
    assert rows is not None
    return sorted(row["message_id"] for row in rows.select("message_id").collect())


def all_ids(batches: range) -> list[str]:
    return sorted(f"{batch}-{number}" for batch in batches for number in range(ROWS))


def files(bronze: Bronze) -> list[str]:
    return sorted(str(path.relative_to(folder(bronze))) for path in folder(bronze).rglob("*.parquet"))


def test_small_batches_become_one_file(spark: SparkSession, bronze: Bronze) -> None:
    for batch in range(BATCHES + 2):
        keep(bronze, batch)
    keep(bronze, 90, is_small=False)
    bronze.tidy(before=BATCHES)
    merged = f"batch={BATCHES - 1}/{0:012}-{BATCHES - 1:012}.parquet"
    assert merged in files(bronze)
    assert ids(bronze.read(spark)) == sorted([*all_ids(range(BATCHES + 2)), *all_ids(range(90, 91))])
    # Who reads the folder as Spark does sees what is merged or large, and each of that once.
    assert ids(spark.read.parquet(str(folder(bronze)))) == sorted([*all_ids(range(BATCHES)), *all_ids(range(90, 91))])
    assert len(list(folder(bronze, "_small").iterdir())) == BATCHES + 2, "somebody may be reading them"
    os.utime(folder(bronze, merged), (LONG_AGO, LONG_AGO))
    bronze.tidy(before=BATCHES)
    assert sorted(path.name for path in folder(bronze, "_small").iterdir()) == ["batch=4", "batch=5"]
    assert ids(bronze.read(spark)) == sorted([*all_ids(range(BATCHES + 2)), *all_ids(range(90, 91))])


def test_a_merged_file_has_the_rows_as_they_were(spark: SparkSession, bronze: Bronze) -> None:
    rows = synthetic.traffic(50)
    bronze.write(spark.createDataFrame(rows), 0, is_small=True)
    for batch in range(1, BATCHES):
        keep(bronze, batch)
    bronze.tidy(before=BATCHES)
    (merged,) = folder(bronze, f"batch={BATCHES - 1}").iterdir()
    assert pq.read_table(merged, partitioning=None).cast(rows.schema).slice(0, 50).equals(rows)


class StoppedError(Exception):
    """In place of kill -9."""


def test_stopped_in_the_middle_and_begun_again(
    spark: SparkSession, bronze: Bronze, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in range(BATCHES):
        keep(bronze, batch)
    with monkeypatch.context() as patch:

        def stop(*_: object) -> None:
            raise StoppedError

        patch.setattr(pq.ParquetWriter, "write_table", stop)
        with pytest.raises(StoppedError):
            bronze.tidy(before=BATCHES)
    # And once more, when all is written and nothing has its name yet.
    in_the_way = folder(bronze, f"batch={BATCHES - 1}")
    in_the_way.touch()
    with pytest.raises(OSError, match=in_the_way.name):
        bronze.tidy(before=BATCHES)
    in_the_way.unlink()
    assert ids(bronze.read(spark)) == all_ids(range(BATCHES))
    bronze.tidy(before=BATCHES)
    assert ids(bronze.read(spark)) == ids(spark.read.parquet(str(folder(bronze)))) == all_ids(range(BATCHES))


def test_a_batch_that_is_repeated_replaces_itself(spark: SparkSession, bronze: Bronze) -> None:
    rows = spark.createDataFrame(synthetic.traffic(10))
    for is_small in (True, False, True):
        bronze.write(rows, 0, is_small=is_small)
        found = bronze.read(spark)
        assert found is not None
        assert found.count() == 10


def test_no_more_than_a_file_should_take_is_merged(bronze: Bronze, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bronzes, "MERGE_BYTES", 1)
    for batch in range(BATCHES):
        keep(bronze, batch)
    bronze.tidy(before=BATCHES)
    assert f"batch=0/{0:012}-{0:012}.parquet" in files(bronze)


def test_it_goes_when_it_is_old(bronze: Bronze) -> None:
    for batch in range(12):
        place = folder(bronze, f"batch={batch}")
        place.mkdir(parents=True)
        (place / "part-0.parquet").write_bytes(b"")
        if batch not in (9, 10):
            os.utime(place / "part-0.parquet", (LONG_AGO, LONG_AGO))
    bronze.drop(before=11, age=timedelta(days=30))
    assert len(list(folder(bronze).iterdir())) == 12
    bronze.drop(before=11, age=timedelta(days=7))
    assert sorted(path.name for path in folder(bronze).iterdir()) == ["batch=10", "batch=11", "batch=9"]
