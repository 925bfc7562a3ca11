"""How fast bindings travel, and where replies go when a client moves."""

from __future__ import annotations

import asyncio
import time

from unit.network.fabric import Nodes, flowing, keys, ready, take, until


async def test_a_binding_carries_traffic_within_a_tenth_of_a_second_and_ten_thousand_in_five() -> None:
    async with Nodes() as fabric:
        source, sink = await fabric.add("source"), await fabric.add("sink")
        for node in (source, sink):
            node.declare_exchange("x")
        fabric.link("sink", "source")
        sink.add_route("up", "dynamic", exchange="x")
        await until(lambda: flowing(sink))
        sink.declare_queue("q")
        delays = []
        for number in range(5):
            began = time.monotonic()
            sink.bind("x", "q", f"first-{number}")
            await until(lambda: f"first-{number}" in keys(source, "x"))  # noqa: B023 - awaited at once
            await source.send(f"x/first-{number}", b"1")
            await until(lambda: ready(sink, "q") == number + 1)  # noqa: B023
            delays.append(time.monotonic() - began)
        assert min(delays) < 0.1, delays  # others may keep the machine busy now and then
        began = time.process_time()  # both nodes are in this process; others may keep the machine busy
        for number in range(10_000):
            sink.bind("x", "q", f"key-{number}")
            if number % 100 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(keys(source, "x")) == 10_005)
        assert time.process_time() - began < 5


async def test_a_client_gets_its_replies_wherever_it_reconnects() -> None:
    """The client's node dies while a request is on its way; the client binds its one reply address at another node."""
    async with Nodes() as fabric:
        for name in ("gateway", "remote", "local1", "local2"):
            node = await fabric.add(name)
            node.declare_exchange("service_res.direct")
            if name != "gateway":
                fabric.link(name, "gateway", role="gateway")
                for direction in ("pull", "push"):
                    node.add_route("up", "dynamic", exchange="service_res.direct", direction=direction)
        remote, local1, local2 = (fabric.nodes[name] for name in ("remote", "local1", "local2"))
        await until(lambda: all(flowing(node) for node in (remote, local1, local2)))
        for local in (local1, local2):
            local.declare_queue("replies.me")
        local1.bind("service_res.direct", "replies.me", "container-7")
        await until(lambda: "container-7" in keys(remote, "service_res.direct"))
        await remote.send("service_res.direct/container-7", b"before")
        assert [message.body for message in await take(local1, "replies.me", 1)] == [b"before"]
        for connection in list(local1._running.driver.connections.values()):
            connection.transport.abort()
        await local1.network.stop()
        local2.bind("service_res.direct", "replies.me", "container-7")
        await until(lambda: "container-7" in keys(fabric.nodes["gateway"], "service_res.direct"))
        await until(lambda: any("local2" in queue and key[0] == "container-7" for _, queue, key in _bound(fabric)))
        await remote.send("service_res.direct/container-7", b"after")
        assert [message.body for message in await take(local2, "replies.me", 1)] == [b"after"]


def _bound(fabric: Nodes) -> list[tuple[str, str, tuple[str, str]]]:
    return fabric.nodes["gateway"].network.desk.keys_of_exchange("/", "service_res.direct")
