"""The network of the talk, from its file: three local nodes, two gateways, two remotes, two infra nodes, and what they
are there for. Any one of them may go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import weft
from unit.network.fabric import Nodes, flowing, keys, ready, take, until
from weft.cli.fabric import reconcile
from weft.fabric import load
from weft.net.endpoint import Endpoint

PAYPAL = Path(__file__).parents[3] / "examples" / "fabrics" / "paypal.toml"
LOCALS = ("local-1", "local-2", "local-3")
REQUEST = "user.lifecycle.request"


@asynccontextmanager
async def _network() -> AsyncIterator[Nodes]:
    """All nine, as the file wants them, each on a port that is free."""
    fabric = load(PAYPAL)
    async with Nodes() as nodes:
        for name in fabric.members:
            await nodes.add(name)
        places = {member.url: nodes.url(name) for name, member in fabric.members.items()}
        members = {
            name: replace(
                member,
                listen=Endpoint("127.0.0.1", nodes.nodes[name].ports[0]),
                links=tuple({**link, "urls": [places[url] for url in link["urls"]]} for link in member.links),
            )
            for name, member in fabric.members.items()
        }
        assert await reconcile(replace(fabric, members=members), False, False, carry_out=True) == 0
        await until(lambda: all(flowing(node) for name, node in nodes.nodes.items() if "gateway" not in name), 60)
        yield nodes


async def _serve(node: weft.Node) -> None:
    async for request in node.receive(f"{REQUEST}.impl"):
        await node.send(f"service_res.direct/{request.properties['reply_to']}", node.name)
        request.accept()


async def _ask(nodes: Nodes, local: str, count: int = 1) -> set[str]:
    """Ask from a local node, by the name of the service alone; who answered."""
    node = nodes.nodes[local]
    for _ in range(count):
        assert await node.send(f"service_gateway.direct/{REQUEST}", b"?", reply_to=f"{local}.me", delivery_mode=2) == 1
    return {message.body.decode() for message in await take(node, "replies", count)}


async def _lose(node: weft.Node) -> None:
    """As a power failure would: nothing is said."""
    for connection in list(node._running.driver.connections.values()):
        connection.transport.abort()
    await node.stop()


async def test_nine_nodes_are_one_network_and_any_may_go() -> None:
    async with _network() as nodes, asyncio.timeout(120):
        all_ = nodes.nodes
        for local in LOCALS:
            all_[local].declare_queue("replies")
            all_[local].bind("service_res.direct", "replies", f"{local}.me")
        serving = {name: asyncio.create_task(_serve(all_[name])) for name in ("remote-1", "remote-2")}
        wanted = {f"{local}.me" for local in LOCALS}
        await until(lambda: all(keys(all_[name], "service_res.direct") == wanted for name in serving), 60)
        await until(lambda: all(REQUEST in keys(all_[local], "service_gateway.direct") for local in LOCALS), 60)
        for local in LOCALS:
            assert await _ask(nodes, local) <= set(serving)
        await until(lambda: all("#" in keys(node, "events") for name, node in all_.items() if "infra" not in name), 60)
        for name in (*LOCALS, *serving):
            await all_[name].send(f"events/{name}", name)
        for name in ("infra-1", "infra-2"):
            assert {m.body.decode() for m in await take(all_[name], "log", 5)} == {*LOCALS, *serving}
            assert ready(all_[name], "log") == 0
        # Pipes hold nothing when the traffic is over.
        for name in ("gateway-1", "gateway-2"):
            await until(lambda: not sum(queue["ready"] for queue in all_[name].snapshot()["queues"]))  # noqa: B023
        for victim in ("infra-1", "remote-1", "gateway-1"):
            if victim in serving:
                serving[victim].cancel()
            await _lose(all_[victim])
            for local in LOCALS:
                await until(lambda: "gateway-1" not in _ways(all_[local]) or victim != "gateway-1", 60)  # noqa: B023
                assert await _ask(nodes, local, 5) <= set(serving) - {victim}
        serving["remote-2"].cancel()


def _ways(node: weft.Node) -> set[str]:
    return {row["peer"] for row in node.network.federation.links() if row["state"] == "operational"}
