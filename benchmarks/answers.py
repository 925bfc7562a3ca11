"""The measure `answers`: how soon a publisher is answered, by its node or by its consumer.

Owns one publisher that waits for each answer and one consumer, as programs of their own kind would be, in one process
beside a node. Each message is persistent, in a durable queue; what the node writes to its disk meanwhile is counted.
It must never be imported by what it measures: `measures.py` runs it as a program, which prints one line of JSON.
Rule: a node that waits for nothing writes nothing (docs/guides/end-to-end.md).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

import pika
from bench import Bench, Row, Run, Runs, medians, row

import weft

COUNT = 2_000
BODY = bytes(1024)
ACKS = ("node", "end-to-end")


def answers(bench: Bench, quick: bool) -> list[Row]:
    """One message at a time: confirmed by the disk, and by whoever took it."""
    runs: Runs = {"weft": [_run(bench, COUNT // 10 if quick else COUNT) for _ in range(bench.repetitions)]}
    written = medians(runs, "end-to-end written")["weft"]
    return [
        row("1 KiB, persistent: answered by the node, p50", "µs", runs, "node us"),
        row("  answered by its consumer, p50", "µs", runs, "end-to-end us"),
        row("  99 %", "µs", runs, "end-to-end p99 us"),
        row("  written to disk for each", "B", runs, "end-to-end written", target="0", met=written == 0),
    ]


def _run(bench: Bench, count: int) -> Run:
    broker = bench.pool.shared("weft")
    bench.say("weft: answers of nodes and of consumers")
    return bench.script(__file__, broker.port, broker.pid, count)


def written(pid: int) -> int:
    """Bytes that a process has sent to its disk."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def declare(port: int, ack: str) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    connection.channel().queue_declare(f"answers.{ack}", durable=True, arguments={"x-ack": ack})
    connection.close()


async def ask(port: int, pid: int, ack: str, count: int) -> Run:
    """Send one message after the other to a queue that is consumed."""
    url, queue = f"amqp://127.0.0.1:{port}", f"answers.{ack}"
    async with weft.connect(url) as sender, weft.connect(url) as receiver:

        async def consume() -> None:
            async for message in receiver.receive(queue, accept="explicit"):
                message.accept()

        consuming = asyncio.create_task(consume())
        await sender.send(queue, BODY, durable=True)
        before, took_us = written(pid), []
        for _ in range(count):
            started = time.perf_counter()
            await sender.send(queue, BODY, durable=True)
            took_us.append((time.perf_counter() - started) * 1e6)
        bytes_each = (written(pid) - before) / count
        consuming.cancel()
    p99 = statistics.quantiles(took_us, n=100)[98]
    return {f"{ack} us": statistics.median(took_us), f"{ack} p99 us": p99, f"{ack} written": bytes_each}


def main() -> None:
    port, pid, count = (int(word) for word in sys.argv[1:4])
    found: Run = {}
    for ack in ACKS:
        declare(port, ack)
        found |= asyncio.run(ask(port, pid, ack, count))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
