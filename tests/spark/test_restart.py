"""The pipeline as a program: killed in the middle of its work and begun again, it leaves no gap and no doubles.

Neither in its files, nor among its commands, nor in what rules do about its alerts.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pika
import pytest

import peers
import weft
from spark.nodes import channel, declare_stream, fill, take
from weft.client.management import Management
from weft.pipeline.store import Store

ROWS = 600
WAIT_S = 60.0
RULES = """
[rules.theft]
event = "account.suspected.#"
action = ["noted", "trap"]
[actions.noted]
kind = "log"
file = "{file}"
[actions.trap]
kind = "snmp"
target = "127.0.0.1:{port}"
"""


def pipeline(lake: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "weft", "pipeline", "run", "--lake", str(lake), "--jobs", "traffic,risk",
               "--rows", "200", *words]  # fmt: skip
    # It is over before the better of Java's two compilers pays off. A group of its own: Spark's JVM and Python workers
    # are to die with it.
    env = {**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env)


def wait_for(output: IO[str] | None, word: str) -> None:
    assert output is not None
    for line in output:
        if line.startswith(word):
            return
    raise AssertionError(f"the pipeline ended before it said {word!r}")


def watch(folder: Path, url: str, traps: socket.socket) -> subprocess.Popen[bytes]:
    """`weft watch` with one rule over alerts, whose handlers write a line and send a trap; it listens already."""
    rules = folder / "rules.toml"
    rules.write_text(RULES.format(file=folder / "noted", port=traps.getsockname()[1]))
    command = [sys.executable, "-m", "weft", "watch", str(rules), "--url", url]
    process = subprocess.Popen(command, start_new_session=True)

    async def listens() -> None:
        async with weft.connect(url) as fabric, asyncio.timeout(WAIT_S):
            while not await Management(fabric).query("binding", where={"source": "weft.events"}):
                assert process.poll() is None
                await asyncio.sleep(0.05)

    asyncio.run(listens())
    return process


def kill(process: subprocess.Popen[Any]) -> None:
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
def killed() -> Iterator[list[subprocess.Popen[Any]]]:
    """Whatever is put here does not live longer than its test."""
    started: list[subprocess.Popen[Any]] = []
    yield started
    for process in started:
        if process.poll() is None:
            kill(process)


@pytest.fixture
def traps() -> Iterator[socket.socket]:
    """Where SNMP traps are sent to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(WAIT_S)
        yield receiver


def publish(node: peers.Peer) -> None:
    """Payments in a stream, and queues for what follows from them."""
    declare_stream(node, "events")
    with channel(node) as opened:
        # These hold back what was sent before: exactly once from end to end. The one of alerts the pipeline makes.
        for exchange, queue in (("weft.results", "results"), ("weft.commands", "commands")):
            opened.exchange_declare(exchange, "topic", durable=True, arguments={"x-barrier": "message-id"})
            opened.queue_declare(queue, durable=True)
            opened.queue_bind(queue, exchange, "#")
        opened.queue_declare("alerts", durable=True)
        opened.queue_bind("alerts", "weft.events", "account.#")
        opened.exchange_declare("bank", "topic", durable=True)
        opened.queue_bind("events", "bank", "#")
    connection = pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port))
    publisher = connection.channel()
    publisher.tx_select()
    for body in payments():
        publisher.basic_publish("bank", "account.paid", body, pika.BasicProperties(delivery_mode=2))
    publisher.tx_commit()
    connection.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_and_begun_again(
    tmp_path: Path, node: peers.Peer, killed: list[subprocess.Popen[Any]], traps: socket.socket
) -> None:
    url = f"amqp://{node.host}:{node.port}"
    killed.append(watch(tmp_path, url, traps))
    publish(node)
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
    newest = {(body["window_start"], body["type"], body["node"]): body["messages"] for body in take(node, "results")}
    assert sum(newest.values()) == ROWS, "the last result of each window is the sum of all batches"
    commands = Counter(body["account"] for body in take(node, "commands"))
    assert commands == {"stolen-0": 1, "stolen-1": 1}, "each is locked once, whatever was repeated"
    alerts = Counter(body["object"] for body in take(node, "alerts"))
    assert alerts == {"stolen-0": 1, "stolen-1": 1}, "and told of once"
    # There are two events, so each handler has done its work when it did it twice.
    assert sorted(account_of(traps.recv(65_536)) for _ in alerts) == sorted(alerts)
    deadline = time.monotonic() + WAIT_S
    while len(noted := (tmp_path / "noted").read_text().splitlines()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(line.partition("account ")[2].partition(":")[0] for line in noted) == ["stolen-0", "stolen-1"]


def account_of(trap: bytes) -> str:
    """The object that a trap names."""
    found = re.search(rb"stolen-\d", trap)
    assert found is not None
    return found[0].decode()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_interrupted_at_a_terminal(tmp_path: Path, node: peers.Peer, killed: list[subprocess.Popen[Any]]) -> None:
    declare_stream(node, "events")
    url = f"amqp://{node.host}:{node.port}"
    command = [sys.executable, "-m", "weft", "pipeline", "run", "--lake", str(tmp_path / "lake"), "--url", url,
               "--jobs", "traffic", "--trigger", "0"]  # fmt: skip
    piped: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen(command, start_new_session=True, **piped)
    killed.append(run)
    ended = threading.Event()

    def publish_on() -> None:
        while not ended.is_set():
            fill(node, "events", [b"x"] * 20)

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        # Nobody is bound to the exchange of results, which is no reason to end.
        wait_for(run.stdout, "nobody listens to answers of traffic")
        wait_for(run.stdout, "batch 1:")
        os.killpg(run.pid, signal.SIGINT)
        output, errors = run.communicate(timeout=WAIT_S)
    finally:
        ended.set()
        publisher.join()
    assert run.returncode == 0
    assert "ending\ndone;" in re.sub("batch.*\n", "", output)
    assert not re.search(r"Traceback|Exception|Error|\tat ", errors), errors
    # All that was begun is done: the next run has nothing to repeat.
    batches = {folder: {path.name for path in (tmp_path / "lake/checkpoint" / folder).iterdir() if path.name.isdigit()}
               for folder in ("offsets", "commits")}  # fmt: skip
    assert len(batches["offsets"] - batches["commits"]) <= 1
