"""Events between nodes: who gathers them hears of every node, and links tell when they come up and go down."""

from __future__ import annotations

import json
import logging
from typing import Any

import weft
from unit.network.fabric import Nodes, flowing, ready, take, until

GATHERED = "fabric.events"


async def told(node: weft.Node, queue: str, count: int) -> list[dict[str, Any]]:
    """The next events in a queue."""
    return [json.loads(message.body) for message in await take(node, queue, count)]


async def test_a_node_that_gathers_hears_of_objects_statistics_and_log_lines_everywhere() -> None:
    async with Nodes() as fabric:
        infra, *locals_, far = [await fabric.add(name) for name in ("infra", "one", "other", "far")]
        for node in (infra, locals_[0]):
            node.declare_exchange(GATHERED, "topic")
        wanted = {
            "all": "#",
            "made": "queue.created.*.orders.*",
            "figures": "node.statistics.#",
            "lines": "log.line.warning.#",
        }
        for queue, key in wanted.items():
            infra.declare_queue(queue)
            infra.bind(GATHERED, queue, key)
        for node in locals_:
            fabric.link("infra", node.name, name=node.name)
            infra.add_route(node.name, "static", exchange=GATHERED, source_exchange="weft.events", key="#")
        # Two hops: one gathers what far tells, and infra what one has gathered.
        fabric.link("one", "far", name="far")
        locals_[0].add_route("far", "static", exchange=GATHERED, source_exchange="weft.events", key="queue.#")
        infra.add_route("one", "static", exchange=GATHERED, source_exchange=GATHERED, key="#")
        await until(lambda: flowing(infra) and flowing(locals_[0]))
        for node in (*locals_, far):
            node.declare_queue("orders")
        for node in locals_:
            await node.management.manager.tell_statistics()
        made = await told(infra, "made", 3)
        assert {(event["node"], event["object"]) for event in made} == {
            ("one", "orders"),
            ("other", "orders"),
            ("far", "orders"),
        }
        figures = await told(infra, "figures", 2)
        assert {(event["node"], event["values"]["queues"] > 0) for event in figures} == {("one", True), ("other", True)}
        # The nodes of one process share its logs, so each tells the line.
        logging.getLogger("weft.network").warning("the sky is %s", "low")
        lines = await told(infra, "lines", 2)
        assert {(line["node"], line["values"]["text"]) for line in lines} == {
            ("one", "the sky is low"),
            ("other", "the sky is low"),
        }
        assert ready(infra, "all") > len(made) + len(figures) + len(lines)


async def test_a_link_and_its_route_tell_of_their_making_change_and_failure_in_order() -> None:
    async with Nodes() as fabric, weft.Node(name="peer", listen="127.0.0.1:0") as peer:
        here = await fabric.add("here")
        for node in (here, peer):
            node.declare_exchange("x", "topic")
        manager = here.management.manager
        async with here.receive("weft.events/#") as events:
            seen: list[tuple[str, str, str]] = []

            async def hear(kind: str, about: str) -> None:
                while (kind, about) not in [item[:2] for item in seen]:
                    message = await anext(events)
                    message.accept()
                    body = json.loads(message.body)
                    if body["class"] in ("uplink", "route"):
                        seen.append((body["class"], body["kind"], body["severity"]))

            url = f"amqp://127.0.0.1:{peer.ports[0]}"
            await manager.create(manager.node, "uplink", "/", "up", {"urls": [url]})
            await hear("uplink", "up")
            await manager.create(manager.node, "route", "/", "r", {"link": "up", "kind": "dynamic", "exchange": "x"})
            here.declare_queue("q")
            here.bind("x", "q", "k")
            await hear("route", "up")
            await manager.update(manager.node, "route", "/", "r", {"credit": 10})
            await until(lambda: flowing(here))
            await peer.stop()
            await hear("route", "down")
            await hear("uplink", "down")
        kinds = [(name, kind) for name, kind, _ in seen]
        assert [item for item in kinds if item[0] == "uplink"] == [
            ("uplink", "created"),
            ("uplink", "up"),
            ("uplink", "down"),
        ]
        assert kinds.count(("route", "created")) == kinds.count(("route", "changed")) == 1
        assert ("uplink", "down", "warning") in seen
