"""How fast Spark reads a stream and writes messages, beside Parquet, Python tuples, Kafka, and what Spark allows.

A program of its own: starts a node, fills a stream over the client, reads it in every way that is compared, and
prints the figures as one line of JSON: rows per second, and CPU per row of the JVM and its Python workers together. It
must treat all ways alike: the same rows, the same sink, a run that does not count, then so many in turns, of which the
median stands. Parquet is what Spark writes when nobody says otherwise (snappy); the lake's files (zstd) are read, too.
Bodies are JSON of 1 KiB, which is what messages are, and bodies of noise, which Parquet need not decompress.
Options: how many messages, and how many runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from statistics import median
from time import perf_counter, time

from pyspark.sql import DataFrame
from spark_kafka import TOPIC, Kafka, NoKafkaError, jars
from spark_sources import FreeSource, TupleSource

from peers import Peer, start_weft

BODY_BYTES = 1024
NARROW = "enqueue_time TIMESTAMP, routing_key STRING, body_bytes BIGINT"
STREAM_ROWS = 100_000
POOL = 4_096
"""Events that are made; messages differ from each other by the session in them."""

WORDS = [a + b for a in ("ba", "ce", "di", "fo", "gu", "ha", "ki", "lo") for b in ("nt", "rd", "lk", "st", "ve", "ti")]


def event(chance: random.Random) -> tuple[bytes, bytes]:
    """A payment as JSON of 1 KiB, before and after the session's 32 characters."""
    items = [{"sku": chance.randrange(10**6), "price": chance.randrange(10**5) / 100} for _ in range(6)]
    device = {
        "id": chance.randbytes(8).hex(),
        "agent": "Mozilla/5.0 (X11; Linux x86_64)",
        "ip": chance.randrange(2**32),
    }
    fields = {
        "account": f"A{chance.randrange(10**8):08}",
        "kind": chance.choice(["payment", "login", "refund"]),
        "amount": round(chance.expovariate(1 / 80), 2),
        "country": chance.choice(["DE", "US", "GB", "FR", "PL", "IN"]),
        "session": "@",
        "device": device,
        "at": 1_763_200_000_000 + chance.randrange(10**9),
        "items": items,
    }
    text = json.dumps(fields)[:-1]
    room = BODY_BYTES - len(text) - len(', "note": ""}') - 31
    note = " ".join(chance.choices(WORDS, k=room))[:room]
    before, _, after = f'{text}, "note": "{note}"}}'.encode().partition(b"@")
    return before, after


async def fill(node: Peer, stream: str, count: int, body: Callable[[], bytes]) -> None:
    import weft

    async with weft.connect(f"amqp://{node.host}:{node.port}") as fabric:
        for start in range(0, count, 4096):
            part = [body() for _ in range(min(4096, count - start))]
            await fabric.send_many(f"/queues/{stream}", part, headers={"tenant": "x", "tier": "edge"}, subject="event")


def bodies() -> tuple[Callable[[], bytes], Callable[[], bytes]]:
    """Events, and noise; no two alike."""
    chance = random.Random(1)
    pool = [event(chance) for _ in range(POOL)]

    def made() -> bytes:
        before, after = pool[chance.randrange(POOL)]
        return before + chance.randbytes(16).hex().encode() + after

    return made, lambda: chance.randbytes(BODY_BYTES)


def declare(node: Peer) -> None:
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
    channel = connection.channel()
    for stream in ("rows", "noise"):
        channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("written", durable=False, arguments={"x-max-length": 1000})
    connection.close()


