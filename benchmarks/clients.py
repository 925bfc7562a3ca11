"""The measure `clients`: weft's client library beside pika, aio-pika and python-qpid-proton, all on the same node.

Owns which library does what, and the targets. Each run is a process of `client_load.py`; rows go to the report. Whether
a library can do a task is told by `client_load.py` having it. It must never favour one: same node, same bodies, same
number on their way.
Rule: what a client costs is its own CPU time per message; rates depend on the node and the machine as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import RUN_TIMEOUT_S, Bench, BenchError, Row, Run, Runs, all_of, medians, row

LOAD = Path(__file__).resolve().parent / "client_load.py"
MESSAGES = 20_000
REQUESTS = 2_000
SMALL = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}
"""The kernel's allocator takes memory as it is needed, not two megabytes at a time."""


def clients(bench: Bench, quick: bool) -> list[Row]:
    """Send, receive and request with each library."""
    count, requests = (MESSAGES // 4, REQUESTS // 4) if quick else (MESSAGES, REQUESTS)
    port = bench.pool.shared("weft").port
    sent: Runs = {name: [] for name in ("weft", "aio_pika", "pika", "qpid_proton")}
    received: Runs = {name: [] for name in sent}
    asked: Runs = {name: [] for name in ("weft", "aio_pika")}
    replies: Runs = {"weft": []}
    memory: Runs = {"weft": []}
    embedded: Runs = {"weft": []}
    for _ in range(bench.repetitions):
        for name in sent:
            sent[name].append(_run(bench, name, "send", port, count))
            received[name].append(_run(bench, name, "receive", port, count))
        for name in asked:
            with _serving(name, port):
                asked[name].append(_run(bench, name, "request", port, requests))
        with _serving("weft", port):
            replies["weft"].append(_run(bench, "weft", "replies", port, requests // 2))
        memory["weft"].append(_run(bench, "weft", "memory", 0, requests))
        embedded["weft"].append(_embedded(bench, requests // 4))
    rows = _rows(sent, received, asked, memory)
    return [*rows[:-1], *_reply_rows(replies), rows[-1], *_embedded_rows(embedded)]


def _embedded_rows(embedded: Runs) -> list[Row]:
    """A program that keeps what it sends until a node is there."""
    met = medians(embedded, "resident_mb")["weft"] < 30
    return [
        row("client with a spool and no node: resident", "MB", embedded, "resident_mb", target="< 30 MB", met=met),
        row("  1 KiB messages kept per second, one at a time", "/s", embedded, "rate"),
    ]


def _reply_rows(replies: Runs) -> list[Row]:
    """The same requests in turns by three kinds of reply address, in one process each."""
    shared_us, own_us = medians(replies, "shared_us")["weft"], medians(replies, "own_us")["weft"]
    told = "the shared one adds < 100 µs"
    return [
        row("client: request by the shared reply address, p50", "µs", replies, "shared_us"),
        row("  by one of its own, made before", "µs", replies, "own_us", target=told, met=shared_us - own_us < 100),
        row("  by one that is made for each request", "µs", replies, "made_us"),
    ]


def _rows(sent: Runs, received: Runs, asked: Runs, memory: Runs) -> list[Row]:
    out, inward, trips = medians(sent, "rate"), medians(received, "rate"), medians(asked, "p50_us")
    met_sent = all_of(out["weft"] >= 5 * out["aio_pika"], out["weft"] >= 3 * max(out["pika"], out["qpid_proton"]))
    met_memory = medians(memory, "p50_us")["weft"] <= 40
    target_sent = "≥ 5 × aio-pika, ≥ 3 × the others"
    return [
        row("client: send 1 KiB, each confirmed", "/s", sent, "rate", target=target_sent, met=met_sent),
        row("  the client's own CPU per message", "µs", sent, "cpu_us"),
        row(
            "client: receive and accept 1 KiB, one at a time",
            "/s",
            received,
            "rate",
            target="≥ 4 × aio-pika",
            met=inward["weft"] >= 4 * inward["aio_pika"],
        ),
        row("  the client's own CPU per message", "µs", received, "cpu_us"),
        row(
            "client: request and reply, p50",
            "µs",
            asked,
            "p50_us",
            target="≤ 0.5 × aio-pika",
            met=trips["weft"] <= 0.5 * trips["aio_pika"],
        ),
        row("  the asker's own CPU per request", "µs", asked, "cpu_us"),
        row("client: send to receive in one process, p50", "µs", memory, "p50_us", target="≤ 40 µs", met=met_memory),
    ]


def _run(bench: Bench, library: str, task: str, port: int, count: int) -> Run:
    bench.say(f"{library}: {task} {count}")
    return bench.script(LOAD, library, task, port, count)


def _embedded(bench: Bench, count: int) -> Run:
    bench.say(f"weft: embedded {count}")
    return bench.script(LOAD.with_name("embedded.py"), count, env=os.environ | SMALL)


@contextmanager
def _serving(library: str, port: int) -> Iterator[None]:
    """The other side of requests; it ends when its standard input does."""
    command = [sys.executable, str(LOAD), library, "serve", str(port), "0"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        if server.stdout.readline() != "ready\n":
            raise BenchError(f"the service of {library} did not start")
        yield
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait(RUN_TIMEOUT_S)
