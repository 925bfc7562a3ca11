"""A cable is pulled between two machines and put back: messages wait, then arrive, each once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import peers
from system.fabrics import until
from system.namespaces import Machines, usable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not usable(), reason="needs root, ip and network namespaces"),
]
PORT = 5672
ENTRY = """
[[users]]
name = "fabric"
password = "secret"
tags = ["administrator"]

[[permissions]]
user = "fabric"
configure = ".*"
write = ".*"
read = ".*"
"""
LINK = """
[[links]]
name = "up"
urls = ["amqp://fabric:secret@{source}:5672"]
heartbeat_s = 1
retry_max_s = 1

[[routes]]
link = "up"
kind = "dynamic"
exchange = "events"
"""


class Node:
    """A node on a machine of its own."""

    def __init__(self, machines: Machines, name: str, folder: Path, config: str) -> None:
        file = folder / f"{name}.toml"
        file.write_text(config)
        self._address = machines.address(name)
        command = [*machines.inside(name), sys.executable, "-m", "weft", "up", "--name", name, "--config", str(file)]
        command += ["--listen", f"{self._address}:{PORT}", "--data-dir", str(folder / name)]
        self._process, self._output = peers.start(name, command, {}, lambda line: line.startswith("ready"))

    def channel(self) -> Any:
        credentials = pika.PlainCredentials("fabric", "secret")
        parameters = pika.ConnectionParameters(self._address, PORT, credentials=credentials, heartbeat=0)
        channel = pika.BlockingConnection(parameters).channel()
        channel.confirm_delivery()
        return channel

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Machines, Node, Node]]:
    with Machines(["source", "sink"]) as machines:
        source = Node(machines, "source", tmp_path, ENTRY)
        sink = Node(machines, "sink", tmp_path, ENTRY + LINK.format(source=machines.address("source")))
        yield machines, source, sink
        source.end()
        sink.end()


def test_a_cut_and_a_heal(pair: tuple[Machines, Node, Node]) -> None:
    machines, source, sink = pair
    publisher, reader = source.channel(), sink.channel()
    for channel in (publisher, reader):
        channel.exchange_declare("events", "topic", durable=True)
    reader.queue_declare("q", durable=True)
    reader.queue_bind("q", "events", "news.#")
    reader.connection.close()
    persistent = pika.BasicProperties(delivery_mode=2)

    def is_wanted() -> bool:
        """Until the binding is reflected, nobody takes the message."""
        try:
            publisher.basic_publish("events", "news.first", b"first", persistent, mandatory=True)
        except pika.exceptions.UnroutableError:
            return False
        return True

    until(is_wanted)
    for number in range(300):
        if number == 100:
            machines.cut("sink")
        if number == 200:
            publisher.connection.sleep(3)  # long enough for both ends to give the connection up
            machines.heal("sink")
        publisher.basic_publish("events", "news.today", str(number), persistent, mandatory=True)
    publisher.connection.close()
    reader = sink.channel()
    seen: list[bytes] = []

    def drain() -> bool:
        while (got := reader.basic_get("q", auto_ack=True))[0] is not None:
            seen.append(got[2])
        return len(set(seen)) == 301

    until(drain, 40)
    reader.connection.sleep(1)
    drain()
    assert len(seen) == len(set(seen))
    reader.connection.close()
