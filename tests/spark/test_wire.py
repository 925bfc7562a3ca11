"""Streams of a real node read over the network: the same rows as from its files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

import peers
import weft
from spark.nodes import channel, declare_stream, fill, take
from weft.client.management import Management
from weft.pipeline import traffic
from weft.spark.wire import Wire

ROWS = 9_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node") / "edge"


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[peers.Peer]:
    peer = peers.start_weft(folder, "--name", "edge")
    declare_stream(peer, "orders")
    fill(peer, "orders", [b"order %d" % number for number in range(ROWS)], headers={"tenant": "x"}, message_id="m")
    declare_stream(peer, "parted", **{"x-partitions": 2})
    for number in range(20):
        fill(peer, "parted", [b"x"], message_id=f"key-{number}")
    yield peer
    assert peer.stop() == 0, peer.output.text()


def read(spark: SparkSession, node: peers.Peer, **options: object) -> DataFrame:
    url = f"amqp://{node.host}:{node.port}"
    return spark.read.format("weft").options(url=url, **{"stream": "orders", **options}).load()


def test_the_same_rows_as_from_the_files(spark: SparkSession, node: peers.Peer, folder: Path) -> None:
    found = read(spark, node)
    assert found.select(F.count("*"), F.count_distinct("offset"), F.max("offset")).first() == (ROWS, ROWS, ROWS - 1)
    files = spark.read.format("weft").options(path=str(folder), streams="orders,parted").load()
    few = "offset BETWEEN 4090 AND 4100 OR stream = 'parted'"
    assertDataFrameEqual(read(spark, node, stream="orders,parted").where(few), files.where(few))


def test_narrow_and_by_time(spark: SparkSession, node: peers.Peer) -> None:
    whole = read(spark, node).select("offset", "enqueue_time").orderBy("offset").collect()
    moment = whole[ROWS // 2]["enqueue_time"]
    first = next(row["offset"] for row in whole if row["enqueue_time"] >= moment)
    narrow = spark.read.format("weft").schema("offset BIGINT, header_tenant STRING")
    url = f"amqp://{node.host}:{node.port}"
    found = narrow.options(url=url, stream="orders", startingTimestamp=moment.isoformat() + "+00:00").load()
    assert found.agg(F.min("offset"), F.count("*"), F.max("header_tenant")).first() == (first, ROWS - first, "x")


def test_a_query_reads_what_came_since(spark: SparkSession, node: peers.Peer, tmp_path: Path) -> None:
    declare_stream(node, "live")
    with channel(node) as opened:
        opened.queue_declare("progress")
        opened.queue_bind("progress", "weft.events", "query.progress.#")
    seen: list[int] = []

    def run() -> None:
        url = f"amqp://{node.host}:{node.port}"
        options = {"url": url, "stream": "live", "maxRowsPerTrigger": 15, "query": "follower"}
        rows = spark.readStream.format("weft").options(**options).load()
        query = (
            rows.writeStream.foreachBatch(lambda batch, _: seen.extend(row["offset"] for row in batch.collect()))
            .trigger(availableNow=True).option("checkpointLocation", str(tmp_path)).start()
        )  # fmt: skip
        assert query.awaitTermination(50)

    for _ in range(2):
        fill(node, "live", [b"x"] * 20)
        run()
    assert sorted(seen) == list(range(40))
    told = take(node, "progress")
    assert {event["object"] for event in told} == {"follower"}
    assert max(event["values"]["streams"]["live/0"] for event in told) >= 15


def test_a_stream_that_is_made_again_while_it_is_read(node: peers.Peer) -> None:
    declare_stream(node, "twice")
    fill(node, "twice", [b"old"] * 30)
    log = Wire(f"amqp://{node.host}:{node.port}")
    (extent,) = log.extents(["twice"])
    batches = log.read(extent, 0, 30, ["offset", "body"], rows=10)
    assert next(batches)["body"].to_pylist() == [b"old"] * 10
    with channel(node) as opened:
        opened.queue_delete("twice")
    declare_stream(node, "twice")
    fill(node, "twice", [b"new"] * 30)
    assert list(batches) == [], "what is there now was never asked for"


def test_traffic_equals_the_nodes_own_counters(spark: SparkSession, node: peers.Peer) -> None:
    async def counters() -> dict[str, int]:
        async with weft.connect(f"amqp://{node.host}:{node.port}") as fabric:
            rows = await Management(fabric).query("queue", columns=("name", "published"))
            return {row["name"]: row["published"] for row in rows}

    found = traffic.results(traffic.partials(read(spark, node, stream="orders,parted")))
    counted = {row["address"]: row["n"] for row in found.groupBy("address").agg(F.sum("messages").alias("n")).collect()}
    told = asyncio.run(counters())
    assert counted == {"orders": told["orders"], "parted": told["parted-0"] + told["parted-1"]}
    assert counted["orders"] == ROWS


def test_mistakes_are_told(spark: SparkSession, node: peers.Peer) -> None:
    with pytest.raises(PySparkException, match="no stream nothing"):
        read(spark, node, stream="nothing").collect()
