"""A queue of a real STOMP broker moves into a node, while the gateway is killed again and again: nothing is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import peers
from rabbit import RabbitMQ
from system.fabrics import until

pytestmark = [pytest.mark.slow, pytest.mark.peers]
COUNT = 1_500
KILLS = 3


def _gateway(source: str, target: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "weft", "gateway", source, target, "--batch-max", "20", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _channel(peer: peers.Peer | RabbitMQ) -> BlockingChannel:
    return pika.BlockingConnection(pika.ConnectionParameters(peer.host, peer.port, heartbeat=0)).channel()


def _ready(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_a_queue_is_migrated_and_back_with_kills_and_no_loss(tmp_path: Path, rabbitmq: RabbitMQ) -> None:
    node = peers.start_weft(tmp_path / "node")
    try:
        theirs, ours = _channel(rabbitmq), _channel(node)
        theirs.queue_declare("orders", durable=True)
        theirs.confirm_delivery()
        ours.queue_declare("orders", durable=True, arguments={"x-barrier": "message-id"})
        for number in range(COUNT):
            properties = pika.BasicProperties(delivery_mode=2, message_id=f"m{number}", headers={"kind": "order"})
            theirs.basic_publish("", "orders", f"order {number}", properties)
        there = f"stomp://guest:guest@{peers.HOST}:{rabbitmq.stomp_port}/queue/orders"
        here = f"amqp://{node.host}:{node.port}#orders"
        for kill in range(1, KILLS + 1):
            gateway = _gateway(there, here)
            until(lambda wanted=kill * 200: _ready(ours, "orders") >= wanted, 60)
            gateway.send_signal(signal.SIGKILL)
            gateway.communicate()
        assert _ready(ours, "orders") < COUNT, "killed while there was work left"
        gateway = _gateway(there, here)
        until(lambda: _ready(ours, "orders") == COUNT and _ready(theirs, "orders") == 0, 90)
        gateway.send_signal(signal.SIGTERM)
        said, _ = gateway.communicate()
        assert "refused 0" in said
        assert gateway.returncode == 0
        _check_back(theirs, ours, here, f"stomp://guest:guest@{peers.HOST}:{rabbitmq.stomp_port}/queue/back")
    finally:
        node.stop()


def _check_back(theirs: BlockingChannel, ours: BlockingChannel, here: str, back: str) -> None:
    """All of them, once, with their headers; then the other way."""
    theirs.queue_declare("back", durable=True)
    gateway = _gateway(here, back, "--count", str(COUNT))
    assert f"carried {COUNT}" in gateway.communicate()[0]
    got: Counter[str] = Counter()
    for method, properties, body in theirs.consume("back", inactivity_timeout=30):
        assert properties.headers["kind"] == "order"
        got[body.decode()] += 1
        theirs.basic_ack(method.delivery_tag)
        if sum(got.values()) == COUNT:
            break
    assert got == Counter(f"order {number}" for number in range(COUNT))
    until(lambda: _ready(ours, "orders") == 0, 30)
    for channel in (theirs, ours):
        channel.connection.close()