class Case:
    """The session, the streams and what is measured on them."""

    def __init__(self, folder: Path, node: Peer, count: int, libraries: list[Path]) -> None:
        from weft.spark import session

        self.folder, self.node, self.count = folder, node, count
        # Workers import the sources of the comparison.
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        conf = {"spark.driver.memory": "3g", "spark.jars": ",".join(map(str, libraries))}
        self.spark = session("bench", conf={key: value for key, value in conf.items() if value})
        for source in (TupleSource, FreeSource):
            self.spark.dataSource.register(source)
        self.jvm = self.spark._jvm.java.lang.ProcessHandle.current().pid()
        self.starts_s: dict[str, list[float]] = {}
        self.steady_s: dict[str, list[float]] = {}
        self.data_dir = str(folder / "node")

    def read(self, schema: str | None = None, kind: str = "weft", stream: str = "rows", **options: object) -> DataFrame:
        reader = self.spark.read.format(kind)
        reader = reader.schema(schema) if schema else reader
        return reader.options(path=self.data_dir, stream=stream, **options).load()

    def noop(self, rows: DataFrame) -> None:
        rows.write.format("noop").mode("overwrite").save()

    def parquet(self, stream: str = "rows") -> str:
        """The same rows as Spark writes them when nobody says how; no file has more than a batch of a stream.

        By one task: a stream of files is read in the order in which they were written, and must have the order that
        the rows have. Out of order, the watermark stands still at the end, and the query saves its last batch, without
        rows, which it does when the watermark has moved.
        """
        place = str(self.folder / f"parquet-{stream}")
        self.read(stream=stream).coalesce(1).write.option("maxRecordsPerFile", STREAM_ROWS).parquet(place)
        return place

    def lake(self, stream: str = "rows") -> str:
        """The same rows as the lake keeps them."""
        from weft.spark import Lake, tier
        from weft.spark.files import Files

        tier(Files(self.data_dir), Lake(str(self.folder / "lake")), [stream], rows=STREAM_ROWS, partial=True)
        (place,) = (self.folder / "lake" / "streams" / stream).glob("*/shard=0")
        return str(place)

    def streamed(self, rows: DataFrame, name: str) -> None:
        """A windowed aggregation with percentiles over everything that is there; its start is noted by itself."""
        from pyspark.sql import functions as F

        found = (
            rows.withWatermark("enqueue_time", "1 minute")
            .groupBy(F.window("enqueue_time", "10 seconds"), "routing_key")
            .agg(F.count("*"), F.avg("body_bytes"), F.percentile_approx("body_bytes", [0.5, 0.99]))
        )
        query = found.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        began, folder = time(), tempfile.mkdtemp(dir=self.folder, prefix=name)
        started = query.option("checkpointLocation", folder).start()
        started.awaitTermination()
        batches = [json.loads(batch.json) for batch in started.recentProgress]
        first = datetime.fromisoformat(batches[0]["timestamp"]).timestamp()
        self.starts_s.setdefault(name, []).append(first - began)
        self.steady_s.setdefault(name, []).append(sum(each["durationMs"]["triggerExecution"] for each in batches) / 1e3)

    def stream_from(self, kind: str) -> None:
        options = {"path": self.data_dir, "stream": "rows", "maxRowsPerTrigger": STREAM_ROWS}
        self.streamed(self.spark.readStream.format(kind).schema(NARROW).options(**options).load(), kind)

    def stream_from_parquet(self, place: str) -> None:
        files = self.spark.readStream.schema(NARROW).option("maxFilesPerTrigger", 1).parquet(place)
        self.streamed(files, "parquet")

    def cpu_s(self) -> float:
        """What the JVM and its Python processes have used, those that have ended among them.

        The workers are copies of a process that the session started beside the JVM, and that one's children.
        """
        from weft.spark import nursery

        parents: dict[int, tuple[int, int]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "stat").read_text().rpartition(") ")[2].split()
                parents[int(entry.name)] = int(words[1]), sum(map(int, words[11:15]))
        ticks, found = 0, [self.jvm, *(process.pid for process in nursery._kept)]
        while found:
            process = found.pop()
            ticks += parents.get(process, (0, 0))[1]
            found += [child for child, (parent, _) in parents.items() if parent == process]
        return ticks / os.sysconf("SC_CLK_TCK")

    def write(self, rows: int) -> None:
        url = f"amqp://{self.node.host}:{self.node.port}"
        frame = self.read(endingOffsets=rows).selectExpr("body", "false AS durable")
        frame.write.format("weft").options(url=url, address="written").mode("append").save()

    def copy_to(self, kafka: Kafka) -> None:
        """The stream's rows as Kafka has them: key, value, headers."""
        headers = (
            "transform(map_entries(headers), h -> struct(h.key AS key, CAST(h.value AS BINARY) AS value)) AS headers"
        )
        rows = self.read().selectExpr("CAST(message_id AS BINARY) AS key", "body AS value", headers)
        rows.write.format("kafka").options(**kafka.options, topic=TOPIC, includeHeaders="true").save()

    def read_from(self, kafka: Kafka) -> DataFrame:
        options = {**kafka.options, "subscribe": TOPIC, "includeHeaders": "true"}
        return self.spark.read.format("kafka").options(**options).load()


