"""A tap that is taken away leaves nothing behind: not in the flow, not in the definitions, not on the way."""

from __future__ import annotations

from pathlib import Path

import weft

STREAM = {"x-queue-type": "stream"}


async def test_a_tap_that_is_taken_away_leaves_nothing(tmp_path: Path) -> None:
    async with weft.Node(listen="127.0.0.1:0", data_dir=tmp_path) as node:
        node.declare_queue("log", arguments=STREAM)
        node.declare_exchange("orders", "topic")
        node.declare_queue("taken")
        node.bind("orders", "taken", "#")
        before = definitions(node)
        # One connection publishes all along: what it remembers of its route must follow.
        async with weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric:
            for number, (kind, source) in enumerate([("exchange", "orders"), ("queue", "taken")] * 2):
                await fabric.send("/exchanges/orders/new", b"past it")
                node.tap(source, "log", kind=kind)
                await fabric.send("/exchanges/orders/new", b"tapped")
                node.untap(source, kind=kind)
                await fabric.send("/exchanges/orders/new", b"past it")
                assert definitions(node) == before
                async with fabric.stream("/queues/log", offset="first", timeout_s=30) as messages:
                    bodies = [bytes((await anext(messages)).body) for _ in range(number + 1)]
                assert bodies == [b"tapped"] * (number + 1)
            [stream] = [row for row in node.snapshot()["queues"] if row["name"] == "log"]
            assert stream["ready"] == 4
            [taken] = [row for row in node.snapshot()["queues"] if row["name"] == "taken"]
            assert taken["ready"] == 12, "the flow is as it was"


def definitions(node: weft.Node) -> list[object]:
    """What the file would say of queues and exchanges."""
    topology = node._running.topology
    return [*topology.exchanges("/"), *topology.queues("/")]
