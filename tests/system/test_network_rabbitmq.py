"""A real RabbitMQ as a member of the fabric: routes from it and to it, over its AMQP 1.0 plugin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

import peers
from system.fabrics import Fabric, until

pytestmark = [pytest.mark.slow, pytest.mark.peers]


@pytest.fixture
def rabbit(tmp_path: Path) -> Iterator[peers.Peer]:
    if not peers.rabbitmq_installed():
        pytest.skip("needs Debian's rabbitmq-server")
    peer = peers.start_rabbitmq(tmp_path / "rabbit")
    yield peer
    peer.stop()


def test_routes_in_both_directions(tmp_path: Path, rabbit: peers.Peer) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(rabbit.host, rabbit.port, heartbeat=0))
    theirs = connection.channel()
    theirs.confirm_delivery()
    for queue in ("to.weft", "from.weft"):
        theirs.queue_declare(queue, durable=True)
    theirs.exchange_declare("events", "topic", durable=True)
    theirs.queue_bind("from.weft", "events", "#")
    with Fabric(tmp_path) as fabric:
        fabric.add("here")
        ours = fabric.channel("here", confirms=True)
        ours.queue_declare("work", durable=True)
        ours.exchange_declare("events", "topic", durable=True)
        url = f"amqp://guest:guest@{rabbit.host}:{rabbit.port}"
        weft = "--url " + fabric.url("here")
        fabric.command(f"weft link {weft} add rabbit {url}")
        fabric.command(f"weft route {weft} add queue rabbit --queue to.weft --key work --name pulled")
        fabric.command(f"weft route {weft} add static rabbit --exchange events --key news.today --push --name pushed")
        fabric.command(f"weft route {weft} add dynamic rabbit --exchange events --name reflected")
        fabric.command(f"weft route {weft} add static rabbit --exchange events --key news.* --push --name pattern")
        states = {"pulled": "flowing", "pushed": "flowing", "reflected": "comparing", "pattern": "refused"}
        until(lambda: {row["name"]: row["state"] for row in fabric.rows("here", "route")} == states)
        causes = {row["name"]: row["cause"] for row in fabric.rows("here", "route")}
        assert "use static routes" in causes["reflected"]
        assert "one key" in causes["pattern"]
        for number in range(100):
            properties = pika.BasicProperties(delivery_mode=2, correlation_id=str(number))
            theirs.basic_publish("", "to.weft", f"in {number}", properties)
            ours.basic_publish("events", "news.today", f"out {number}", properties)
        ours.basic_publish("events", "other", b"not wanted there")
        assert _drain(ours, "work", 100) == [(f"in {n}".encode(), str(n)) for n in range(100)]
        assert _drain(theirs, "from.weft", 100) == [(f"out {n}".encode(), str(n)) for n in range(100)]
        assert theirs.basic_get("from.weft")[0] is None
        until(lambda: theirs.queue_declare("to.weft", passive=True).method.message_count == 0)
    connection.close()


def _drain(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str, count: int) -> list[object]:
    found: list[object] = []

    def take() -> bool:
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((got[2], got[1].correlation_id))
        return len(found) >= count

    until(take)
    return found


def test_one_command_brings_a_queue_into_a_stream(tmp_path: Path, rabbit: peers.Peer) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(rabbit.host, rabbit.port, heartbeat=0))
    theirs = connection.channel()
    theirs.confirm_delivery()
    theirs.queue_declare("payments", durable=True)
    for number in range(100):
        properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
        theirs.basic_publish("", "payments", f"paid {number}", properties)
    with Fabric(tmp_path) as fabric:
        fabric.add("here")
        url = f"amqp://guest:guest@{rabbit.host}:{rabbit.port}"
        line = f"weft ingest --url {fabric.url('here')} {url} --queue payments --argument x-max-age=7D"
        assert "option('streams', 'payments')" in fabric.command(line)
        until(lambda: theirs.queue_declare("payments", passive=True).method.message_count == 0)
        fabric.command(line)  # and once more: everything is there already
        kept = fabric.channel("here")
        kept.basic_qos(prefetch_count=100)
        found = []
        for method, properties, body in kept.consume("payments", arguments={"x-stream-offset": "first"}):
            found.append((properties.message_id, body))
            kept.basic_ack(method.delivery_tag)
            if len(found) == 100:
                break
        assert found == [(str(number), f"paid {number}".encode()) for number in range(100)]
        refused = fabric.command(f"weft ingest --url {fabric.url('here')} {url} --queue nowhere --key x", code=2)
        assert "--key belongs to --exchange" in refused
    connection.close()
