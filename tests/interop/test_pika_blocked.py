"""Memory runs short: publishers are told and held back, everybody else goes on.

Owns connection.blocked and connection.unblocked as pika sees them, on a node of its own with very little memory for
messages. What is held back must arrive in the end, once and in order. It must not lean on how the node counts memory,
only that a flood reaches the limit and that a reader makes room. Rules: RabbitMQ's page on blocked connection
notifications.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

import peers
from weft.client import sync
from weft.client.sync.management import Management

from .support import Consumer, wait_until

pytestmark = pytest.mark.weft_only
BODY = bytes(100_000)
FLOOD = 200  # five times the memory below


@pytest.fixture
def small_node(tmp_path: Path) -> Iterator[peers.Peer]:
    config = tmp_path / "weft.toml"
    config.write_text("[limits]\nmemory_bytes_max = 4194304\n")
    peer = peers.start_weft(tmp_path / "data", "--config", str(config))
    yield peer
    assert peer.stop() == 0, peer.output.text()


@pytest.fixture
def publisher(small_node: peers.Peer) -> Iterator[pika.BlockingConnection]:
    with pika.BlockingConnection(pika.URLParameters(small_node.url)) as connection:
        yield connection


@pytest.fixture
def reader(small_node: peers.Peer) -> Iterator[pika.BlockingConnection]:
    with pika.BlockingConnection(pika.URLParameters(small_node.url)) as connection:
        yield connection


def who_waits(node: peers.Peer) -> tuple[int, list[str]]:
    """What operators see of it: how many connections, and for what."""
    with sync.connect(node.url) as fabric:
        management = Management(fabric)
        rows = management.query("connection")
        waiting = management.query("node")[0]["connections_blocked"]
    return waiting, [row["blocked_by"] for row in rows if row["state"] == "blocked"]


def test_a_flood_is_told_to_wait_and_goes_on(
    small_node: peers.Peer, publisher: pika.BlockingConnection, reader: pika.BlockingConnection
) -> None:
    told: list[str] = []
    publisher.add_on_connection_blocked_callback(lambda _connection, frame: told.append(frame.method.reason))
    publisher.add_on_connection_unblocked_callback(lambda _connection, _frame: told.append("free"))
    channel, reading = publisher.channel(), reader.channel()
    queue = channel.queue_declare("flood").method.queue
    sent = 0
    while not told:
        assert sent < FLOOD, "never told to wait"
        channel.basic_publish("", queue, b"%6d" % sent + BODY)
        sent += 1
        publisher.process_data_events(time_limit=0)
    assert told[0]
    other = reading.queue_declare("", exclusive=True).method.queue  # who does not flood is not held back
    reading.basic_publish("", other, b"small")
    assert reading.basic_get(other, auto_ack=True)[2] == b"small"
    assert who_waits(small_node) == (1, ["memory"])
    consumer = Consumer(reading, queue, auto_ack=True)
    consumer.wait(sent)
    wait_until(publisher, lambda: told[-1] == "free")
    assert who_waits(small_node) == (0, [])
    channel.basic_publish("", queue, b"%6d" % sent + BODY)
    consumer.wait(sent + 1)
    assert [int(each.body[:6]) for each in consumer.deliveries] == list(range(sent + 1))
