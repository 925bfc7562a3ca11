"""Neighbours that come and go in odd ways, say what makes no sense, or are said to be there and are not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import weft
from unit.network.fabric import Nodes, flowing, until
from weft.directory import Difference
from weft.federation import control, parse_url, relay_of, route_of
from weft.federation.followers import Mirror
from weft.model.errors import ConfigError, Refused
from weft.node.local import Message

NOWHERE = "amqp://127.0.0.1:1"
QUEUE_ROUTE: dict[str, Any] = {"kind": "queue", "queue": "q", "key": "k"}


def known(node: weft.Node) -> list[str]:
    return [entry.path for entry in node.directory.known()]


def make_vhost(node: weft.Node, name: str) -> None:
    parts = node._running
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    parts.driver.apply([*parts.topology.add_vhost(name), *parts.policy.set_permission("guest", name, **every)])


async def say(fabric: weft.Fabric, node: weft.Node, op: str, **facts: Any) -> None:
    """A control message, and the time it takes to be followed."""
    await fabric.send("$fabric", control.encode(op, "zed", **facts))
    await until(lambda: node._running.engine.queue_stats("/", "$fabric")[:2] == (0, 0))  # type: ignore[index]


# what is kept


async def test_a_link_that_was_refused_does_not_come_back(tmp_path: Path) -> None:
    async with weft.Node(name="a", data_dir=tmp_path) as node:
        with pytest.raises(Refused, match="the node's own"):
            node.add_link("~x", [NOWHERE])
    async with weft.Node(name="a", data_dir=tmp_path) as node:
        assert node.network.federation.links() == []


async def test_a_link_that_is_to_be_forgotten_is(tmp_path: Path) -> None:
    async with weft.Node(name="a", data_dir=tmp_path) as node:
        node.add_link("up", [NOWHERE])
        node.network.add_route(route_of({**QUEUE_ROUTE, "name": "r", "link": "up"}))
        node.network.add_route(route_of({**QUEUE_ROUTE, "name": "r", "link": "up", "durable": False}))
        node.add_link("up", [NOWHERE], durable=False)
    async with weft.Node(name="a", data_dir=tmp_path) as node:
        assert node.network.federation.records() == []


async def test_a_route_over_the_link_of_a_relay_survives_with_it(tmp_path: Path) -> None:
    relay = relay_of({"name": "both", "urls": NOWHERE, "exchange": "amq.topic"})
    async with weft.Node(name="a", data_dir=tmp_path) as node:
        node._running.membership.relays.put(relay)
        node.network.add_route(route_of({**QUEUE_ROUTE, "name": "mine", "link": "both"}))
    async with weft.Node(name="a", data_dir=tmp_path) as node:
        assert {row["name"] for row in node.network.federation.routes()} == {"mine", "both.in", "both.out"}


async def test_a_file_that_cannot_be_followed_changes_nothing() -> None:
    link, route = {"name": "up", "urls": [NOWHERE]}, {**QUEUE_ROUTE, "name": "file", "link": "up"}
    async with weft.Node(name="a") as node:
        network = node.network
        network.configure([link], [route])
        network.add_route(route_of({**QUEUE_ROUTE, "name": "mine", "link": "up"}))
        for _ in range(2):
            with pytest.raises(ConfigError, match="carries route 'mine', which is not in the file"):
                network.configure([], [])
            assert {row["name"] for row in network.federation.routes()} == {"file", "mine"}
        network.remove_route("mine")
        network.configure([], [])
        assert network.federation.records() == []


# who is there


async def test_who_is_linked_to_no_more_is_no_neighbour() -> None:
    async with Nodes() as fabric:
        here, _there = await fabric.add("here"), await fabric.add("there")
        fabric.link("here", "there")
        await until(lambda: "/members/there" in known(here))
        here.network.remove_link("up")
        await until(lambda: known(here) == ["/members/here"])


async def test_who_can_be_reached_by_another_link_is_not_lost_for_a_moment() -> None:
    async with Nodes() as fabric:
        here, there = await fabric.add("here"), await fabric.add("there")
        told: list[str] = []

        def note(differences: Sequence[Difference]) -> None:
            told.extend(each.path for each in differences if each.entry is None)

        fabric.link("here", "there")
        fabric.link("here", "there", name="other")
        await until(lambda: len(there._running.engine.inspect("connections")) == 2 and "/members/there" in known(here))
        await here.directory.watch("/members", note)
        down = here.network.federation._uplinks["other"].conn
        here._running.driver.lost(here._running.driver.connections[down], "cut")
        await until(lambda: here.network.federation._uplinks["other"].connects == 2)
        assert told == []


async def test_answers_take_the_way_that_is_left() -> None:
    async with Nodes() as fabric:
        here, there = await fabric.add("here"), await fabric.add("there")
        for node in (here, there):
            node.declare_exchange("x")
        make_vhost(there, "other")
        fabric.link("here", "there")
        await until(lambda: "here" in there.network.federation.neighbours())
        here.add_link("second", [f"{fabric.url('there')}/other"])
        await until(lambda: there.network.federation._replies["here"][0] == "other")
        here.network.remove_link("second")
        await until(lambda: there.network.federation._replies["here"][0] == "/")
        here.add_route("up", "dynamic", exchange="x")
        await until(lambda: flowing(here))


async def test_a_virtual_host_that_is_made_again_is_linked_to_again() -> None:
    async with Nodes() as fabric:
        here, there = await fabric.add("here"), await fabric.add("there")
        make_vhost(there, "x")
        here.add_link("up", [f"{fabric.url('there')}/x"], retry_max_s=1)
        await until(lambda: "here" in there.network.federation.neighbours())
        there._running.driver.apply(there._running.topology.delete_vhost("x"))
        await until(lambda: "here" not in there.network.federation.neighbours())
        make_vhost(there, "x")
        await until(lambda: "here" in there.network.federation.neighbours())


async def test_who_has_left_before_it_was_heard_is_no_neighbour() -> None:
    async with weft.Node(name="a") as node:
        said = Message(control.encode("hello", "zed"), {}, "", "$fabric", False, 12_345, 0, None)
        node.network._on_control(node._running.driver, "/", said)
        assert (node.network.federation.neighbours(), node.network._conns) == ([], {})


# what makes no sense


async def test_a_peer_that_talks_nonsense_is_heard_out() -> None:
    async with Nodes() as fabric:
        node = await fabric.add("a")
        node.declare_exchange("h", "headers")
        queue = "weft.bridge.zed:r"
        reflect: dict[str, Any] = {
            "route": "r",
            "exchange": "h",
            "epoch": 1,
            "sequence": 1,
            "fresh": True,
            "last": True,
        }
        async with weft.connect(fabric.url("a")) as peer:
            await peer.send("$fabric", b'{"op": "hello", "node": "\\ud800"}')
            await say(peer, node, "hello")
            assert node.network.federation.neighbours() == ["zed"]
            await say(peer, node, "reflect", **reflect, add=[[["zed"], []]], drop="no list")
            assert node._running.engine.queue_stats("/", queue) is None
            assert queue not in [queue.name for queue in node._running.topology.queues("/")]
            await say(peer, node, "reflect", **reflect, add=[[["zed"], [["", "no table"]]]])
            await say(peer, node, "reflect", **reflect | {"epoch": 2}, add=[[["zed"], [["", '{"a":"1"}']]]])
            assert node._running.engine.queue_stats("/", queue) == (0, 0, 0)
            assert node.network.desk.keys_of_queue("/", "h", queue) == [("", '{"a":"1"}')]
            for number in range(20):
                await say(peer, node, "withdraw", route="q", exchange=f"never-was-{number}")
            assert list(node.network.federation._reflections._reaches) == [("/", "h")]


async def test_a_management_that_hangs_gathers_nothing() -> None:
    async with weft.Node(name="a") as node:
        silent = socket.create_server(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for number in range(50):
            for route in ("one", "two"):
                keys = (f"key-{number}",)
                mirror = Mirror(route, place, parse_url(NOWHERE), f"weft.bridge.{route}", "x", keys, True, 1_000)
                node.network._do([mirror])
            await asyncio.sleep(0)
        silent.close()
        waiting = [(mirror.route, mirror.keys) for mirror in node.network._mirrors]
        assert waiting == [("one", ("key-49",)), ("two", ("key-49",))]
