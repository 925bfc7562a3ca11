"""The source: batch and micro-batch reads of a log, by offset and time, narrow and whole."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamReader
from pyspark.testing import assertDataFrameEqual

from spark.test_lake import TableLog
from weft.pipeline import synthetic
from weft.spark import STREAM, Lake, register, tier

ROWS = 20_000


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return synthetic.traffic(ROWS, body_bytes=64)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, rows: pa.Table) -> str:
    folder = str(tmp_path_factory.mktemp("lake"))
    tier(TableLog(rows), Lake(folder), ["traffic"], rows=7_000, partial=True)
    return folder


def read(spark: SparkSession, lake: str, **options: object) -> DataFrame:
    return spark.read.format("weft").options(lake=lake, stream="traffic", **options).load()


def test_all_columns_as_they_were(spark: SparkSession, lake: str, rows: pa.Table) -> None:
    found = read(spark, lake)
    assert found.schema == STREAM
    few = found.where("offset >= 6995 AND offset < 7005")
    assertDataFrameEqual(few, spark.createDataFrame(rows.slice(6_995, 10)))
    assert found.select(F.sum("offset"), F.count("*")).first() == (ROWS * (ROWS - 1) // 2, ROWS)


def test_narrow_schema_with_promoted_header(spark: SparkSession, lake: str) -> None:
    schema = "header_tier STRING, offset BIGINT, body_bytes BIGINT"
    found = spark.read.format("weft").schema(schema).options(lake=lake, stream="traffic").load()
    assert found.columns == ["header_tier", "offset", "body_bytes"]
    assert {row[0] for row in found.select("header_tier").distinct().collect()} == {"edge", "core"}


def test_it_is_known_to_every_session_that_asks(spark: SparkSession, lake: str) -> None:
    other = spark.newSession()
    for session in (other, spark, other):
        register(session)
    assert SparkSession.getActiveSession()._jsparkSession.equals(spark._jsparkSession)  # type: ignore[union-attr]
    for session in (other, spark):
        assert read(session, lake, endingOffsets=3).count() == 3


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"startingOffsets": 19_990}, 19_990, 19_999),
        ({"startingOffsets": '{"traffic/0": 5}', "endingOffsets": '{"traffic": 9}'}, 5, 8),
        ({"startingTimestamp": "2027-01-15T08:00:19.5", "endingTimestamp": "2027-01-15T08:00:19.6"}, 19_500, 19_599),
        ({"startingOffsets": "latest"}, None, None),
    ],
)
def test_bounds(spark: SparkSession, lake: str, options: dict[str, object], first: int, last: int) -> None:
    assert read(spark, lake, **options).agg(F.min("offset"), F.max("offset")).first() == (first, last)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stream": "nothing"}, "no stream nothing"),
        ({"startingOffsets": '{"other": 1}'}, "other/0, which is not read"),
        ({"stream": "traffic", "from": "start"}, "no option from"),
        ({"endingOffsets": '{"traffic": 99999}'}, "endingOffsets: stream traffic/0 ends at offset 20000"),
    ],
)
def test_mistakes_are_told(spark: SparkSession, lake: str, options: dict[str, object], told: str) -> None:
    with pytest.raises(PySparkException, match=told):
        spark.read.format("weft").options(**({"lake": lake, "stream": "traffic"} | options)).load().collect()


def test_an_end_that_is_not_reached_yet(spark: SparkSession, lake: str) -> None:
    beyond = {"startingOffsets": ROWS - 5, "endingOffsets": '{"traffic": 99999}', "failOnDataLoss": "false"}
    assert read(spark, lake, **beyond).count() == 5


def test_a_column_that_is_named_twice(spark: SparkSession, lake: str) -> None:
    twice = spark.read.format("weft").schema("offset BIGINT, offset BIGINT")
    with pytest.raises(PySparkException, match="names offset more than once"):
        twice.options(lake=lake, stream="traffic").load().collect()


def test_columns_that_no_stream_has(spark: SparkSession, lake: str) -> None:
    with pytest.raises(PySparkException, match="has no column colour"):
        spark.read.format("weft").schema("colour STRING").options(lake=lake, stream="traffic").load().collect()


def streamed(spark: SparkSession, lake: str, **options: object) -> DataStreamReader:
    narrow = spark.readStream.format("weft").schema("offset BIGINT, enqueue_time TIMESTAMP, body_bytes BIGINT")
    return narrow.options(lake=lake, stream="traffic", **options)


def test_available_now_reads_everything_once_in_bounded_batches(spark: SparkSession, lake: str, tmp_path: Path) -> None:
    sizes: list[int] = []
    query = (
        streamed(spark, lake, maxRowsPerTrigger=8_000).load().writeStream.trigger(availableNow=True)
        .foreachBatch(lambda batch, _: sizes.append(batch.count()))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    assert query.awaitTermination(50)
    assert sizes == [8_000, 8_000, 4_000]


def test_stream_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path, rows: pa.Table) -> None:
    folder, lake = str(tmp_path / "lake"), Lake(str(tmp_path / "lake"))

    def run() -> None:
        query = (
            streamed(spark, folder).load().writeStream.trigger(availableNow=True).format("parquet")
            .option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        assert query.awaitTermination(50)

    tier(TableLog(rows.slice(0, 3_000)), lake, ["traffic"], partial=True)
    run()
    tier(TableLog(rows.slice(0, 5_000)), lake, ["traffic"], partial=True)
    run()
    found = spark.read.parquet(str(tmp_path / "out")).agg(F.count("*"), F.count_distinct("offset"), F.max("offset"))
    assertDataFrameEqual(found.toDF("a", "b", "c"), [Row(a=5_000, b=5_000, c=4_999)])


def test_a_stream_that_was_made_again_fails_the_query(spark: SparkSession, tmp_path: Path, rows: pa.Table) -> None:
    folder, lake = str(tmp_path / "lake"), Lake(str(tmp_path / "lake"))

    def run(**options: object) -> int:
        seen: list[int] = []
        query = (
            streamed(spark, folder, **options).load().writeStream.trigger(availableNow=True)
            .foreachBatch(lambda batch, _: seen.append(batch.count()))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        assert query.awaitTermination(50)
        return sum(seen)

    tier(TableLog(rows.slice(0, 100), life="1"), lake, ["traffic"], partial=True)
    assert run() == 100
    for path in (tmp_path / "lake").rglob("*.parquet"):
        path.unlink()
    tier(TableLog(rows.slice(0, 70), life="2"), lake, ["traffic"], partial=True)
    with pytest.raises(PySparkException, match="made again"):
        run()
    assert run(failOnDataLoss="false") == 70
