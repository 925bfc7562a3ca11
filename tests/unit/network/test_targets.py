"""Address policies: where messages go on to is decided beside the programs, and changed while they run."""

from __future__ import annotations

import itertools
from typing import Any

import weft
from unit.network.fabric import Nodes, flowing, ready, take, until
from weft.server import Node
from weft.store import ResourcePolicy


def set_policy(node: Node, pattern: str, **definition: Any) -> None:
    parts = node._running
    policy = ResourcePolicy("/", "where", pattern, {key.replace("_", "-"): value for key, value in definition.items()})
    parts.driver.apply(list(itertools.chain.from_iterable(parts.topology.set_policy(policy))))


def clear_policy(node: Node) -> None:
    parts = node._running
    parts.driver.apply(list(itertools.chain.from_iterable(parts.topology.clear_policy("/", "where"))))


def routes(node: Node) -> list[tuple[str, str]]:
    return [(row["link"], row["queue"] or row["exchange"]) for row in node.network.federation.routes()]


async def test_an_address_is_sent_to_another_network_and_to_a_third_while_its_client_goes_on() -> None:
    async with Nodes() as fabric:
        here, events, risk = [await fabric.add(name) for name in ("here", "events", "risk")]
        for node in (here, events, risk):
            node.declare_queue("state.changes")
        fabric.link("here", "events", name="events")
        fabric.link("here", "risk", name="risk")
        set_policy(here, "^state", target="events", ack="end-to-end")
        await until(lambda: flowing(here))
        await here.send("state.changes", b"1")
        assert (await take(events, "state.changes", 1))[0].body == b"1"
        set_policy(here, "^state", target="risk", message_ttl=60_000)
        await until(lambda: routes(here) == [("risk", "state.changes")] and flowing(here))
        await here.send("state.changes", b"2")
        assert (await take(risk, "state.changes", 1))[0].body == b"2"
        clear_policy(here)
        await until(lambda: not routes(here))
        await here.send("state.changes", b"3")
        assert (await take(here, "state.changes", 1))[0].body == b"3"


async def test_it_holds_for_what_is_made_later_and_waits_for_its_link() -> None:
    async with Nodes() as fabric:
        here, there = await fabric.add("here"), await fabric.add("there")
        set_policy(here, "^(orders|news)$", target="out")
        here.declare_queue("orders")
        here.declare_exchange("news", "topic")
        here.declare_queue("other")
        assert not routes(here)
        there.declare_queue("orders")
        there.declare_exchange("news", "topic")
        there.declare_queue("read")
        there.bind("news", "read", "#")
        fabric.link("here", "there", name="out")
        await until(lambda: flowing(here) and len(routes(here)) == 2)
        assert sorted(routes(here)) == [("out", "news"), ("out", "orders")]
        await here.send("orders", b"o")
        await here.send("news/x", b"n")
        assert (await take(there, "orders", 1))[0].body == b"o"
        assert (await take(there, "read", 1))[0].body == b"n"
        here.delete_queue("orders")
        await until(lambda: routes(here) == [("out", "news")])


async def test_an_address_is_a_queue_a_topic_or_another_node_and_who_sends_cannot_tell() -> None:
    async with Nodes() as fabric:
        here, there = await fabric.add("here"), await fabric.add("there")
        for node, queue in ((here, "kept"), (here, "onward"), (there, "onward"), (here, "reader"), (here, "other")):
            node.declare_queue(queue)
        here.declare_exchange("topic", "fanout")
        for queue in ("reader", "other"):
            here.bind("topic", queue, "")
        fabric.link("here", "there", name="out")
        set_policy(here, "^onward$", target="out")
        await until(lambda: flowing(here))
        async with weft.connect(fabric.url("here")) as client:
            for address in ("kept", "topic", "onward"):
                await client.send(address, "x")
        assert (ready(here, "kept"), ready(here, "reader"), ready(here, "other")) == (1, 1, 1)
        assert len(await take(there, "onward", 1)) == 1
        assert ready(here, "onward") == 0
