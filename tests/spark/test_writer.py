"""The writer: rows become confirmed messages of a real node, and a repeated batch nothing new."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import peers
from spark.test_lake import TableLog
from weft.pipeline import synthetic
from weft.spark import MESSAGE, Lake, tier


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Peer]:
    peer = peers.start_weft(tmp_path_factory.mktemp("node") / "data")
    yield peer
    assert peer.stop() == 0, peer.output.text()


@pytest.fixture
def channel(node: peers.Peer) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
    yield connection.channel()
    connection.close()


def write(rows: DataFrame, node: peers.Peer, **options: object) -> None:
    url = f"amqp://{node.host}:{node.port}"
    rows.write.format("weft").options(url=url, **options).mode("append").save()


def taken(channel: Any, queue: str) -> list[tuple[Any, bytes]]:
    found = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((properties, body))


def test_every_column_arrives(spark: SparkSession, node: peers.Peer, channel: Any) -> None:
    channel.queue_declare("all", durable=True)
    row = Row(
        exchange="", routing_key="all", address=None, message_id="m-1", correlation_id="c-1", reply_to="r",
        content_type="text/plain", content_encoding="utf-8", type="kind", app_id="app", user_id="guest",
        creation_time=datetime(2027, 1, 15, 8, tzinfo=UTC), priority=7, ttl_ms=60_000, durable=True,
        headers={"a": "1"}, body=b"hello",
    )  # fmt: skip
    rows = spark.createDataFrame([row], MESSAGE).drop("address", "user_id")
    write(rows, node, headers="b=2")
    ((properties, body),) = taken(channel, "all")
    assert body == b"hello"
    assert (properties.message_id, properties.correlation_id, properties.reply_to) == ("m-1", "c-1", "r")
    assert (properties.content_type, properties.content_encoding, properties.type) == ("text/plain", "utf-8", "kind")
    assert (properties.app_id, properties.priority, properties.delivery_mode) == ("app", 7, 2)
    assert properties.timestamp == 1_800_000_000
    assert 0 < int(properties.expiration) <= 60_000
    assert {"a": "1", "b": "2"}.items() <= properties.headers.items()


def test_rows_go_where_they_say(spark: SparkSession, node: peers.Peer, channel: Any) -> None:
    channel.exchange_declare("shop", "topic", durable=True)
    for queue, key in (("paid", "*.paid"), ("sent", "*.sent")):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "shop", key)
    rows = spark.range(60).select(
        F.when(F.col("id") % 3 == 0, "shop/a.paid").otherwise("shop/b.sent").alias("address"),
        F.col("id").cast("string").alias("body"),
    )
    write(rows, node)
    assert sorted(int(body) for _, body in taken(channel, "paid")) == list(range(0, 60, 3))
    assert len(taken(channel, "sent")) == 40


def test_the_same_rows_again_are_the_same_messages(spark: SparkSession, node: peers.Peer, channel: Any) -> None:
    channel.queue_declare("once", durable=True, arguments={"x-barrier": "message-id"})
    rows = spark.range(1_000, numPartitions=2).select(F.col("id").cast("string").alias("body"))
    for _ in range(2):
        write(rows, node, address="once", producer="nightly", batch=7)
    found = taken(channel, "once")
    assert sorted(int(body) for _, body in found) == list(range(1_000))
    assert {properties.message_id for properties, _ in found} == {
        f"nightly:7:{part}:{row}" for part in range(2) for row in range(500)
    }
    write(rows.limit(3), node, address="once", producer="nightly", batch=8)
    assert len(taken(channel, "once")) == 3


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        ("SELECT 'x' AS text", {"address": "q"}, "no column body; a message has no text"),
        ("SELECT 'x' AS body", {}, "nothing says where"),
        ("SELECT 'x' AS body, 'high' AS priority", {"address": "q"}, "priority must be int"),
        ("SELECT 'x' AS body, 'q' AS address, 'e' AS exchange", {}, "leave it or them out"),
        ("SELECT 'x' AS body", {"address": "q", "colour": "red"}, "no option colour"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(
    spark: SparkSession, node: peers.Peer, rows: str, options: dict[str, object], told: str
) -> None:
    with pytest.raises(PySparkException, match=told):
        write(spark.sql(rows), node, **options)


def test_what_the_node_refuses_fails_the_write(spark: SparkSession, node: peers.Peer) -> None:
    with pytest.raises(PySparkException, match="nowhere"):
        write(spark.sql("SELECT 'x' AS body"), node, address="nowhere/at.all", inFlight=10)


def test_streaming_write_is_exactly_once_behind_a_barrier(
    spark: SparkSession, node: peers.Peer, channel: Any, tmp_path: Path
) -> None:
    channel.queue_declare("streamed", durable=True, arguments={"x-barrier": "message-id"})
    tier(TableLog(synthetic.traffic(900)), Lake(str(tmp_path / "lake")), ["traffic"], partial=True)

    def run() -> None:
        rows = spark.readStream.format("weft").options(lake=str(tmp_path / "lake"), stream="traffic").load()
        query = (
            rows.select("body", F.col("offset").cast("string").alias("correlation_id")).writeStream.format("weft")
            .options(url=f"amqp://{node.host}:{node.port}", address="streamed").trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        assert query.awaitTermination(50)

    run()
    # As after a crash between the sink and Spark's own note of it: the batch is repeated.
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        path.unlink()
    run()
    found = taken(channel, "streamed")
    assert sorted(int(properties.correlation_id) for properties, _ in found) == list(range(900))
