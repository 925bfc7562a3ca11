"""One process is what its configuration says: a listener, a store, a router, management over HTTP, in any mixture."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import weft
from unit.network.fabric import Nodes, flowing, take, until
from unit.server.test_node import sockets
from weft.config import parse

ROLES = {
    "listener": '[[listen]]\naddress = "127.0.0.1:0"\n',
    "store": '[node]\ndata_dir = "{folder}"\n',
    "router": """
        [[links]]
        name = "up"
        urls = ["{peer}"]
        [[routes]]
        link = "up"
        kind = "queue"
        direction = "push"
        queue = "out"
        key = "out"
        """,
    "management": '[http]\naddress = "127.0.0.1:0"\n',
}
SUBSETS = [roles for count in range(len(ROLES) + 1) for roles in itertools.combinations(ROLES, count)]


@pytest.mark.parametrize("roles", SUBSETS, ids=lambda roles: "+".join(roles) or "none")
async def test_any_subset_of_roles(roles: tuple[str, ...], tmp_path: Path) -> None:
    async with Nodes() as fabric:
        peer = await fabric.add("peer")
        peer.declare_queue("out")
        folder = tmp_path / "data"
        text = "".join(ROLES[role] for role in roles).format(folder=folder, peer=fabric.url("peer"))
        async with weft.Node(name="here", configuration=parse(text)) as node:
            node.declare_queue("out")
            await node.send("out", b"x")
            if "router" in roles:
                await until(lambda: flowing(node))
            place = peer if "router" in roles else node
            assert [message.body for message in await take(place, "out", 1)] == [b"x"]
            assert bool(node.ports) == ("listener" in roles)
            assert bool(node.http_port) == ("management" in roles)
            assert folder.exists() == ("store" in roles)


async def test_an_address_inside_a_process_is_the_same_for_clients_of_another_node() -> None:
    """In memory first, without any socket; then the process joins a network, and nothing changes for its programs."""
    async with Nodes() as fabric:
        outer = await fabric.add("outer")
        before = sockets()
        async with weft.Node(name="inner") as inner:
            for node, queue in itertools.product((inner, outer), ("orders", "answers")):
                node.declare_queue(queue)
            await inner.send("orders", b"inside")
            assert [message.body for message in await take(inner, "orders", 1)] == [b"inside"]
            assert sockets() == before
            inner.add_link("up", [fabric.url("outer")])
            inner.add_route("up", "queue", direction="push", queue="orders", key="orders")
            inner.add_route("up", "queue", queue="answers", key="answers")
            await until(lambda: flowing(inner))
            await inner.send("orders", b"to the network")
            async with weft.connect(fabric.url("outer")) as client, client.receive("orders", timeout_s=30) as messages:
                assert (await anext(messages)).body == b"to the network"
                await client.send("answers", b"from the network")
            assert [message.body for message in await take(inner, "answers", 1)] == [b"from the network"]
