"""Any topology is legal: every node gets each message once, whatever rings and meshes there are."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import weft
from unit.network.fabric import Nodes, flowing, keys, ready, take, until

SHAPES = {
    "line": [(0, 1), (1, 2), (2, 3), (3, 4)],
    "tree": [(1, 0), (2, 0), (3, 1), (4, 1)],
    "star": [(1, 0), (2, 0), (3, 0), (4, 0)],
    "ring": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)],
    "complete": [(a, b) for a in range(5) for b in range(a)],
    "mesh": [(1, 0), (2, 0), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3)],
}
COUNT = 20


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_node_gets_each_message_once(shape: str) -> None:
    async with Nodes() as fabric:
        for number in range(5):
            node = await fabric.add(f"n{number}")
            node.declare_exchange("events", "topic")
            node.declare_queue("q")
            node.bind("events", "q", "news.#")
        for here, there in SHAPES[shape]:
            link = f"to-n{there}"
            fabric.link(f"n{here}", f"n{there}", name=link)
            for direction in ("pull", "push"):
                fabric.nodes[f"n{here}"].add_route(link, "dynamic", exchange="events", direction=direction)
        nodes = fabric.nodes.values()
        await until(lambda: all(flowing(node) or not node.network.federation.routes() for node in nodes))
        await until(lambda: all(keys(node, "events") == {"news.#"} for node in nodes))
        for number in range(COUNT):
            for node in nodes:
                await node.send("events/news.today", f"{node.name}-{number}", delivery_mode=2)
        wanted = sorted(f"{node.name}-{number}".encode() for node in nodes for number in range(COUNT))
        await until(lambda: all(ready(node, "q") >= len(wanted) for node in nodes))
        await until(lambda: not _on_the_way(fabric))
        for node in nodes:
            assert ready(node, "q") == len(wanted), f"{node.name} got {ready(node, 'q')} of {len(wanted)}"
            assert sorted(message.body for message in await take(node, "q", len(wanted))) == wanted


@pytest.mark.parametrize("relay", ["complete", "ring"])
async def test_a_complete_graph_relays_nothing(relay: str) -> None:
    """K5 by the rule of complete graphs: a message crosses n - 1 links. By the rule of rings every node that gets it
    offers it to those it has not passed, and copies are held back at their ends.
    """
    async with Nodes() as fabric:
        for number in range(5):
            node = await fabric.add(f"n{number}")
            node.declare_exchange("events", "topic")
            node.declare_queue("q")
            node.bind("events", "q", "news.#")
        for here, there in SHAPES["complete"]:
            fabric.link(f"n{here}", f"n{there}", name=f"to-n{there}")
            for direction in ("pull", "push"):
                options = {"exchange": "events", "direction": direction, "relay": relay}
                fabric.nodes[f"n{here}"].add_route(f"to-n{there}", "dynamic", **options)
        nodes = fabric.nodes.values()
        await until(lambda: all(flowing(node) or not node.network.federation.routes() for node in nodes))
        await until(lambda: all(_bridged(node) == 4 for node in nodes))
        before = _transfers(fabric)
        for number in range(COUNT):
            await fabric.nodes["n0"].send("events/news.today", str(number), delivery_mode=2)
        await until(lambda: all(ready(node, "q") >= COUNT for node in nodes))
        await until(lambda: not _on_the_way(fabric))
        assert [ready(node, "q") for node in nodes] == [COUNT] * 5
        crossed = _transfers(fabric) - before
        assert crossed == COUNT * 4 if relay == "complete" else crossed > COUNT * 4


def _bridged(node: weft.Node) -> int:
    """Destinations that a node has a queue for."""
    return sum(queue["name"].startswith("weft.bridge.") for queue in node.snapshot()["queues"])


def _transfers(fabric: Nodes) -> int:
    """Messages that routes have carried from node to node."""
    rows = [row for node in fabric.nodes.values() for row in node.snapshot()["links"]]
    return sum(row["messages"] for row in rows if row["incoming"] and row["name"].startswith("weft-"))


def _on_the_way(fabric: Nodes) -> int:
    return sum(
        queue["ready"] + queue["unsettled"]
        for node in fabric.nodes.values()
        for queue in node.snapshot()["queues"]
        if queue["name"].startswith("weft.bridge.")
    )


@pytest.mark.parametrize("set_back_s", [0, 7_200])
async def test_a_clock_that_was_set_back_makes_no_message_look_like_an_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_back_s: int
) -> None:
    """A node whose clock stands still, or goes back by hours, while it is restarted: its peers, whose clocks are right,
    know what they have had by its numbers.
    """
    clock_ns = time.time_ns()
    monkeypatch.setattr("weft.server.time_ns", lambda: clock_ns)
    async with Nodes() as fabric:
        sink = await fabric.add("sink")
        sink.declare_exchange("events", "topic")
        sink.declare_queue("q")
        sink.bind("events", "q", "#")
        for life in range(3):
            async with weft.Node(name="source", data_dir=tmp_path / "source", listen="127.0.0.1:0") as source:
                source.declare_exchange("events", "topic", durable=True)
                source.add_link("up", fabric.url("sink"))
                source.add_route("up", "dynamic", exchange="events", direction="push", name="out")
                await until(lambda: keys(source, "events") == {"#"})
                for number in range(5):
                    await source.send("events/k", f"{life}-{number}", delivery_mode=2)
                await until(lambda: ready(sink, "q") == 5 * (life + 1))  # noqa: B023
            clock_ns -= set_back_s * 1_000_000_000


async def _two_ways(fabric: Nodes) -> tuple[weft.Node, weft.Node]:
    """A local node and a remote with two gateways between them, each of which carries everything."""
    for name in ("local", "gateway1", "gateway2", "remote"):
        node = await fabric.add(name)
        node.declare_exchange("events", "topic")
    local, remote = fabric.nodes["local"], fabric.nodes["remote"]
    remote.declare_queue("q")
    remote.bind("events", "q", "#")
    for gateway in ("gateway1", "gateway2"):
        for here, direction in (("local", "push"), ("remote", "pull")):
            fabric.link(here, gateway, name=gateway)
            fabric.nodes[here].add_route(gateway, "dynamic", exchange="events", direction=direction)
    await until(lambda: flowing(local) and flowing(remote))
    await until(lambda: all(keys(fabric.nodes[n], "events") for n in ("local", "gateway1", "gateway2")))
    return local, remote


async def test_by_two_paths_each_message_is_seen_once() -> None:
    """Every message takes both paths, and its receiver sees one of the two copies; the other is counted."""
    async with Nodes() as fabric:
        local, remote = await _two_ways(fabric)
        await until(lambda: _bridged(local) == 2)
        for number in range(COUNT):
            await local.send("events/news", str(number), delivery_mode=2)
        await until(lambda: ready(remote, "q") >= COUNT)
        await until(lambda: not _on_the_way(fabric))
        assert remote.snapshot()["stats"]["duplicate"] == ready(remote, "q") == COUNT
        bodies = [int(message.body) for message in await take(remote, "q", COUNT)]
        assert sorted(bodies) == list(range(COUNT))


async def test_a_cut_is_survived_where_there_is_another_way() -> None:
    """Two gateways between a local node and a remote: one goes, nothing is lost, nothing comes twice."""
    async with Nodes() as fabric:
        local, remote = await _two_ways(fabric)
        sent = 0

        async def publish(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                await local.send("events/news", str(sent), delivery_mode=2)
                sent += 1
                await asyncio.sleep(0)

        await publish(200)
        stopping = asyncio.create_task(fabric.nodes["gateway1"].stop())
        await publish(200)
        await stopping
        await until(lambda: ready(remote, "q") >= sent)
        bodies = [int(message.body) for message in await take(remote, "q", sent)]
        assert sorted(bodies) == list(range(sent))
        assert ready(remote, "q") == 0
