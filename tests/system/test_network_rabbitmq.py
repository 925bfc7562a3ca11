"""A real RabbitMQ as a member of the fabric: routes from it and to it, over its AMQP 1.0 plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pika
import pytest

from rabbit import RabbitMQ
from system.fabrics import Fabric, until

pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.timeout(240)]
LONG_S = 60.0
"""For what two brokers and HTTP take part in."""


def test_routes_in_both_directions(tmp_path: Path, rabbitmq: RabbitMQ) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(rabbitmq.host, rabbitmq.port, heartbeat=0))
    theirs = connection.channel()
    theirs.confirm_delivery()
    for queue in ("to.weft", "from.weft", "noc"):
        theirs.queue_declare(queue, durable=True)
    theirs.exchange_declare("events", "topic", durable=True)
    theirs.queue_bind("from.weft", "events", "#")
    with Fabric(tmp_path) as fabric:
        fabric.add("here")
        ours = fabric.channel("here", confirms=True)
        ours.queue_declare("work", durable=True)
        ours.exchange_declare("events", "topic", durable=True)
        url = f"amqp://guest:guest@{rabbitmq.host}:{rabbitmq.port}"
        weft = "--url " + fabric.url("here")
        fabric.command(f"weft link {weft} add rabbit {url}")
        fabric.command(f"weft route {weft} add queue rabbit --queue to.weft --key work --name pulled")
        fabric.command(f"weft route {weft} add static rabbit --exchange events --key news.today --push --name pushed")
        fabric.command(f"weft route {weft} add dynamic rabbit --exchange events --name reflected")
        fabric.command(f"weft route {weft} add static rabbit --exchange events --key news.* --push --name pattern")
        ours.queue_declare("to.noc", durable=True)
        ours.queue_bind("to.noc", "weft.events", "queue.created.*.watched.*")
        fabric.command(f"weft route {weft} add queue rabbit --queue to.noc --key noc --push --name events")
        states = {"pulled": "flowing", "pushed": "flowing", "reflected": "comparing", "pattern": "refused"}
        states["events"] = "flowing"
        until(lambda: {row["name"]: row["state"] for row in fabric.rows("here", "route")} == states)
        causes = {row["name"]: row["cause"] for row in fabric.rows("here", "route")}
        assert "use static routes, or name its management" in causes["reflected"]
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
        ours.queue_declare("watched")
        told = [json.loads(body)["object"] for body, _ in _drain(theirs, "noc", 1)]
        assert told == ["watched"], "events reach another messaging network"
    connection.close()


def test_bindings_here_are_followed_there(tmp_path: Path, rabbitmq: RabbitMQ) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(rabbitmq.host, rabbitmq.port, heartbeat=0))
    theirs = connection.channel()
    theirs.confirm_delivery()
    theirs.exchange_declare("news", "topic", durable=True)

    def is_wanted(key: str) -> bool:
        try:
            theirs.basic_publish("news", key, key, pika.BasicProperties(delivery_mode=2), mandatory=True)
        except pika.exceptions.UnroutableError:
            return False
        return True

    with Fabric(tmp_path) as fabric:
        fabric.add("here")
        ours = fabric.channel("here")
        ours.exchange_declare("news", "topic", durable=True)
        ours.queue_declare("work", durable=True)
        ours.queue_bind("work", "news", "mine.*")
        weft, url = "--url " + fabric.url("here"), f"amqp://guest:guest@{rabbitmq.host}:{rabbitmq.port}"
        fabric.command(f"weft link {weft} add rabbit {url} --retry-max-s 1 --management {rabbitmq.management}")
        fabric.command(f"weft route {weft} add dynamic rabbit --exchange news --name followed")
        until(lambda: is_wanted("mine.x"), LONG_S)
        assert not is_wanted("yours.y.z")
        ours.queue_bind("work", "news", "yours.#")
        until(lambda: is_wanted("yours.y.z"), LONG_S)
        ours.queue_unbind("work", "news", "mine.*")
        until(lambda: not is_wanted("mine.x"), LONG_S)
        fabric.until_flowing("here")
        until(lambda: ours.queue_declare("work", passive=True).method.message_count >= 2, LONG_S)
        fabric.kill("here")
        assert is_wanted("yours.while.away"), "what is wanted here waits there"
        fabric.restart("here")
        keys: set[str] = set()
        until(lambda: "yours.while.away" in keys or keys.update(_keys(fabric.channel("here"))), LONG_S)
        assert {"mine.x", "yours.y.z"} <= keys
        fabric.command(f"weft route {weft} del followed")
        until(lambda: not is_wanted("yours.y.z"), LONG_S)
    connection.close()


def _keys(channel: pika.adapters.blocking_connection.BlockingChannel) -> set[str]:
    """Bodies in the queue `work`, which came under keys of the same name."""
    found = set()
    while (got := channel.basic_get("work", auto_ack=True))[0] is not None:
        assert got[0].routing_key == got[2].decode()
        found.add(got[2].decode())
    channel.connection.close()
    return found


def _drain(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str, count: int) -> list[object]:
    found: list[object] = []

    def take() -> bool:
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append((got[2], got[1].correlation_id))
        return len(found) >= count

    until(take)
    return found


def test_one_command_brings_a_queue_into_a_stream(tmp_path: Path, rabbitmq: RabbitMQ) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters(rabbitmq.host, rabbitmq.port, heartbeat=0))
    theirs = connection.channel()
    theirs.confirm_delivery()
    theirs.queue_declare("payments", durable=True)
    for number in range(100):
        properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
        theirs.basic_publish("", "payments", f"paid {number}", properties)
    with Fabric(tmp_path) as fabric:
        fabric.add("here")
        url = f"amqp://guest:guest@{rabbitmq.host}:{rabbitmq.port}"
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
