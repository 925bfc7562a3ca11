"""A fabric is brought from one version to another, node by node, under confirmed traffic.

Owns the three nodes, the messages that pass them meanwhile, and the judgement. Two versions come in, each as the
folder of its sources with a kernel in it (`build` makes one of any git revision); what was confirmed, lost and doubled
goes out. It must never count a message as sent that was not confirmed, nor leave a process behind.
Rule: CONTRIBUTING.md, "From one version to the next"; run it with `make upgrade FROM=<revision>`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
from pika.exceptions import AMQPError

import peers
from system.fabrics import Fabric, until
from weft.cli.fabric import reconcile
from weft.fabric import load

ROOT = Path(__file__).resolve().parents[2]
BUILDS = ROOT / "target" / "upgrade"
NODES = ("gateway", "source", "sink")
"""In the order of their replacement, so that each of the two links joins old and new in both directions once."""
FABRIC = """
[nodes.gateway]
listen = "127.0.0.1:{gateway}"
kind = "gateway"
exchanges = {{ events = "topic" }}

[nodes.source]
listen = "127.0.0.1:{source}"
exchanges = {{ events = "topic" }}

[nodes.sink]
listen = "127.0.0.1:{sink}"
exchanges = {{ events = "topic" }}

[[links]]
from = ["source", "sink"]
to = "kind:gateway"
heartbeat_s = 1
retry_max_s = 1

[[routes]]
kind = "dynamic"
exchange = "events"

