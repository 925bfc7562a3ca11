"""A stream read over the wire has the columns that its files show."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pika
import pyarrow as pa
import pytest

from weft._kernel import Client
from weft.log import open_log

from .living import LivingNode

COUNT = 3000
SAME = ["offset", "enqueue_time", "exchange", "routing_key", "message_id", "type", "app_id", "creation_time"]
SAME += ["content_type", "durable", "priority", "headers", "trace", "origin", "stream", "body_bytes", "body"]


class Wire:
    """A kernel's client on a plain socket."""

    def __init__(self, node: LivingNode) -> None:
        self.client = Client("columns-test")
        self._socket = socket.create_connection((node.host, node.port))
        self._socket.settimeout(20)
        self.client.start(time.monotonic_ns(), mechanisms=["PLAIN"], user="guest", password="guest")

    def until(self, met: Callable[[], Any]) -> Any:
        while True:
            while out := self.client.poll_transmit():
                self._socket.sendall(out)
            if found := met():
                return found
            self.client.receive(self._socket.recv(1 << 20), time.monotonic_ns())
            self.client.poll_events()

    def close(self) -> None:
        self._socket.close()


def publish(node: LivingNode) -> None:
    channel = node.channel(confirms=False)
    channel.exchange_declare("events", "topic", durable=True)
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_bind("s", "events", "#")
    for number in range(COUNT):
        properties = pika.BasicProperties(
            message_id=f"id-{number}", headers={"n": number, "text": "grüße"}, type="t", app_id="a", delivery_mode=2,
            timestamp=1_700_000_000 + number, content_type="text/plain", priority=number % 4,
        )  # fmt: skip
        exchange = "events" if number % 2 else ""
        channel.basic_publish(exchange, f"k.{number}" if exchange else "s", str(number).encode() * 20, properties)


def test_the_wire_and_the_files_agree(node: LivingNode) -> None:
    publish(node)
    log = open_log(node.folder, "/", "s", origin="n")
    deadline = time.monotonic() + 20
    while log.offsets()[1] < COUNT:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    wire = Wire(node)
    link = wire.client.attach_receiver(
        "reader", "/queues/s", window=500, filters={"rabbitmq:stream-offset-spec": 100}, settled=False
    )
    tables, rows = [], 0
    while rows < COUNT - 100:
        first, last, stream = wire.until(lambda: wire.client.poll_columns(link, 1000, SAME, stream="s", origin="n"))
        wire.client.settle(link, first, last)
        tables.append(pa.table(stream))
        rows += tables[-1].num_rows
        assert tables[-1].num_rows == last - first + 1
    wire.close()
    over_wire, on_disk = pa.concat_tables(tables), pa.table(log.read(100, columns=SAME))
    assert over_wire.schema == on_disk.schema
    for name in SAME:
        assert over_wire[name].to_pylist() == on_disk[name].to_pylist(), name


def test_a_queue_has_no_offsets(node: LivingNode) -> None:
    channel = node.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"x")
    wire = Wire(node)
    link = wire.client.attach_receiver("reader", "/queues/q", window=5)
    with pytest.raises(ValueError, match="is not of a stream: it has no offset"):
        wire.until(lambda: wire.client.poll_columns(link, 10))
    with pytest.raises(ValueError, match='no column "x"'):
        wire.client.poll_columns(link, 10, ["x"])
    wire.close()
