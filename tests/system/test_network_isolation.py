"""One partition is overloaded, dies, comes back and is taken off: the others notice nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest

from system.fabrics import Fabric, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
WAIT_S = 60.0
FEW, MANY = 40, 200
FILE = """
[nodes.core]
listen = "127.0.0.1:{core}"
kind = "gateway"
exchanges = {{ events = "topic" }}

[nodes.risk]
listen = "127.0.0.1:{risk}"
partition = "risk"
exchanges = {{ events = "topic" }}
queues = ["mine"]
bindings = ["events -> mine : risk.#"]

[nodes.payments]
listen = "127.0.0.1:{payments}"
partition = "payments"
exchanges = {{ events = "topic" }}
queues = ["mine"]
bindings = ["events -> mine : payments.#"]

[[links]]
from = ["risk", "payments"]
to = "core"
role = "gateway"
joins = true
retry_max_s = 1

[[routes]]
name = "joined"
kind = "dynamic"
exchange = "events"
"""


def test_a_partition_falls_and_the_other_works_on(tmp_path: Path) -> None:
    with Fabric(tmp_path) as fabric:
        for name in ("core", "risk", "payments"):
            fabric.add(name)
        file = tmp_path / "fabric.toml"
        file.write_text(FILE.format(**{name: fabric.port(name) for name in fabric.nodes}))
        fabric.command(f"weft fabric apply {file}")
        for name in ("risk", "payments"):
            fabric.until_flowing(name)
        publisher = fabric.channel("core", confirms=True)

        fabric.kill("risk")
        publish(publisher, "risk.score", MANY)  # nobody takes them now: they wait for the dead, at the gateway
        publish(publisher, "payments.order", FEW)
        assert drain(fabric.channel("payments"), FEW) == [f"payments.order {n}" for n in range(FEW)]
        states = {row["name"]: row["state"] for row in fabric.rows("payments", "link")}
        assert states == {"gateway": "operational"}

        fabric.restart("risk")
        assert drain(fabric.channel("risk"), MANY) == [f"risk.score {n}" for n in range(MANY)]

        fabric.command(f"weft route --url {fabric.url('risk')} del joined")  # the plumbing between the two networks
        until(lambda: is_unroutable(publisher, "risk.score"), WAIT_S)
        publish(publisher, "payments.order", FEW)
        publish(fabric.channel("risk", confirms=True), "risk.score", FEW)
        for name, key in (("payments", "payments.order"), ("risk", "risk.score")):
            assert drain(fabric.channel(name), FEW) == [f"{key} {n}" for n in range(FEW)]


def publish(channel: Any, key: str, count: int) -> None:
    """Confirmed, so that each message is safe in the queue of whom it is for."""
    properties = pika.BasicProperties(delivery_mode=2)
    for number in range(count):
        channel.basic_publish("events", key, f"{key} {number}", properties, mandatory=True)


def is_unroutable(channel: Any, key: str) -> bool:
    try:
        channel.basic_publish("events", key, b"", mandatory=True)
    except pika.exceptions.UnroutableError:
        return True
    return False


def drain(channel: Any, count: int) -> list[str]:
    """So many messages of the partition's own queue; and there must be no more."""
    found: list[str] = []
    for _method, _properties, body in channel.consume("mine", auto_ack=True, inactivity_timeout=WAIT_S):
        assert body is not None, f"only {len(found)} of {count} came"
        found.append(body.decode())
        if len(found) == count:
            break
    assert channel.cancel() == 0
    assert channel.queue_declare("mine", passive=True).method.message_count == 0
    return found
