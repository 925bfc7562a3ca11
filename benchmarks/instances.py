"""A service of three instances, two of which are killed under load: how long does nobody get an answer?

Owns the instances, those who ask, and the kills. A node comes in through `Bench`, a row goes out. Every request must be
answered, whoever had it in their hands. It must never kill before all three have answered. Target: README.md of this
folder.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from functools import partial
from itertools import pairwise

from bench import Bench, Row, Run, row

import weft

INSTANCES = 3
ASKERS = 8
LEAD_S = 1.0
"""Requests before the first kill, and after the second."""
BETWEEN_S = 0.5
REQUEST_S = 30.0
GAP_S_MAX = 1.0
SERVICE = """
import asyncio, sys, weft

async def main():
    async with weft.connect(sys.argv[1]) as fabric:
        @fabric.service("shared", concurrency=4)
        async def shared(request):
            await asyncio.sleep(0.002)
            return request.body
        print("up", flush=True)
        await fabric.serve()

asyncio.run(main())
"""


def instances(bench: Bench, _quick: bool) -> list[Row]:
    """The longest time without an answer while two of three instances are killed."""
    runs = bench.turns({"weft": partial(_run, bench)})
    gap_s = max(run["gap_s"] for run in runs["weft"])
    failed = sum(run["failed"] for run in runs["weft"])
    what = "a service of three instances, two killed under load: longest time without an answer"
    return [
        row(what, "s", runs, "gap_s", target=f"< {GAP_S_MAX:.0f} s, each", met=gap_s < GAP_S_MAX),
        row("  requests answered", "", runs, "answered"),
        Row("  requests that failed", "", {"weft": failed}, "0", failed == 0),
    ]


def _run(bench: Bench) -> Run:
    url = f"amqp://127.0.0.1:{bench.pool.shared('weft').port}"
    bench.say(f"weft: {INSTANCES} instances of a service, two killed")
    started = [subprocess.Popen([sys.executable, "-c", SERVICE, url], stdout=subprocess.PIPE) for _ in range(INSTANCES)]
    try:
        for one in started:
            assert one.stdout is not None
            one.stdout.readline()
        return asyncio.run(_ask(url, started))
    finally:
        for one in started:
            one.kill()
            one.wait()


async def _ask(url: str, started: list[subprocess.Popen[bytes]]) -> Run:
    answered, failed = [time.monotonic()], 0
    over = asyncio.Event()
    async with weft.connect(url) as fabric:

        async def ask() -> None:
            nonlocal failed
            while not over.is_set():
                try:
                    await fabric.request("shared", 1, timeout_s=REQUEST_S)
                    answered.append(time.monotonic())
                except weft.WeftError:
                    failed += 1

        askers = [asyncio.create_task(ask()) for _ in range(ASKERS)]
        await asyncio.sleep(LEAD_S)
        for one in started[1:]:
            one.kill()
            await asyncio.sleep(BETWEEN_S)
        await asyncio.sleep(LEAD_S)
        over.set()
        await asyncio.gather(*askers)
    gap_s = max(later - earlier for earlier, later in pairwise(answered))
    return {"gap_s": gap_s, "answered": len(answered) - 1, "failed": failed}
