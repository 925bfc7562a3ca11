"""How fast Spark reads a stream and writes messages, beside its own Parquet and beside a source of Python tuples.

A program of its own: starts a node, fills a stream over the client, reads it in every way that is compared, and
prints the figures as one line of JSON. It must treat all ways alike: the same rows, the same sink, the best of so
many runs each. Options: how many messages, and how many runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from pyspark.sql import DataFrame

from peers import Peer, start_weft

BODY_BYTES = 1024
NARROW = "enqueue_time TIMESTAMP, routing_key STRING, body_bytes BIGINT"
STREAM_ROWS = 100_000


async def fill(node: Peer, count: int) -> None:
    import weft

    async with weft.connect(f"amqp://{node.host}:{node.port}") as fabric:
        for start in range(0, count, 4096):
            # No two alike: Parquet would keep equal ones once.
            part = [os.urandom(BODY_BYTES) for _ in range(min(4096, count - start))]
            await fabric.send_many("/queues/rows", part, headers={"tenant": "x", "tier": "edge"}, subject="event")


def declare(node: Peer) -> None:
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
    channel = connection.channel()
    channel.queue_declare("rows", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("written", durable=False, arguments={"x-max-length": 1000})
    connection.close()


def tuple_source() -> type:
    """The same source, but with a Python tuple per message."""
    from pyspark.sql.datasource import DataSourceReader

    from weft.spark.options import read_options
    from weft.spark.reader import BatchReader
    from weft.spark.source import WeftSource

    class Tuples(BatchReader):
        def read(self, partition: object) -> Iterator[tuple[object, ...]]:  # type: ignore[override]
            for batch in super().read(partition):  # type: ignore[arg-type]
                columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
                columns["headers"] = [dict(pairs) for pairs in columns["headers"]]
                yield from zip(*columns.values(), strict=True)

    class TupleSource(WeftSource):
        @classmethod
        def name(cls) -> str:
            return "weft-tuples"

        def reader(self, schema: object) -> DataSourceReader:  # type: ignore[override]
            return Tuples(read_options(self.options, streaming=False), schema)  # type: ignore[arg-type]

    return TupleSource


class Case:
    """The session, the stream and what is measured on them."""

    def __init__(self, folder: Path, node: Peer, count: int, runs: int) -> None:
        from weft.spark import session

        began = perf_counter()
        self.folder, self.node, self.count, self.runs = folder, node, count, runs
        self.spark = session("bench", conf={"spark.driver.memory": "3g"})
        self.spark.dataSource.register(tuple_source())
        self.data_dir = str(folder / "node")
        self.read(NARROW).limit(1).collect()
        self.first_rows_s = perf_counter() - began

    def read(self, schema: str | None = None, kind: str = "weft", **options: object) -> DataFrame:
        reader = self.spark.read.format(kind)
        reader = reader.schema(schema) if schema else reader
        return reader.options(path=self.data_dir, stream="rows", **options).load()

    def best(self, work: Callable[[], None], rows: int) -> float:
        """Rows per second of the best run."""
        seconds = []
        for _ in range(self.runs):
            began = perf_counter()
            work()
            seconds.append(perf_counter() - began)
        return rows / min(seconds)

    def noop(self, rows: DataFrame) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def parquet(self) -> str:
        """The same rows as Spark's own files, as many of them as there are batches of a stream."""
        from weft.spark import Lake, tier
        from weft.spark.files import Files

        tier(Files(self.data_dir), Lake(str(self.folder / "lake")), ["rows"], rows=STREAM_ROWS, partial=True)
        (place,) = (self.folder / "lake" / "streams" / "rows").glob("*/shard=0")
        return str(place)

    def streamed(self, rows: DataFrame, number: str) -> None:
        """A windowed aggregation with percentiles over everything that is there."""
        from pyspark.sql import functions as F

        found = (
            rows.withWatermark("enqueue_time", "1 minute")
            .groupBy(F.window("enqueue_time", "10 seconds"), "routing_key")
            .agg(F.count("*"), F.avg("body_bytes"), F.percentile_approx("body_bytes", [0.5, 0.99]))
        )
        query = found.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        folder = tempfile.mkdtemp(dir=self.folder, prefix=number)
        query.option("checkpointLocation", folder).start().awaitTermination()

    def stream_from_weft(self) -> None:
        options = {"path": self.data_dir, "stream": "rows", "maxRowsPerTrigger": STREAM_ROWS}
        self.streamed(self.spark.readStream.format("weft").schema(NARROW).options(**options).load(), "weft")

    def stream_from_parquet(self, place: str) -> None:
        files = self.spark.readStream.schema(NARROW).option("maxFilesPerTrigger", 1).parquet(place)
        self.streamed(files, "parquet")

    def write(self, rows: int) -> None:
        url = f"amqp://{self.node.host}:{self.node.port}"
        frame = self.read(endingOffsets=rows).selectExpr("body", "false AS durable")
        frame.write.format("weft").options(url=url, address="written").mode("append").save()


def measure(folder: Path, count: int, runs: int) -> dict[str, float]:
    node = start_weft(folder / "node")
    try:
        declare(node)
        asyncio.run(fill(node, count))
        case = Case(folder, node, count, runs)
        place = case.parquet()
        some = count // 5
        written = min(count, 50_000)
        figures = {
            "first_rows_s": case.first_rows_s,
            "full": case.best(lambda: case.noop(case.read()), count),
            "parquet": case.best(lambda: case.noop(case.spark.read.parquet(place)), count),
            "narrow": case.best(lambda: case.noop(case.read(NARROW)), count),
            "tuples": case.best(lambda: case.noop(case.read(kind="weft-tuples", endingOffsets=some)), some),
            "stream": case.best(case.stream_from_weft, count),
            "stream_parquet": case.best(lambda: case.stream_from_parquet(place), count),
            "write": case.best(lambda: case.write(written), written),
        }
        case.spark.stop()
        return figures
    finally:
        node.stop()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="weft-spark-") as folder:
        print(json.dumps(measure(Path(folder), options.messages, options.runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
