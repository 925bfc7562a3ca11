"""How fast the messages of a stream become columns, beside the same rows read from Parquet, on one core.

A program of its own: fills a store through an engine, reads it in every way that is compared and prints the figures as
one line of JSON, in rows per second of CPU time. It must treat both alike: the same rows, the same columns, pyarrow on
one thread, files that the page cache has, the best of so many runs. Options: how many messages, and how many runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time, time_ns

import pyarrow as pa
from pyarrow import parquet

from weft._kernel import Engine, LogReader, encode_messages
from weft.model.changes import CreateVhost, DeclareQueue
from weft.model.limits import Limits

BODY_BYTES = 1024
NUMBER = 1
NARROW = ["enqueue_time", "routing_key", "body_bytes"]
"""When, what and how large: what most questions about traffic need."""
MESSAGE = ["body", "message_id", "content_type", "headers"]


def fill(folder: Path, count: int) -> None:
    """Messages of 1 KiB with the properties that messages have, in a durable queue."""
    engine = Engine(Limits(), node="n", version="0", seed=1, now_ns=0, wall_ns=time_ns(), data_dir=str(folder))
    engine.apply([CreateVhost("/"), DeclareQueue("/", "rows", durable=True, number=NUMBER)])
    pool = random.randbytes(1 << 20)
    for row in range(count):
        at = row * 61 % (len(pool) - BODY_BYTES)
        body = pool[at : at + BODY_BYTES]
        headers = {"tenant": f"t{row % 50}", "tier": "edge"}
        properties = {"delivery_mode": 2, "message_id": f"id-{row}", "content_type": "application/json"}
        engine.publish("/", "", "rows", body, {**properties, "headers": headers})
        if row % 500 == 0:
            work(engine)
    work(engine)
    engine.finish()
    work(engine)


def work(engine: Engine) -> None:
    while jobs := engine.poll_disk():
        for job in jobs:
            job.run()
            engine.disk_done(job)


def best(runs: int, read: Callable[[], Iterator[pa.RecordBatch]]) -> float:
    """Rows per second of CPU time, of the best of some runs."""
    rates = []
    for _ in range(runs):
        began = process_time()
        rows = sum(batch.num_rows for batch in read())
        rates.append(rows / (process_time() - began))
    return max(rates)


def measure(folder: Path, count: int, runs: int) -> dict[str, float]:
    fill(folder / "store", count)
    log = LogReader(folder / "store", NUMBER, stream="rows", origin="n")
    path = folder / "rows.parquet"
    with parquet.ParquetWriter(path, pa.RecordBatchReader.from_stream(log.read()).schema, compression="zstd") as writer:
        for batch in pa.RecordBatchReader.from_stream(log.read(batch_rows=65_536, batch_bytes=64 << 20)):
            writer.write_batch(batch)

    def columns(names: list[str] | None) -> Callable[[], Iterator[pa.RecordBatch]]:
        return lambda: iter(pa.RecordBatchReader.from_stream(log.read(columns=names)))

    def stored(names: list[str] | None) -> Callable[[], Iterator[pa.RecordBatch]]:
        return lambda: parquet.ParquetFile(path).iter_batches(4096, columns=names, use_threads=False)

    sample = pa.table(log.read(0, min(count, 50_000), MESSAGE))

    def encode() -> Iterator[pa.RecordBatch]:
        for batch in sample.to_batches(4096):
            encode_messages(batch, identity="i")
            yield batch

    return {
        "rows": count,
        "all": best(runs, columns(None)),
        "narrow": best(runs, columns(NARROW)),
        "parquet_all": best(runs, stored(None)),
        "parquet_narrow": best(runs, stored(NARROW)),
        "encode": best(runs, encode),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory(prefix="weft-columns-") as folder:
        print(json.dumps(measure(Path(folder), options.rows, options.runs)))


if __name__ == "__main__":
    main()
