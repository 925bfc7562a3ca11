"""The lake in an object store: a real S3 server of its own (moto), by URL, for pyarrow and for Spark's workers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark.test_lake import TableLog, offsets_of
from weft.model.errors import ConfigError
from weft.pipeline import synthetic
from weft.pipeline.store import Store
from weft.spark import Lake, tier
from weft.spark.lake import file_system
from weft.spark.logs import Joined
from weft.spark.offsets import Extent

ROWS = 1_000


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of a bucket, but for the folder: `{}`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"s3://key:secret@lake/{{}}?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    system, _ = file_system(f"{url}&allow_bucket_creation=true".format(""))
    system.create_dir("lake")
    yield url
    server.stop()


def test_history_in_a_bucket_joined_with_what_is_live(bucket: str, spark: SparkSession) -> None:
    live, url = TableLog(synthetic.traffic(ROWS)), bucket.format("history")
    lake = Lake(url)
    assert tier(live, lake, ["traffic"], rows=300) == {"traffic/0": 900}
    assert lake.extents(["tra*"]) == [Extent("traffic", 0, "1", 0, 900)]
    live.first = 700
    joined = Joined(lake, live)
    (extent,) = joined.extents(["traffic"])
    assert offsets_of(joined.read(extent, 250, ROWS, ["offset"])) == list(range(250, ROWS))
    assert joined.offset_at(extent, synthetic.START_US + 500_000) == 500
    narrow = spark.read.format("weft").schema("offset BIGINT, routing_key STRING")
    found = narrow.options(lake=url, stream="traffic", startingOffsets=100).load()
    assert found.agg(F.count("*"), F.min("offset"), F.max("offset")).first() == (800, 100, 899)


def test_results_in_a_bucket(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.pipeline.store.MERGE_FILES", files := 3)
    store = Store(bucket.format("results"))
    for batch in range(files):
        store.write_silver("sums", batch, pa.table({"batch": [batch]}))
    store.tidy_silver("sums", files)
    system, root = store.files
    (info,) = system.get_file_info(fs.FileSelector(f"{root}/silver/sums"))
    assert info.base_name == f"{0:012}-{files - 1:012}.parquet"
    assert store.gold_rows("answers") == []
    for answer in (1, 2):
        store.write_gold("answers", pa.table({"answer": [answer]}))
    assert store.gold_rows("answers") == [{"answer": 2}]


def test_no_secret_is_told() -> None:
    with pytest.raises(ConfigError, match=r"lake s3://\*\*\*@lake/x: ") as told:
        file_system("s3://key:secret@lake/x?no_such_option=1")
    assert "secret" not in str(told.value)
