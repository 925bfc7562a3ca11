"""Streams of a real node read from its folder: while it runs, after it was killed, joined with the lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import peers
from spark.nodes import channel, declare_stream, fill
from weft.cli import main
from weft.pipeline.audit import REPLAY
from weft.spark import STREAM
from weft.spark.files import Files
from weft.spark.schema import arrow_schema, shape

ROWS = 3_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node") / "edge"


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[peers.Peer]:
    peer = peers.start_weft(folder, "--name", "north")
    declare_stream(peer, "orders")
    fill(peer, "orders", [b"order %d" % number for number in range(ROWS)], headers={"tenant": "x"}, app_id="shop")
    yield peer
    assert peer.stop() == 0, peer.output.text()


def read(spark: SparkSession, folder: Path, **options: object) -> DataFrame:
    return spark.read.format("weft").options(path=str(folder), **{"stream": "orders", **options}).load()


def test_rows_as_they_were_published(spark: SparkSession, node: peers.Peer, folder: Path) -> None:
    found = read(spark, folder)
    assert found.schema == STREAM
    assert found.select(F.count("*"), F.min("offset"), F.max("offset")).first() == (ROWS, 0, ROWS - 1)
    row = found.where("offset = 1234").first()
    assert row is not None
    assert (bytes(row["body"]), row["body_bytes"], row["routing_key"]) == (b"order 1234", 10, "orders")
    assert (row["headers"], row["app_id"], row["durable"]) == ({"tenant": "x"}, "shop", True)
    assert (row["stream"], row["shard"], row["origin"]) == ("orders", 0, "north")


def test_batches_reach_spark_as_the_kernel_made_them(node: peers.Peer, folder: Path) -> None:
    files, schema = Files(str(folder)), arrow_schema(STREAM)
    (extent,) = files.extents(["orders"])
    for batch in files.read(extent, 0, 10, schema.names):
        assert shape(batch, schema) is batch


def test_narrow_read_with_promoted_header(spark: SparkSession, node: peers.Peer, folder: Path) -> None:
    narrow = spark.read.format("weft").schema("offset BIGINT, header_tenant STRING, body_bytes BIGINT")
    found = narrow.options(path=str(folder), pattern="ord*", startingOffsets=ROWS - 2).load()
    assert [tuple(row) for row in found.orderBy("offset").collect()] == [(ROWS - 2, "x", 10), (ROWS - 1, "x", 10)]


def test_all_parts_of_a_stream(spark: SparkSession, node: peers.Peer, folder: Path) -> None:
    declare_stream(node, "parted", **{"x-partitions": 3})
    for key in range(40):
        fill(node, "parted", [b"%d" % key], message_id=f"key-{key}")
    found = read(spark, folder, stream="parted")
    assert found.count() == 40
    per_shard = {row["shard"]: (row["n"], row["last"]) for row in found.groupBy("shard").agg(
        F.count("*").alias("n"), F.max("offset").alias("last")).collect()}  # fmt: skip
    assert len(per_shard) > 1
    assert all(last == count - 1 for count, last in per_shard.values()), "each part counts for itself"
    assert {row["stream"] for row in found.select("stream").distinct().collect()} == {"parted"}


def test_streams_only(spark: SparkSession, node: peers.Peer, folder: Path) -> None:
    with channel(node) as opened:
        opened.queue_declare("plain", durable=True)
    with pytest.raises(PySparkException, match="no stream plain"):
        read(spark, folder, stream="plain").collect()
    with pytest.raises(PySparkException, match="no node's data"):
        read(spark, folder / "nothing").collect()


def test_a_running_query_sees_what_comes(spark: SparkSession, node: peers.Peer, folder: Path, tmp_path: Path) -> None:
    declare_stream(node, "live.a")
    seen: Queue[tuple[str, int]] = Queue()

    def take(batch: DataFrame, _: int) -> None:
        for row in batch.orderBy("stream", "offset").collect():
            seen.put((row["stream"], row["offset"]))

    rows = spark.readStream.format("weft").options(path=str(folder), pattern="live.*").load()
    query = (
        rows.writeStream.foreachBatch(take)
        .trigger(processingTime="50 milliseconds").option("checkpointLocation", str(tmp_path)).start()
    )  # fmt: skip
    try:
        for part in range(2):
            fill(node, "live.a", [b"x"] * 10)
            come = [seen.get(timeout=30) for _ in range(10)]
            assert come == [("live.a", offset) for offset in range(10 * part, 10 * part + 10)]
        # A stream that is made while the query runs, and fits its pattern, is read from its beginning.
        declare_stream(node, "live.b")
        fill(node, "live.b", [b"x"] * 10)
        assert [seen.get(timeout=30) for _ in range(10)] == [("live.b", offset) for offset in range(10)]
    finally:
        query.stop()


def test_retention_that_is_faster_than_the_query(
    spark: SparkSession, node: peers.Peer, folder: Path, tmp_path: Path
) -> None:
    declare_stream(node, "short", **{"x-max-length": 100})
    fill(node, "short", [b"x"] * 50)

    def run(**options: object) -> int:
        seen: list[int] = []
        rows = spark.readStream.format("weft").options(path=str(folder), stream="short", **options).load()
        query = (
            rows.writeStream.foreachBatch(lambda batch, _: seen.append(batch.count()))
            .trigger(availableNow=True).option("checkpointLocation", str(tmp_path)).start()
        )  # fmt: skip
        assert query.awaitTermination(50)
        return sum(seen)

    assert run() == 50
    fill(node, "short", [b"x"] * 5_000)
    with pytest.raises(PySparkException, match="holds nothing before offset"):
        run()
    kept = read(spark, folder, stream="short").count()
    assert 100 <= kept < 5_000
    assert run(failOnDataLoss="false") == kept


def test_history_in_the_lake_and_the_live_tail(
    spark: SparkSession, node: peers.Peer, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    words = ["--data-dir", str(folder), "--streams", "orders", "--lake", lake, "--file-rows", "1000"]
    assert main(["pipeline", "tier", *words]) == 0
    assert "orders/0: in the lake up to offset 3000" in capsys.readouterr().out
    fill(node, "orders", [b"later"] * 7)
    found = read(spark, folder, lake=lake)
    assert found.select(F.count("*"), F.count_distinct("offset"), F.max("offset")).first() == (3_007, 3_007, 3_006)
    assert found.where("body = X'6C61746572'").count() == 7

    # What is found there is sent again: at a pace, marked, and each message once.
    declare_stream(node, "again")
    words = ["--data-dir", str(folder), "--lake", lake, "--streams", "orders", "--name", "audit", "--address", "again",
             "--contains", "order 123", "--header", "tenant=x", "--match-address", "ord*",
             "--to", f"amqp://{node.host}:{node.port}", "--rate", "10"]  # fmt: skip
    assert main(["pipeline", "replay", *words]) == 0
    assert "11 messages sent again as replay audit" in capsys.readouterr().out
    sent = read(spark, folder, stream="again").orderBy("offset").collect()
    assert [bytes(row["body"]) for row in sent] == [b"order %d" % number for number in (123, *range(1_230, 1_240))]
    assert {row["headers"][REPLAY] for row in sent} == {"audit"}
    took_s = (sent[-1]["enqueue_time"] - sent[0]["enqueue_time"]).total_seconds()
    assert took_s > 0.2, "a second, as asked for, less what a busy machine may have held back the first"


def test_the_files_of_a_node_that_was_killed(spark: SparkSession, tmp_path: Path) -> None:
    peer = peers.start_weft(tmp_path / "dead")
    declare_stream(peer, "last-words")
    fill(peer, "last-words", [b"%d" % number for number in range(500)])
    peer.process.kill()
    peer.process.wait()
    found = read(spark, tmp_path / "dead", stream="last-words")
    assert found.select(F.count("*"), F.max("offset")).first() == (500, 499)
