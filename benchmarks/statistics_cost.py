"""What statistics and events cost a message.

A script with two parts. `kernel` builds a kernel without statistics (cargo feature `without-statistics`), runs the same
load against it and the usual one in turns, and compares CPU per message. `events` runs the load against a node with
many queues, in turns with nobody and with somebody bound to `weft.events`, statistics told every second. It prints
medians and their ratio. It must not be read as a benchmark of the node: only the two sides of a line compare.
Run: `python benchmarks/statistics_cost.py kernel|events [--runs 5]`. Targets: at most 3 % and 2 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pika

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
import peers

ROOT = Path(__file__).resolve().parent.parent
LOAD = ROOT / "benchmarks" / "load"
SECS = 3
QUEUES = 1_000


def load(peer: peers.Peer, **options: object) -> float:
    """CPU of the broker per message, in microseconds: published, delivered and acknowledged."""
    words = [f"{key}={value}" for key, value in {"size": 100, "secs": SECS, "fast": 1, **options}.items()]
    command = [str(LOAD / "bin" / "load091"), "thr", f"port={peer.port}", f"pid={peer.pid}", *words]
    run = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    return float(run["broker_cpu_us"])


def tell(what: str, before: list[float], after: list[float]) -> None:
    """A line: medians, ranges and the ratio."""
    one, other = statistics.median(before), statistics.median(after)
    ranges = [f"{min(runs):.3f} to {max(runs):.3f}" for runs in (before, after)]
    print(f"| {what} | {one:.3f} µs ({ranges[0]}) | {other:.3f} µs ({ranges[1]}) | {(other / one - 1) * 100:+.1f} % |")


def build_bare(folder: Path) -> Path:
    """A copy of the sources with a kernel that counts nothing; the usual kernel stays as it is."""
    target = ROOT / "target" / "without-statistics"
    command = ["cargo", "build", "--release", "--quiet", "-p", "weft-python"]
    features = ["--features", "weft-engine/without-statistics", "--target-dir", str(target)]
    subprocess.run([*command, *features], cwd=ROOT, check=True)
    return with_kernel(folder, target / "release" / "lib_kernel.so")


def with_kernel(folder: Path, kernel: Path) -> Path:
    """A copy of the sources with this kernel."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(kernel, folder / "src" / "weft" / "_kernel.abi3.so")
    return folder / "src"


def compare_kernels(runs: int, bare: Path | None) -> None:
    """The usual kernel beside one without statistics."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = build_bare(folder) if bare is None else with_kernel(folder, bare)
        nodes = {
            "without": peers.start_weft(folder / "a", env={**os.environ, "PYTHONPATH": str(sources)}),
            "with": peers.start_weft(folder / "b"),
        }
        found: dict[str, list[float]] = {name: [] for name in nodes}
        try:
            for _ in range(runs):
                for side, peer in nodes.items():
                    found[side].append(load(peer))
        finally:
            for peer in nodes.values():
                peer.stop()
    tell("CPU per message: without statistics, with", found["without"], found["with"])


def compare_events(runs: int) -> None:
    """One node with many queues, heard and unheard."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "weft.toml"
        config.write_text("[events]\nstatistics_s = 1\n")
        peer = peers.start_weft(folder / "data", "--config", str(config))
        try:
            _make_queues(peer)
            unheard, heard = [], []
            for _ in range(runs):
                unheard.append(load(peer))
                with _listener(peer) as count:
                    heard.append(load(peer))
                    if not count():
                        raise SystemExit("no event was heard")
        finally:
            peer.stop()
    tell(f"CPU per message, {QUEUES} queues: nobody listens, somebody does", unheard, heard)


def _make_queues(peer: peers.Peer) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(peer.url))
    channel = connection.channel()
    for number in range(QUEUES):
        channel.queue_declare(f"queue-{number}")
        channel.basic_publish("", f"queue-{number}", b"waits")
    connection.close()


@contextmanager
def _listener(peer: peers.Peer) -> Iterator[Callable[[], int]]:
    """Takes every event, on a thread; yields how to ask how many there were."""
    ready, ended, taken = threading.Event(), threading.Event(), [0]

    def listen() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(peer.url))
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "weft.events", "#")
        ready.set()
        for method, _, _ in channel.consume(queue, auto_ack=True, inactivity_timeout=0.2):
            taken[0] += method is not None
            if ended.is_set():
                break
        connection.close()

    thread = threading.Thread(target=listen)
    thread.start()
    ready.wait()
    try:
        yield lambda: taken[0]
    finally:
        ended.set()
        thread.join()


def main() -> None:
    """Measure one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("kernel", "events"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--bare", type=Path, help="a kernel without statistics that was built already")
    options = parser.parse_args()
    subprocess.run(["make", "--silent", "-C", str(LOAD)], check=True)
    print("| what | before | after | difference |\n|---|---|---|---|")
    if options.what == "kernel":
        compare_kernels(options.runs, options.bare)
    else:
        compare_events(options.runs)


if __name__ == "__main__":
    main()
