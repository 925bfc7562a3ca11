"""A relay, a gateway and a barrier from one file, a few lines each: what comes twice over the way is there once."""

from __future__ import annotations

from pathlib import Path

import pika
from pika.exceptions import UnroutableError

from .fabrics import Fabric, until

WAIT_S = 30.0
LINES_MAX = 6
FILE = """
[nodes.gateway]
listen = "127.0.0.1:{gateway}"
kind = "gateway"
exchanges = {{ news = "topic" }}

[nodes.shop]
listen = "127.0.0.1:{shop}"
exchanges = {{ news = "topic" }}
queues = {{ orders = {{ x-barrier = "message-id" }} }}
bindings = ["news -> orders : order.#"]

[[relays]]
from = "shop"
to = "gateway"
exchange = "news"
"""


def test_a_relay_a_gateway_and_a_barrier_are_a_few_lines(tmp_path: Path) -> None:
    assert all(len(block.strip().splitlines()) <= LINES_MAX for block in FILE.split("\n\n"))
    with Fabric(tmp_path) as fabric:
        for name in ("gateway", "shop"):
            fabric.add(name)
        file = tmp_path / "fabric.toml"
        file.write_text(FILE.format(gateway=fabric.port("gateway"), shop=fabric.port("shop")))
        fabric.command(f"weft fabric apply {file}")
        channel = fabric.channel("gateway", confirms=True)

        def publish() -> bool:
            properties = pika.BasicProperties(delivery_mode=2, message_id="order-7")
            try:
                channel.basic_publish("news", "order.new", b"", properties, mandatory=True)
            except UnroutableError:
                return False
            return True

        def orders() -> dict[str, object]:
            [row] = [row for row in fabric.rows("shop", "queue") if row["name"] == "orders"]
            return row

        until(publish, WAIT_S)
        assert publish()
        until(lambda: orders()["duplicate"] == 1, WAIT_S)
        assert orders()["ready"] == 1