Ways = Mapping[str, tuple[int, Callable[[], None]]]


def in_turns(case: Case, ways: Ways, runs: int) -> dict[str, float]:
    """Rows per second and CPU per row of each way: the median of so many runs, after one that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(runs + 1):
        for name, (rows, work) in ways.items():
            used, began = case.cpu_s(), perf_counter()
            work()
            rates[name].append(rows / (perf_counter() - began))
            costs[name].append((case.cpu_s() - used) / rows * 1e6)
    found = {name: median(each[1:]) for name, each in rates.items()}
    return found | {f"{name}_cpu_us": median(each[1:]) for name, each in costs.items()}


def compare(case: Case, kafka: Kafka | None, noise: int, runs: int) -> dict[str, float]:
    count, some, written = case.count, case.count // 5, min(case.count, 500_000)
    place, noise_place, lake = case.parquet(), case.parquet("noise"), case.lake()
    ways: dict[str, tuple[int, Callable[[], None]]] = {
        "full": (count, lambda: case.noop(case.read())),
        "parquet": (count, lambda: case.noop(case.spark.read.parquet(place))),
        "zstd": (count, lambda: case.noop(case.spark.read.parquet(lake))),
        "free": (count, lambda: case.noop(case.read(kind="weft-free"))),
        "narrow": (count, lambda: case.noop(case.read(NARROW))),
        "tuples": (some, lambda: case.noop(case.read(kind="weft-tuples", endingOffsets=some))),
    }
    if kafka is not None:
        case.copy_to(kafka)
        ways["kafka"] = (count, lambda: case.noop(case.read_from(kafka)))
    found = in_turns(case, ways, runs)
    ways = {
        "noise": (noise, lambda: case.noop(case.read(stream="noise"))),
        "noise_parquet": (noise, lambda: case.noop(case.spark.read.parquet(noise_place))),
    }
    found |= in_turns(case, ways, runs)
    found |= compare_streams(case, place, runs)
    return found | in_turns(case, {"write": (written, lambda: case.write(written))}, runs)


def compare_streams(case: Case, place: str, runs: int) -> dict[str, float]:
    """Streaming queries as a whole, their start, and what they reach once they run."""
    ways: Ways = {
        "stream": (case.count, lambda: case.stream_from("weft")),
        "stream_parquet": (case.count, lambda: case.stream_from_parquet(place)),
        "stream_free": (case.count, lambda: case.stream_from("weft-free")),
    }
    found = in_turns(case, ways, runs)
    for kind in ("weft", "parquet", "weft-free"):
        name = kind.removeprefix("weft-")
        found[f"start_{name}_s"] = median(case.starts_s[kind][1:])
        found[f"steady_{name}"] = case.count / median(case.steady_s[kind][1:])
    return found


def measure(folder: Path, count: int, runs: int) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    node = start_weft(folder / "node")
    with ExitStack() as ends:
        ends.callback(node.stop)
        declare(node)
        events, noise = bodies()
        asyncio.run(fill(node, "rows", count, events))
        asyncio.run(fill(node, "noise", count // 4, noise))
        kafka, libraries = None, []
        try:
            server, libraries = jars()
            kafka = ends.enter_context(Kafka(folder / "kafka", server))
        except NoKafkaError as error:
            found["no_kafka"] = str(error)
        case = Case(folder, node, count, libraries)
        ends.callback(case.spark.stop)
        return found | compare(case, kafka, count // 4, runs)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="weft-spark-") as folder:
        print(json.dumps(measure(Path(folder), options.messages, options.runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
