"""The lake: ranges tiered once, read back by offset and time, joined with what is live."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from weft.model.errors import Unavailable
from weft.pipeline import synthetic
from weft.spark import Lake, delta, tier
from weft.spark.logs import Joined, chosen
from weft.spark.offsets import Extent, Position


@dataclass
class TableLog:
    """A log in memory: a table of a stream, of which retention has taken the front."""

    rows: pa.Table
    life: str = "1"
    first: int = 0
    reads: int = 0
    reported: tuple[str, Position] | None = None

    def extents(self, names: Sequence[str]) -> list[Extent]:
        name = self.rows["stream"][0].as_py()
        return [Extent(name, 0, self.life, self.first, self.rows.num_rows)] if chosen(name, names) else []

    def read(
        self, extent: Extent, start: int, end: int, columns: Sequence[str], rows: int = 100
    ) -> Iterator[pa.RecordBatch]:
        assert start >= self.first, "what retention took cannot be read"
        self.reads += end - start
        yield from self.rows.select(list(columns)).slice(start, end - start).to_batches(max_chunksize=rows)

    def offset_at(self, extent: Extent, time_us: int) -> int:
        times = self.rows["enqueue_time"].cast(pa.int64()).to_pylist()
        return next((offset for offset, time in enumerate(times) if time >= time_us), len(times))

    def report(self, query: str, position: Position) -> None:
        self.reported = (query, position)


@pytest.fixture
def live() -> TableLog:
    return TableLog(synthetic.traffic(1_000))


def offsets_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_tiering_takes_whole_files_and_goes_on(tmp_path: Path, live: TableLog) -> None:
    lake = Lake(str(tmp_path))
    assert tier(live, lake, ["traffic"], rows=300) == {"traffic/0": 900}
    assert live.reads == 900
    assert tier(live, lake, ["traffic"], rows=300) == {"traffic/0": 900}
    assert live.reads == 900, "nothing is copied twice"
    assert tier(live, lake, ["traffic"], rows=300, partial=True) == {"traffic/0": 1_000}
    assert lake.extents(["tra*"]) == [Extent("traffic", 0, "1", 0, 1_000)]
    names = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert len(names) == 4
    assert names[0] == "00000000000000000000-00000000000000000300.parquet"


def test_what_is_read_is_what_was_tiered(tmp_path: Path, live: TableLog) -> None:
    lake = Lake(tmp_path.as_uri())
    tier(live, lake, ["traffic"], rows=400, partial=True)
    (extent,) = lake.extents(["traffic"])
    everything = pa.Table.from_batches(lake.read(extent, 0, 1_000, live.rows.schema.names), live.rows.schema)
    assert everything.equals(live.rows)
    assert offsets_of(lake.read(extent, 350, 820, ["offset"])) == list(range(350, 820))
    assert lake.offset_at(extent, synthetic.START_US + 500_000) == 500
    assert lake.offset_at(extent, synthetic.START_US + 10**9) == 1_000


def test_history_and_live_tail_without_gap_or_overlap(tmp_path: Path, live: TableLog) -> None:
    lake = Lake(str(tmp_path))
    tier(live, lake, ["traffic"], rows=300)
    live.first, live.reads = 700, 0
    joined = Joined(lake, live)
    (extent,) = joined.extents(["traffic"])
    assert (extent.first, extent.end) == (0, 1_000)
    assert offsets_of(joined.read(extent, 100, 1_000, ["offset"])) == list(range(100, 1_000))
    assert live.reads == 100, "the lake serves all it has"
    assert joined.offset_at(extent, synthetic.START_US + 950_000) == 950
    assert joined.offset_at(extent, synthetic.START_US + 50_000) == 50


def test_a_lake_that_fell_behind_retention_is_told(tmp_path: Path, live: TableLog) -> None:
    lake = Lake(str(tmp_path))
    tier(live, lake, ["traffic"], rows=300)
    live.first = 950
    (extent,) = Joined(lake, live).extents(["traffic"])
    assert extent.first == 950, "history before a gap is not offered as one log"
    with pytest.raises(Unavailable, match="gap"):
        tier(live, lake, ["traffic"], rows=10)


@pytest.mark.parametrize("lost", [range(140, 160), range(280, 300)])
def test_what_retention_takes_while_it_is_copied_is_told(tmp_path: Path, live: TableLog, lost: range) -> None:
    class Losing(TableLog):
        def read(self, *asked: Any, **more: Any) -> Iterator[pa.RecordBatch]:
            for batch in super().read(*asked, **more):
                yield batch.filter(pc.invert(pc.is_in(batch["offset"], pa.array(lost))))

    lake = Lake(str(tmp_path))
    with pytest.raises(Unavailable, match=r"from 0 to 299 went while they were copied.* gap"):
        tier(Losing(live.rows), lake, ["traffic"], rows=300)
    assert lake.extents(["traffic"]) == [], "no file says that it has what it has not"
    assert tier(live, lake, ["traffic"], rows=300) == {"traffic/0": 900}


def test_two_who_tiered_at_one_time(tmp_path: Path, live: TableLog) -> None:
    lake = Lake(str(tmp_path))
    tier(TableLog(live.rows.slice(0, 150)), lake, ["traffic"], partial=True)
    (first,) = lake.files(Extent("traffic", 0, "1", 0, 0))
    Path(first[2]).rename(tmp_path / "aside")
    tier(TableLog(live.rows.slice(0, 170)), lake, ["traffic"], partial=True)
    (tmp_path / "aside").rename(first[2])
    tier(live, lake, ["traffic"], rows=400)
    (extent,) = lake.extents(["traffic"])
    assert (extent.first, extent.end) == (0, 970), "it goes on where the longer one ended"
    assert offsets_of(lake.read(extent, 100, 900, ["offset"])) == list(range(100, 900)), "and shows no row twice"
    with pytest.raises(Unavailable, match="twice"):
        delta.publish(lake, ["traffic"])


def test_large_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.spark.lake.GROUP_BYTES", 1 << 20)
    monkeypatch.setattr("weft.spark.lake.FILE_BYTES", 3 << 20)
    monkeypatch.setattr("weft.spark.lake.BATCH_BYTES", 1 << 20)
    large = TableLog(synthetic.rows("large", 100, body=[random.randbytes(100_000) for _ in range(100)]))
    lake = Lake(str(tmp_path))
    read = TableLog.read
    monkeypatch.setattr(TableLog, "read", lambda self, *asked: read(self, *asked[:4], rows=5))
    assert tier(large, lake, ["large"], rows=1_000, partial=True) == {"large/0": 100}
    (extent,) = lake.extents(["large"])
    files = lake.files(extent)
    assert len(files) > 2
    assert all(Path(path).stat().st_size < 5 << 20 for *_, path in files)
    batches = list(lake.read(extent, 0, 100, ["offset", "body"]))
    assert offsets_of(iter(batches)) == list(range(100))
    assert max(batch.nbytes for batch in batches) < 2 << 20
    narrow = list(lake.read(extent, 0, 100, ["offset", "headers"]))
    assert len(narrow) < len(batches), "bodies that are not read make no batch smaller"


def test_a_stream_that_was_made_again_has_its_own_history(tmp_path: Path, live: TableLog) -> None:
    lake = Lake(str(tmp_path))
    tier(live, lake, ["traffic"], rows=500)
    again = TableLog(live.rows.slice(0, 100), life="2")
    (extent,) = Joined(lake, again).extents(["traffic"])
    assert (extent.life, extent.first, extent.end) == ("2", 0, 100)
    for life in ("9", "10"):
        tier(TableLog(live.rows, life=life), lake, ["traffic"], rows=500)
    assert [extent.life for extent in lake.extents(["traffic"])] == ["1", "9", "10"], "the newest is the last"


def test_spark_reads_the_lake_natively(spark: SparkSession, tmp_path: Path, live: TableLog) -> None:
    tier(live, Lake(str(tmp_path)), ["traffic"], rows=250)
    rows = spark.read.parquet(str(tmp_path / "streams" / "traffic" / "1")).drop("shard")
    assert rows.count() == 1_000
    (row,) = rows.where("offset = 777").select("origin").collect()
    assert row["origin"] == live.rows["origin"][777].as_py()


def test_the_files_are_a_delta_table_too(tmp_path: Path, live: TableLog) -> None:
    lake = Lake(str(tmp_path))
    tier(live, lake, ["traffic"], rows=300)
    (place,) = delta.publish(lake, ["traffic"])
    table = DeltaTable(place)
    assert (table.version(), len(table.file_uris())) == (0, 3)
    assert delta.publish(lake, ["traffic"]) == {place: 0}, "nothing new, no commit"
    tier(live, lake, ["traffic"], rows=300, partial=True)
    assert delta.publish(lake, ["tra*"]) == {place: 1}
    found = DeltaTable(place).to_pyarrow_table().sort_by("offset")
    assert found["offset"].to_pylist() == list(range(1_000))
    assert found["body"].to_pylist() == live.rows["body"].to_pylist()
    assert found["headers"].to_pylist() == live.rows["headers"].to_pylist()
    (extent,) = lake.extents(["traffic"])
    assert offsets_of(lake.read(extent, 0, 1_000, ["offset"])) == list(range(1_000)), "the lake does not mind"
