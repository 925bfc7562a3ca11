"""Nodes die, hang and come back under load, in a mesh: nothing confirmed is lost, nothing comes twice."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from system.fabrics import Fabric, until
from weft.cli.fabric import reconcile
from weft.fabric import load

MESH = """
[nodes.gateway1]
listen = "127.0.0.1:{gateway1}"
kind = "gateway"
exchanges = {{ events = "topic" }}

[nodes.gateway2]
listen = "127.0.0.1:{gateway2}"
kind = "gateway"
exchanges = {{ events = "topic" }}

[nodes.source]
listen = "127.0.0.1:{source}"
exchanges = {{ events = "topic" }}

[nodes.sink]
listen = "127.0.0.1:{sink}"
exchanges = {{ events = "topic" }}
queues = ["q"]
bindings = ["events -> q : news.#"]

[[links]]
from = ["source", "sink"]
to = "kind:gateway"
each = true
heartbeat_s = 1
retry_max_s = 1

[[links]]
from = "gateway1"
to = "gateway2"
heartbeat_s = 1
retry_max_s = 1

[[routes]]
kind = "dynamic"
exchange = "events"

[[routes]]
kind = "dynamic"
direction = "push"
exchange = "events"
"""
COUNT = 400


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Fabric]:
    with Fabric(tmp_path) as fabric:
        names = ("gateway1", "gateway2", "source", "sink")
        for name in names:
            fabric.add(name)
        file = tmp_path / "mesh.toml"
        file.write_text(MESH.format(**{name: fabric.port(name) for name in names}))
        assert asyncio.run(reconcile(load(file), False, False, carry_out=True)) == 0
        fabric.until_flowing("source", 4)
        fabric.until_flowing("sink", 4)
        until(lambda: {row["keys"] for row in fabric.rows("source", "route") if row["direction"] == "push"} == {1})
        yield fabric


def kill_and_restart(fabric: Fabric) -> None:
    fabric.kill("gateway1")
    fabric.restart("gateway1")


def hang_and_go_on(fabric: Fabric) -> None:
    fabric.pause("gateway1")
    # A hung node is found out by its silence; until then its messages wait, and those of the other way arrive.
    until(lambda: "operational" not in _states(fabric, "source", "gateway1"))
    fabric.go_on("gateway1")


def kill_the_sink(fabric: Fabric) -> None:
    fabric.kill("sink")
    fabric.restart("sink")


def _states(fabric: Fabric, name: str, link: str) -> list[str]:
    return [row["state"] for row in fabric.rows(name, "link") if row["name"] == link]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [kill_and_restart, hang_and_go_on, kill_the_sink])
def test_nothing_is_lost_or_doubled(mesh: Fabric, fault: Callable[[Fabric], None]) -> None:
    def publish() -> None:
        channel = mesh.channel("source", confirms=True)
        for number in range(COUNT):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("events", "news.today", str(number), properties)
            channel.connection.sleep(0.004)

    publisher = threading.Thread(target=publish)
    publisher.start()
    fault(mesh)
    publisher.join(60)
    assert not publisher.is_alive()
    channel = mesh.channel("sink")
    seen: Counter[int] = Counter()

    def drain() -> bool:
        while (got := channel.basic_get("q", auto_ack=True))[0] is not None:
            seen[int(got[2])] += 1
        return len(seen) == COUNT

    until(drain, 40)
    until(lambda: not _waiting(mesh), 20)
    drain()
    assert {number: count for number, count in seen.items() if count > 1} == {}
    mesh.until_flowing("source", 4)
    mesh.until_flowing("sink", 4)


def _waiting(mesh: Fabric) -> list[str]:
    """Bridges that still hold something."""
    return [
        row["name"]
        for name in mesh.nodes
        for row in mesh.rows(name, "queue")
        if row["name"].startswith("weft.bridge.") and (row.get("ready") or row.get("unsettled"))
    ]
