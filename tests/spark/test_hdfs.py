"""The lake in a real HDFS: for Spark by its own client, for us and our workers by the cluster's web interface."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hadoop import Hdfs
from spark.test_lake import TableLog, offsets_of
from weft.model.errors import ConfigError
from weft.pipeline import synthetic
from weft.pipeline.lease import Lease
from weft.pipeline.store import Store
from weft.spark import Lake, tier
from weft.spark.lake import file_system
from weft.spark.logs import Joined

ROWS = 1_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as made:
        yield made


@pytest.fixture
def cluster(made: Hdfs, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WEFT_WEBHDFS", made.web_address)
    return made.url


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_history_in_hdfs_joined_with_what_is_live(cluster: str, made: Hdfs, spark: SparkSession) -> None:
    live, lake = TableLog(synthetic.traffic(ROWS)), Lake(f"{cluster}/history")
    assert lake.extents(["*"]) == []
    assert tier(live, lake, ["traffic"], rows=300) == {"traffic/0": 900}
    live.first = 700
    joined = Joined(lake, live)
    (extent,) = joined.extents(["traffic"])
    assert offsets_of(joined.read(extent, 250, ROWS, ["offset"])) == list(range(250, ROWS))
    # Workers of a session that began before do not have the variable, so they get the other URL.
    web = f"webhdfs://{made.web_address}/history"
    found = spark.read.format("weft").schema("offset BIGINT").options(lake=web, stream="traffic").load()
    assert found.agg(F.count("*"), F.max("offset")).first() == (900, 899)
    # Spark's own reader of the same files.
    assert spark.read.parquet(f"{lake.url}/streams/traffic/1/shard=0").count() == 900


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_results_in_hdfs(cluster: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"{cluster}/results")
    for answer in (1, 2):
        store.write_gold("answers", pa.table({"answer": [answer]}))
        store.write_silver("sums", 0, pa.table({"batch": [answer]}))
    assert store.gold_rows("answers") == [{"answer": 2}], "what is there is replaced"
    silver = store.silver(spark, "sums")
    assert silver is not None
    assert [row.batch for row in silver.collect()] == [2]
    rows = spark.createDataFrame(synthetic.traffic(5))
    for batch in range(2):
        store.bronze.write(rows, batch, is_small=True)
    monkeypatch.setattr("weft.pipeline.bronze.MERGE_BATCHES", 2)
    store.bronze.tidy(before=2)
    assert spark.read.parquet(store.path("bronze")).count() == 10
    found = store.bronze.read(spark)
    assert found is not None
    assert found.count() == 10


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_run_at_a_time(cluster: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    late = Lease(spark, f"{cluster}/results")
    # It looked before the other one had made its lease: the name node lets one of them create it.
    monkeypatch.setattr(late, "_newest", lambda: 0)
    with Lease(spark, f"{cluster}/results"), pytest.raises(ConfigError, match="another run uses the lake"):
        late.__enter__()


def test_a_url_without_a_host() -> None:
    with pytest.raises(ConfigError, match="names no host"):
        file_system("webhdfs:///folder")
