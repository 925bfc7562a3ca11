"""A relay between two domains: credentials of their own, a narrow cable, and one that is cut again and again.

How long each cut lasts is told by the environment: `WEFT_CUT_S=30` for half a minute each, as a bad line may have it.
Without that a cut ends when both sides have given each other up.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pika
import pytest

from system.cable import Cable
from system.fabrics import Fabric, until

CUT_S = float(os.environ.get("WEFT_CUT_S", "0"))
CUTS = 3
WAIT_S = 60.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + CUTS * CUT_S)]
PACED, BYTES = 120, 1_000
BYTES_PER_S = 60_000
BURST_S = 0.1
BEFORE = 30
"""Messages that arrive between two cuts."""
OURS = """
[settings]
anonymous = false
guest = false
[[users]]
name = "operator"
password = "inside"
tags = ["administrator"]
[[permissions]]
user = "operator"
configure = ".*"
write = ".*"
read = ".*"
[[users]]
name = "partner"
password = "outside"
[[permissions]]
user = "partner"
configure = "weft\\\\.fabric\\\\..*"
write = "\\\\$fabric"
read = "orders|weft\\\\.fabric\\\\..*"
"""
THEIRS = """
[[links]]
name = "{name}"
urls = ["amqp://partner:{password}@127.0.0.1:{port}"]
heartbeat_s = 1
retry_max_s = 1
[[routes]]
name = "{name}-{queue}"
link = "{name}"
kind = "queue"
queue = "{queue}"
key = "orders"
bytes_per_s_max = {bytes_per_s_max}
"""


class Orders:
    """A publisher in our domain; each order has a number and is confirmed."""

    def __init__(self, fabric: Fabric) -> None:
        inside = f"amqp://operator:inside@127.0.0.1:{fabric.port('ours')}/%2F?heartbeat=0"
        self._channel = pika.BlockingConnection(pika.URLParameters(inside)).channel()
        for queue in ("orders", "salaries"):
            self._channel.queue_declare(queue, durable=True)
        self._channel.confirm_delivery()
        self.count = 0

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            body = str(self.count).encode().ljust(BYTES)
            self._channel.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
            self.count += 1

    def close(self) -> None:
        self._channel.connection.close()


def test_a_relay_keeps_to_what_it_may_and_outlives_its_line(tmp_path: Path) -> None:
    with Fabric(tmp_path) as fabric:
        ours, theirs = tmp_path / "ours.toml", tmp_path / "theirs.toml"
        ours.write_text(OURS)
        fabric.add("ours", "--config", str(ours))
        orders = Orders(fabric)
        orders.publish(PACED)
        with Cable(fabric.port("ours")) as cable:
            kinds = (("open", "outside", "orders"), ("greedy", "outside", "salaries"), ("stranger", "guess", "orders"))
            theirs.write_text("".join(_config(cable.port, *kind) for kind in kinds))
            fabric.add("theirs", "--config", str(theirs))
            fabric.channel("theirs").queue_declare("orders", durable=True)
            _keep_the_pace(fabric)
            until(lambda: _is_refused(fabric), WAIT_S)
            for _cut in range(CUTS):
                _cut_under_traffic(fabric, cable, orders)
            until(lambda: _depth(fabric) >= orders.count, WAIT_S)
            assert cable.connections > CUTS
            assert _take(fabric.channel("theirs")) == Counter(range(orders.count)), "each of them once"
        orders.close()


def _keep_the_pace(fabric: Fabric) -> None:
    """What arrives is no more than was allowed; that it is not less, a busy machine cannot promise."""
    arrived, began = 0, time.monotonic()
    while arrived == 0:
        began = time.monotonic()
        arrived = _depth(fabric)
    until(lambda: _depth(fabric) >= PACED, WAIT_S)
    allowed = BYTES_PER_S * (time.monotonic() - began + BURST_S)
    assert (PACED - arrived) * BYTES <= allowed * 1.05


def _cut_under_traffic(fabric: Fabric, cable: Cable, orders: Orders) -> None:
    """Orders are placed before, while and after nothing passes."""
    before = _depth(fabric)

    def arrive() -> bool:
        orders.publish()
        return _depth(fabric) >= before + BEFORE

    def is_lost() -> bool:
        orders.publish()
        return "operational" not in _links(fabric)["open"]

    until(arrive, WAIT_S)
    cable.cut()
    cut = time.monotonic()
    until(is_lost, WAIT_S)
    still = _depth(fabric)
    orders.publish(BEFORE)
    until(lambda: time.monotonic() >= cut + CUT_S, WAIT_S + CUT_S)
    assert _depth(fabric) == still < orders.count
    cable.heal()
    until(lambda: _links(fabric)["open"] == "operational", WAIT_S)


def _links(fabric: Fabric) -> dict[str, str]:
    return {row["name"]: row["state"] for row in fabric.rows("theirs", "link")}


def _is_refused(fabric: Fabric) -> bool:
    """Is what the partner may not have refused, and who has no password left outside?"""
    links = _links(fabric)
    greedy = next(row for row in fabric.rows("theirs", "route") if row["name"] == "greedy-salaries")
    told = links["greedy"] == "operational" and greedy["state"] == "refused" and "salaries" in greedy["cause"]
    return told and links["stranger"] != "operational"


def _config(port: int, name: str, password: str, queue: str) -> str:
    return THEIRS.format(name=name, password=password, port=port, queue=queue, bytes_per_s_max=BYTES_PER_S)


def _depth(fabric: Fabric) -> int:
    channel = fabric.channel("theirs")
    count = int(channel.queue_declare("orders", passive=True).method.message_count)
    channel.connection.close()
    return count


def _take(channel: Any) -> Counter[int]:
    seen: Counter[int] = Counter()
    while (got := channel.basic_get("orders", auto_ack=True))[0] is not None:
        seen[int(got[2])] += 1
    return seen
