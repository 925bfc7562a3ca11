"""Sites and partitions: a message is seen where it belongs and nowhere else, and a queue is where it was declared."""

from __future__ import annotations

from pathlib import Path

import weft
from unit.network.fabric import Nodes, flowing, keys, ready, take, until
from weft.server import Node

USERS = ("consumers", "merchants", "api")
FUNCTIONS = ("risk", "payments", "accounts")
SITES = ("slc", "phx", "dub")


def _heard(node: Node) -> int:
    """Messages that other nodes have sent to this one."""
    rows = node.snapshot()["links"]
    return sum(row["messages"] for row in rows if row["incoming"] and row["name"].startswith("weft-"))


async def test_a_partition_sees_its_own_messages_alone() -> None:
    """A layer by types of users, a layer by business functions, joined by a core. The audit: what each message has
    passed, as its trace says, and what each node was sent.
    """
    async with Nodes() as fabric:
        await fabric.add("core")
        for name in (*USERS, *FUNCTIONS):
            await fabric.add(name)
        for node in fabric.nodes.values():
            node.declare_exchange("events", "topic")
        for name in (*USERS, *FUNCTIONS):
            node = fabric.nodes[name]
            node.declare_queue("mine")
            node.bind("events", "mine", f"{name}.#" if name in USERS else f"*.{name}.#")
            fabric.link(name, "core")
            for direction in ("pull", "push"):
                node.add_route("up", "dynamic", exchange="events", direction=direction)
        members = [fabric.nodes[name] for name in (*USERS, *FUNCTIONS)]
        await until(lambda: all(flowing(node) and len(keys(node, "events")) == 5 for node in members))
        for function in FUNCTIONS:
            for number in range(5):
                await fabric.nodes["merchants"].send(f"events/merchants.{function}.order", f"{function} {number}")
        await fabric.nodes["risk"].send("events/consumers.blocked", b"blocked")
        for function in FUNCTIONS:
            found = await take(fabric.nodes[function], "mine", 5)
            assert [message.body.decode() for message in found] == [f"{function} {number}" for number in range(5)]
            assert {tuple(m.properties["headers"]["x-weft-trace"]) for m in found} == {("merchants", "core")}
        (blocked,) = await take(fabric.nodes["consumers"], "mine", 1)
        assert blocked.properties["headers"]["x-weft-trace"] == ["risk", "core"]
        seen = {node.name: _heard(node) for node in members}
        assert seen == {"consumers": 1, "merchants": 0, "api": 0, **dict.fromkeys(FUNCTIONS, 5)}


async def test_queues_stay_at_their_site_and_exchanges_are_everywhere(tmp_path: Path) -> None:
    async with Nodes() as fabric:
        for name in SITES:
            node = await fabric.add(name, data_dir=tmp_path / name)
            node.declare_exchange("orders", "topic", durable=True)
            node.declare_queue(f"desk.{name}", durable=True)
            node.bind("orders", f"desk.{name}", "all.#")
            node.bind("orders", f"desk.{name}", f"{name}.#")
        for here, there in (("slc", "phx"), ("phx", "dub"), ("dub", "slc")):
            fabric.link(here, there)
            for direction in ("pull", "push"):
                fabric.nodes[here].add_route("up", "dynamic", exchange="orders", direction=direction)
        nodes = fabric.nodes.values()
        await until(lambda: all(flowing(node) and len(keys(node, "orders")) == 3 for node in nodes))
        for node in nodes:
            await node.send("orders/all.new", f"from {node.name}", delivery_mode=2)
            await node.send("orders/dub.new", f"for dub from {node.name}", delivery_mode=2)
        for node in nodes:
            await until(lambda: ready(node, f"desk.{node.name}") == (6 if node.name == "dub" else 3))  # noqa: B023
    for site in SITES:
        files = [path.read_bytes() for path in (tmp_path / site).rglob("*") if path.is_file()]
        named = [name for name in SITES if any(f"desk.{name}".encode() in data for data in files)]
        assert named == [site]


async def test_requests_that_pile_up_hold_no_response_up() -> None:
    """Exchanges of their own, routes of their own: nobody works on the requests, and every response passes them."""
    async with Nodes() as fabric:
        gateway, remote = await fabric.add("gateway"), await fabric.add("remote")
        for node in (gateway, remote):
            node.declare_exchange("requests")
            node.declare_exchange("responses")
        remote.declare_queue("work")
        remote.bind("requests", "work", "k")
        remote.declare_queue("mine")
        remote.bind("responses", "mine", "k")
        fabric.link("remote", "gateway")
        for exchange, backlog_max in (("requests", 10), ("responses", 0)):
            remote.add_route("up", "dynamic", exchange=exchange, backlog_max=backlog_max)
        await until(lambda: flowing(remote) and keys(gateway, "requests") == keys(gateway, "responses") == {"k"})
        for _ in range(2_000):
            await gateway.send("requests/k", b"?")
        for number in range(100):
            await gateway.send("responses/k", str(number))
            assert [message.body for message in await take(remote, "mine", 1)] == [str(number).encode()]
        assert ready(gateway, "weft.bridge.remote:up:pull:dynamic:requests") >= 1_900


async def test_a_program_chooses_between_its_cluster_and_the_network_of_all() -> None:
    async with Nodes() as fabric:
        for name in ("here", "wan", "far"):
            node = await fabric.add(name)
            node.declare_exchange("news", "topic")
            node.declare_queue("read")
            node.bind("news", "read", "#")
        fabric.link("wan", "far")
        for direction in ("pull", "push"):
            fabric.nodes["wan"].add_route("up", "dynamic", exchange="news", direction=direction)
        await until(lambda: flowing(fabric.nodes["wan"]) and keys(fabric.nodes["wan"], "news") == {"#"})
        async with weft.connect(fabric.url("here")) as cluster, weft.connect(fabric.url("wan")) as wide:
            await cluster.send("/exchanges/news/a", "for us")
            await wide.send("/exchanges/news/a", "for all")
        for name, body in (("here", b"for us"), ("wan", b"for all"), ("far", b"for all")):
            assert [message.body for message in await take(fabric.nodes[name], "read", 1)] == [body]
            assert ready(fabric.nodes[name], "read") == 0
