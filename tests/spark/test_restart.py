"""The pipeline as a program: killed in the middle of its work and begun again, it leaves no gap and no doubles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pika
import pytest

import peers
from spark.nodes import channel, declare_stream, take
from weft.pipeline.store import Store

ROWS = 600


def pipeline(lake: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "weft", "pipeline", "run", "--lake", str(lake), "--jobs", "traffic,risk",
               "--rows", "200", *words]  # fmt: skip
    # A group of its own: Spark's JVM and Python workers are to die with it.
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(output: IO[str] | None, word: str) -> None:
    assert output is not None
    for line in output:
        if line.startswith(word):
            return
    raise AssertionError(f"the pipeline ended before it said {word!r}")


def kill(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def payments() -> list[bytes]:
    """Many accounts that pay a few times, and two stolen ones that pay again and again."""
    bodies = []
    for number in range(ROWS):
        account = f"a{number // 9}" if number % 3 else f"stolen-{number % 2}"
        bodies.append(json.dumps({"account": account, "kind": "payment", "amount": 9.5, "country": "SE"}).encode())
    return bodies


@pytest.fixture
def node(tmp_path: Path) -> Iterator[peers.Peer]:
    peer = peers.start_weft(tmp_path / "node")
    yield peer
    assert peer.stop() == 0, peer.output.text()


@pytest.fixture
def killed() -> Iterator[list[subprocess.Popen[str]]]:
    """Whatever is put here does not live longer than its test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            kill(process)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_and_begun_again(tmp_path: Path, node: peers.Peer, killed: list[subprocess.Popen[str]]) -> None:
    url = f"amqp://{node.host}:{node.port}"
    declare_stream(node, "events")
    with channel(node) as opened:
        # Both exchanges hold back what was sent before: exactly once from end to end.
        for exchange, queue in (("weft.results", "results"), ("weft.commands", "commands")):
            opened.exchange_declare(exchange, "topic", durable=True, arguments={"x-barrier": "message-id"})
            opened.queue_declare(queue, durable=True)
            opened.queue_bind(queue, exchange, "#")
        opened.exchange_declare("bank", "topic", durable=True)
        opened.queue_bind("events", "bank", "#")
    connection = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
    publisher = connection.channel()
    publisher.tx_select()
    for body in payments():
        publisher.basic_publish("bank", "account.paid", body, pika.BasicProperties(delivery_mode=2))
    publisher.tx_commit()
    connection.close()

    lake = tmp_path / "lake"
    first = pipeline(lake, "--data-dir", str(tmp_path / "node"), "--answers-to", url, "--trigger", "0.1")
    killed.append(first)
    wait_for(first.stdout, "batch 0:")
    # In the middle of the next: its silver is there, its messages may be, and Spark has not noted it yet.
    half_done = lake / "silver" / "traffic" / "000000000001.parquet"
    while not half_done.exists():
        assert first.poll() is None
        time.sleep(0.01)
    kill(first)
    # The same offsets by another way: over the network.
    second = pipeline(lake, "--url", url, "--once")
    killed.append(second)
    output, _ = second.communicate(timeout=200)
    assert second.returncode == 0, output
    assert "batch 0:" not in output, "it goes on, and does not begin again"

    store = Store(str(lake))
    assert sum(row["messages"] for row in store.gold_rows("traffic")) == ROWS
    assert {row["account"] for row in store.gold_rows("suspects")} == {"stolen-0", "stolen-1"}
    commands = Counter(body["account"] for body in take(node, "commands"))
    assert commands == {"stolen-0": 1, "stolen-1": 1}, "each is locked once, whatever was repeated"
    newest = {(body["window_start"], body["type"], body["node"]): body["messages"] for body in take(node, "results")}
    assert sum(newest.values()) == ROWS, "the last result of each window is the sum of all batches"
