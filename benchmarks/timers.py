"""The measure `timers`: how late a delayed message is while a million others wait for their time.

Owns a node with a million delayed messages, a flow of short-lived ones as load, and a few thousand whose lateness is
told: from when each was due to when its receiver has it, the way to the node and back included.
It must never be imported by what it measures: `measures.py` runs it as a program, which prints one line of JSON.
Rule: one timer of the system serves all deadlines (src/weft/node/ticker.py).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

from bench import Bench, Row, Run, Runs, medians, row

import weft

WAITING = 1_000_000
BATCH = 10_000
COUNT = 4_000
DELAY = "x-opt-delivery-delay"
HOUR_MS = 3_600_000
LATE_MS_MAX = 1.0


def timers(bench: Bench, quick: bool) -> list[Row]:
    """A fresh node: what waits would be in the way of others."""
    waiting = WAITING // 10 if quick else WAITING
    runs: Runs = {"weft": [_run(bench, waiting) for _ in range(bench.repetitions)]}
    late = medians(runs, "p99 ms")["weft"]
    what = f"how late a delayed message is, {waiting:,} waiting, under load, p50"
    return [
        row(what, "ms", runs, "p50 ms"),
        row("  99 %", "ms", runs, "p99 ms", target="< 1 ms", met=late < LATE_MS_MAX),
    ]


def _run(bench: Bench, waiting: int) -> Run:
    bench.say(f"weft: {waiting:,} timers")
    with bench.pool.fresh("weft") as broker:
        return bench.script(__file__, broker.port, waiting)


async def measure(port: int, waiting: int) -> Run:
    """Set the million, then the few; note how late each of these is."""
    url, late_ms = f"amqp://127.0.0.1:{port}", []
    async with weft.connect(url) as sender, weft.connect(url) as receiver, weft.connect(url) as other:
        for _ in range(waiting // BATCH):
            await sender.send_many("far", [b"x"] * BATCH, annotations={DELAY: HOUR_MS})

        async def receive() -> None:
            async for message in receiver.receive("near"):
                late_ms.append((time.monotonic() - float(message.body)) * 1e3)
                if len(late_ms) == COUNT:
                    return

        async def load() -> None:
            while len(late_ms) < COUNT:
                await other.send_many("load", [bytes(100)] * 50, ttl_ms=10)
                await asyncio.sleep(0.01)

        both = asyncio.gather(receive(), load())
        for _ in range(COUNT):
            delay_ms = random.randint(2_000, 6_000)
            await sender.send("near", str(time.monotonic() + delay_ms / 1e3), annotations={DELAY: delay_ms})
        await both
    late_ms.sort()
    return {"p50 ms": late_ms[COUNT // 2], "p99 ms": late_ms[COUNT * 99 // 100]}


def main() -> None:
    port, waiting = (int(word) for word in sys.argv[1:3])
    print(json.dumps(asyncio.run(measure(port, waiting))))


if __name__ == "__main__":
    main()