[[routes]]
kind = "dynamic"
direction = "push"
exchange = "events"
"""
PAUSE_S = 0.002
BETWEEN = 500
RETRY_S = 0.05
ARRIVE_S = 60.0


@dataclass
class Outcome:
    """What became of the messages."""

    confirmed: int = 0
    lost: int = 0
    twice: int = 0
    kept: int = 0
    """Of the confirmed ones, how many the stream has in the end, written by one version and read by the other."""
    steps: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return self.confirmed > 0 and self.lost == self.twice == 0 and self.kept == self.confirmed


class Rolling:
    """Three nodes of one version, and traffic through them."""

    def __init__(self, folder: Path, sources: Path | None, between: int) -> None:
        """`sources` of the version to begin with; None stands for those that run this. After each step at least
        `between` messages must arrive, through whatever versions there are.
        """
        self._between = between
        self.fabric = Fabric(folder)
        self._sources = sources
        self._confirmed: list[int] = []
        self._seen: Counter[int] = Counter()
        self._steps: list[str] = []
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def start(self) -> None:
        """Begin, and wait for the first messages."""
        for name in NODES:
            self.fabric.add(name, env=_env(self._sources))
        file = self.fabric.folder / "fabric.toml"
        file.write_text(FABRIC.format(**{name: self.fabric.port(name) for name in NODES}))
        if asyncio.run(reconcile(load(file), False, False, carry_out=True)):
            raise peers.PeerError("the nodes do not take what the file wants")
        sink = self.fabric.channel("sink")
        # Who is cut off sends again what has no answer, under the same id: the barrier lets it in once.
        sink.queue_declare("q", durable=True, arguments={"x-barrier": "message-id"})
        sink.queue_declare("log", durable=True, arguments={"x-queue-type": "stream", "x-barrier": "message-id"})
        for queue in ("q", "log"):
            sink.queue_bind(queue, "events", "news.#")
        self._until_flowing()
        self._writer.start()
        self._until_more()

    def replace(self, name: str, sources: Path | None, word: str) -> None:
        """A node ends in peace, and one of another version takes its folder over."""
        self.fabric.stop(name)
        self.fabric.restart(name, env=_env(sources))
        self._until_flowing()
        before = len(self._seen)
        self._until_more()
        self._steps.append(f"{name} is {word} now: {len(self._seen) - before} more messages came")

    def end(self) -> Outcome:
        """Let everything arrive; what is wrong is told and not raised."""
        self._stop.set()
        self._writer.join(ARRIVE_S)
        deadline = time.monotonic() + ARRIVE_S
        wanted = set(self._confirmed)
        while not wanted <= self._seen.keys() and time.monotonic() < deadline:
            self._take()
        self._take()
        twice = sum(count - 1 for count in self._seen.values())
        kept = Counter(self._read_log(len(wanted)))
        twice += sum(count - 1 for count in kept.values())
        return Outcome(
            len(wanted), len(wanted - self._seen.keys()), twice, len(wanted & kept.keys()), steps=self._steps
        )

    def close(self) -> None:
        """End what still runs."""
        self._stop.set()
        if self._writer.is_alive():
            self._writer.join(ARRIVE_S)
        self.fabric.__exit__()

    # traffic

    def _write(self) -> None:
        """One message after the other, each until it is confirmed."""
        channel: Any = None
        number = 0
        while not self._stop.wait(PAUSE_S):
            try:
                if channel is None:
                    channel = self._connect("source")
                    channel.confirm_delivery()
                properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
                channel.basic_publish("events", "news.today", str(number).encode(), properties)
            except (AMQPError, OSError):
                _hang_up(channel)
                channel = None
                self._stop.wait(RETRY_S)
                continue
            self._confirmed.append(number)
            number += 1
        _hang_up(channel)

    def _connect(self, name: str) -> Any:
        parameters = pika.ConnectionParameters("127.0.0.1", self.fabric.port(name), heartbeat=0)
        return pika.BlockingConnection(parameters).channel()

    def _take(self) -> None:
        """Everything that is in the queue at the end of the way."""
        connection = self._connect("sink")
        while (got := connection.basic_get("q", auto_ack=True))[0] is not None:
            self._seen[int(got[2])] += 1
        connection.connection.close()

    def _read_log(self, count: int) -> list[int]:
        found: list[int] = []
        channel = self._connect("sink")
        channel.basic_qos(prefetch_count=500)
        consumer = channel.consume("log", arguments={"x-stream-offset": "first"}, inactivity_timeout=5)
        for method, _properties, body in consumer:
            if method is None:
                break
            found.append(int(body))
            channel.basic_ack(method.delivery_tag)
            if len(found) >= count:
                break
        channel.connection.close()
        return found

    def _until_flowing(self) -> None:
        for name in ("source", "sink"):
            self.fabric.until_flowing(name, 2)

    def _until_more(self) -> None:
        wanted = len(self._seen) + self._between

        def is_there() -> bool:
            self._take()
            return len(self._seen) >= wanted

        until(is_there, ARRIVE_S)


def _hang_up(channel: Any) -> None:
    if channel is not None and channel.connection.is_open:
        with contextlib.suppress(AMQPError, OSError):
            channel.connection.close()


def _env(sources: Path | None) -> dict[str, str] | None:
    return None if sources is None else {"PYTHONPATH": str(sources)}


def roll(folder: Path, old: Path | None, new: Path | None, *, back: bool, between: int = BETWEEN) -> Outcome:
    """From old to new, and back again if that is wanted."""
    rolling = Rolling(folder, old, between)
    try:
        rolling.start()
        for name in NODES:
            rolling.replace(name, new, "new")
        for name in NODES if back else ():
            rolling.replace(name, old, "old")
        return rolling.end()
    finally:
        rolling.close()


def build(revision: str) -> Path:
    """The sources of a revision with their kernel; what was built once is used again."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode:
        raise SystemExit(f"'{revision}' is no revision of this repository")
    tree = BUILDS / found.stdout.strip()[:12]
    kernel = tree / "src" / "weft" / "_kernel.abi3.so"
    if kernel.exists():
        return tree / "src"
    print(f"building {revision} in {tree.relative_to(ROOT)}", flush=True)
    tree.mkdir(parents=True, exist_ok=True)
    archive = tree.with_suffix(".tar")
    subprocess.run(["git", "archive", "--output", str(archive), found.stdout.strip()], cwd=ROOT, check=True)
    shutil.unpack_archive(archive, tree)
    archive.unlink()
    target = BUILDS / "build"
    command = ["cargo", "build", "--release", "--quiet", "-p", "weft-python", "--target-dir", str(target)]
    subprocess.run(command, cwd=tree, check=True)
    shutil.copy(target / "release" / "lib_kernel.so", kernel)
    return tree / "src"


def main(arguments: Sequence[str]) -> int:
    """The command behind `make upgrade`."""
    parser = argparse.ArgumentParser(prog="make upgrade", description="roll a fabric from one revision to another")
    parser.add_argument("--from", dest="old", required=True, help="the revision to begin with")
    parser.add_argument("--to", dest="new", help="the revision to end with; the working tree by default")
    parser.add_argument("--back", action="store_true", help="and back again, as after an upgrade that was no good")
    options = parser.parse_args(arguments)
    old = build(options.old)
    new = build(options.new) if options.new else ROOT / "src"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            outcome = roll(Path(folder), old, new, back=options.back)
        except peers.PeerError as error:
            print(f"it stopped half way: {error}")
            return 1
    for step in outcome.steps:
        print(step)
    print(f"confirmed {outcome.confirmed}, lost {outcome.lost}, twice {outcome.twice}, in the stream {outcome.kept}")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
