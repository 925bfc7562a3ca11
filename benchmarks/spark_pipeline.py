"""How soon `weft pipeline run` has its first rows, and how soon a message that is published comes back as a result.

A program of its own: starts a node and the command as an operator would, and prints the figures as one line of JSON.
A probe is a message with a routing key that no other has; its answer is the result of the job `traffic` that names this
key. It must treat start and steady state apart: probes are sent only when a first answer has come.
Options: how many starts, and how many probes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import pika

from peers import Peer, start_weft

SOURCE, RESULTS = "probes", "weft.results"
ANSWER_TIMEOUT_S = 60.0
PAUSE_S = 0.23
"""Between two probes: not a divisor of any trigger, so that probes meet all moments of a batch."""
TRIGGERS_S = (0, 1)
WARM_UP = 50
"""Results that are waited for before anything counts: the JVM compiles what it runs often."""
BODY_BYTES = 1024


class Fabric:
    """A node with a stream behind one exchange, and one who listens to the results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node: Peer = start_weft(folder / "node")
        self.url = f"amqp://{self.node.host}:{self.node.port}"
        self.came: dict[str, float] = {}
        self.connection = pika.BlockingConnection(pika.ConnectionParameters(self.node.host, self.node.port))
        self.channel = self.connection.channel()
        for exchange in (SOURCE, RESULTS):
            self.channel.exchange_declare(exchange, "topic", durable=True)
        self.channel.queue_declare("rows", durable=True, arguments={"x-queue-type": "stream"})
        self.channel.queue_bind("rows", SOURCE, "#")
        self.channel.queue_declare("answers")
        self.channel.queue_bind("answers", RESULTS, "#")
        self.channel.basic_consume("answers", self._answered, auto_ack=True)

    def _answered(self, _channel: object, method: Any, _properties: object, _body: bytes) -> None:
        self.came.setdefault(method.routing_key.removeprefix("traffic."), monotonic())

    def stop(self) -> None:
        self.connection.close()
        self.node.stop()

    def publish(self, key: str) -> float:
        """Send a message with this key; when that was."""
        self.channel.basic_publish(SOURCE, key, os.urandom(BODY_BYTES), pika.BasicProperties(delivery_mode=2))
        return monotonic()

    def wait_for(self, keys: Iterable[str]) -> None:
        """Until every one of these keys has had a result."""
        missing, deadline = set(keys), monotonic() + ANSWER_TIMEOUT_S
        while missing := missing - self.came.keys():
            self.connection.process_data_events(0.1)
            if monotonic() > deadline:
                raise SystemExit(f"no result for {len(missing)} messages, {min(missing)} among them")

    def pipeline(self, lake: str, *options: str) -> subprocess.Popen[str]:
        """The command, reading the node's files and answering to it."""
        command = [sys.executable, "-m", "weft", "pipeline", "run", "--data-dir", str(self.folder / "node")]
        command += ["--answers-to", self.url, "--lake", str(self.folder / lake), "--jobs", "traffic", *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def first_rows_s(fabric: Fabric, number: int) -> float:
    """From the start of the command to its word that a batch is done."""
    fabric.publish("start")
    began = monotonic()
    process = fabric.pipeline(f"start-{number}", "--once")
    assert process.stdout is not None
    took = next((monotonic() - began for line in process.stdout if line.startswith("batch ")), 0.0)
    process.stdout.read()
    if process.wait() or not took:
        raise SystemExit("weft pipeline run ended without a batch")
    return took


def latencies_s(fabric: Fabric, trigger_s: int, probes: int) -> list[float]:
    """From publishing to the result's arrival, of each probe."""
    process = fabric.pipeline(f"live-{trigger_s}", "--trigger", str(trigger_s))
    try:
        for number in range(WARM_UP):
            key = f"warm.{trigger_s}.{number}"
            fabric.publish(key)
            fabric.wait_for([key])
        sent = {}
        for number in range(probes):
            key = f"probe.{trigger_s}.{number}"
            sent[key] = fabric.publish(key)
            fabric.connection.sleep(PAUSE_S)
        fabric.wait_for(sent)
        return [fabric.came[key] - at for key, at in sent.items()]
    finally:
        process.terminate()
        process.communicate()


def measure(folder: Path, starts: int, probes: int) -> dict[str, float]:
    fabric = Fabric(folder)
    try:
        # The first start on a machine leaves what makes the next ones fast.
        took = [first_rows_s(fabric, number) for number in range(starts + 1)][1:]
        found = {f"trigger_{trigger_s}_s": median(latencies_s(fabric, trigger_s, probes)) for trigger_s in TRIGGERS_S}
        return {"first_rows_s": median(took), **found}
    finally:
        fabric.stop()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--probes", type=int, default=60)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="weft-pipeline-") as folder:
        print(json.dumps(measure(Path(folder), options.starts, options.probes)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
