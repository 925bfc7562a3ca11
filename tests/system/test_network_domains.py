"""A relay between two domains: credentials of their own, a narrow cable, and a link that is cut again and again."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pika
import pytest

from system.fabrics import Fabric, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
COUNT, BYTES = 120, 1_000
BYTES_PER_S = 60_000
BURST_S = 0.1
CUTS = 3
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
retry_max_s = 1
[[routes]]
name = "{name}-{queue}"
link = "{name}"
kind = "queue"
queue = "{queue}"
key = "orders"
bytes_per_s_max = {bytes_per_s_max}
"""


def test_a_relay_keeps_to_what_it_may(tmp_path: Path) -> None:
    with Fabric(tmp_path) as fabric:
        ours = tmp_path / "ours.toml"
        ours.write_text(OURS)
        fabric.add("ours", "--config", str(ours))
        inside = f"amqp://operator:inside@127.0.0.1:{fabric.port('ours')}"
        publisher = pika.BlockingConnection(pika.URLParameters(f"{inside}/%2F?heartbeat=0")).channel()
        for queue in ("orders", "salaries"):
            publisher.queue_declare(queue, durable=True)
        publisher.confirm_delivery()
        for number in range(COUNT):
            body = str(number).encode().ljust(BYTES)
            publisher.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))

        theirs = tmp_path / "theirs.toml"
        kinds = (("open", "outside", "orders"), ("greedy", "outside", "salaries"), ("stranger", "guess", "orders"))
        theirs.write_text("".join(_config(fabric.port("ours"), *kind) for kind in kinds))
        fabric.add("theirs", "--config", str(theirs))
        fabric.channel("theirs").queue_declare("orders", durable=True)
        began = time.monotonic()
        for cut in range(1, CUTS + 1):
            until(lambda cut=cut: _depth(fabric) >= cut * COUNT // (CUTS + 2), 60)
            fabric.kill("theirs")  # the link is gone, and what was on it
            fabric.restart("theirs")
        until(lambda: _depth(fabric) >= COUNT, 60)
        elapsed_s = time.monotonic() - began
        assert _take(fabric.channel("theirs")) == Counter(range(COUNT)), "each of them once"
        most = BYTES_PER_S * (elapsed_s + (CUTS + 1) * BURST_S)
        assert most * 1.05 >= COUNT * BYTES

        def is_refused() -> bool:
            links = {row["name"]: row["state"] for row in fabric.rows("theirs", "link")}
            greedy = next(row for row in fabric.rows("theirs", "route") if row["name"] == "greedy-salaries")
            told = links["greedy"] == "operational" and greedy["state"] == "refused" and "salaries" in greedy["cause"]
            return told and links["stranger"] != "operational"

        until(is_refused, 60)
        publisher.connection.close()


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
