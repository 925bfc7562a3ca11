"""A cable between two machines is pulled and put back, or is bad: messages wait, then arrive, each once.

One of them is in the cloud: it is behind a router that translates addresses, and reaches the other by TLS alone.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import peers
from client.test_tls import Authority
from system.fabrics import until
from system.namespaces import Machines, Spoiled, can_translate, usable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not usable(), reason="needs root, ip and network namespaces"),
]
HOST, PORT = "127.0.0.1", 5672
WAIT_S = 60.0
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
DOOR = """
[[listen]]
address = "127.0.0.1:5672"

[[listen]]
address = "{source}:5671"
tls_cert = "{certificate}"
tls_key = "{key}"
"""
LINK = """
[[links]]
name = "up"
urls = ["amqps://fabric:secret@{source}:5671"]
tls_ca = "{authority}"
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
        self._machines, self._name = machines, name
        command = [*machines.inside(name), sys.executable, "-m", "weft", "up", "--name", name, "--config", str(file)]
        command += ["--data-dir", str(folder / name)]
        self._process, self._output = peers.start(name, command, {}, lambda line: line.startswith("ready"))

    def channel(self) -> Any:
        credentials = pika.PlainCredentials("fabric", "secret")
        parameters = pika.ConnectionParameters(HOST, PORT, credentials=credentials, heartbeat=0)
        with self._machines.at(self._name):
            channel = pika.BlockingConnection(parameters).channel()
        channel.confirm_delivery()
        return channel

    def is_linked(self) -> bool:
        """Is its link up, as it sees it? A program over there asks: the client's threads may have begun over here."""
        command = [*self._machines.inside(self._name), sys.executable, "-m", "weft", "link", "--json"]
        command += ["--url", f"amqp://fabric:secret@{HOST}:{PORT}", "list"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
        return str(json.loads(answer.stdout)[0]["state"]) == "operational"

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Machines, Node, Node]]:
    with Machines(["source", "sink"], hidden=["sink"] if can_translate() else []) as machines:
        authority, address = Authority(tmp_path), machines.address("source")
        certificate, key = authority.sign("source", address)
        door = DOOR.format(source=address, certificate=certificate, key=key)
        source = Node(machines, "source", tmp_path, ENTRY + door)
        link = LINK.format(source=address, authority=authority.certificate)
        sink = Node(machines, "sink", tmp_path, ENTRY + link)
        yield machines, source, sink
        source.end()
        sink.end()


def prepare(source: Node, sink: Node) -> Any:
    """A queue at the sink that wants news, known at the source; a publisher there."""
    publisher, reader = source.channel(), sink.channel()
    for channel in (publisher, reader):
        channel.exchange_declare("events", "topic", durable=True)
    reader.queue_declare("q", durable=True)
    reader.queue_bind("q", "events", "news.#")
    reader.connection.close()

    def is_wanted() -> bool:
        """Until the binding is reflected, nobody takes the message."""
        try:
            publish(publisher, b"first")
        except pika.exceptions.UnroutableError:
            return False
        return True

    until(is_wanted, WAIT_S)
    return publisher


def publish(channel: Any, body: bytes) -> None:
    channel.basic_publish("events", "news.today", body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def collect(sink: Node, count: int) -> list[bytes]:
    """What the sink has, until it has so many different ones and nothing more for a second."""
    reader = sink.channel()
    seen: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    for _method, _properties, body in reader.consume("q", auto_ack=True, inactivity_timeout=1):
        if body is not None:
            seen.append(body)
        elif len(set(seen)) >= count or time.monotonic() > deadline:
            break
    reader.connection.close()
    return seen


def test_a_cut_and_a_heal(pair: tuple[Machines, Node, Node]) -> None:
    machines, source, sink = pair
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((machines.address("sink"), PORT), WAIT_S)  # it calls, and cannot be called
    publisher = prepare(source, sink)
    for number in range(300):
        if number == 100:
            machines.cut("sink")
        if number == 200:
            until(lambda: not sink.is_linked(), WAIT_S)
            machines.heal("sink")
        publish(publisher, str(number).encode())
    publisher.connection.close()
    assert sorted(collect(sink, 301)) == sorted([b"first", *(str(number).encode() for number in range(300))])


def test_a_bad_cable(pair: tuple[Machines, Node, Node]) -> None:
    """Frames come late, in another order, twice or not at all, and for a while none comes."""
    machines, source, sink = pair
    publisher = prepare(source, sink)
    cable = machines.spoil("sink", Spoiled(delay_s=0.01, jitter_s=0.01, loss=0.05, doubled=0.02))
    for number in range(300):
        if number == 100:
            machines.cut("sink")
        if number == 200:
            machines.heal("sink")
        publish(publisher, str(number).encode() * 200)
    publisher.connection.close()
    assert sorted(collect(sink, 301)) == sorted([b"first", *(str(number).encode() * 200 for number in range(300))])
    assert cable.lost >= 3  # the fourth, the sixth and the ninth frame, by its seed
