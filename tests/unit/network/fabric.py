"""Nodes of one process that know each other: made by name, linked by name, waited for.

Owns the nodes of one test and their end. It must never sleep for a guess: `until` asks again in each turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Self

import weft

WAIT_S = 30.0


class Nodes:
    """Some nodes, each listening on a port of its own."""

    def __init__(self) -> None:
        self._life = AsyncExitStack()
        self.nodes: dict[str, weft.Node] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._life.aclose()

    async def add(self, name: str, **options: Any) -> weft.Node:
        node = weft.Node(name=name, listen=options.pop("listen", "127.0.0.1:0"), **options)
        await self._life.enter_async_context(node)
        self.nodes[name] = node
        return node

    def url(self, name: str) -> str:
        return f"amqp://127.0.0.1:{self.nodes[name].ports[0]}"

    def link(self, here: str, *there: str, name: str = "up", **options: Any) -> None:
        self.nodes[here].add_link(name, [self.url(peer) for peer in there], **options)


async def until(what: Callable[[], object], wait_s: float = WAIT_S) -> None:
    """Wait for something to be true."""
    try:
        async with asyncio.timeout(wait_s):
            while not what():  # noqa: ASYNC110 - tables have no events for tests
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"this did not become true within {wait_s} s") from None


def flowing(node: weft.Node) -> bool:
    rows = node.network.federation.routes()
    return bool(rows) and all(row["state"] == "flowing" for row in rows)


def keys(node: weft.Node, exchange: str, vhost: str = "/") -> set[str]:
    """Keys by which bridges are bound to an exchange."""
    return {
        key[0]
        for _, queue, key in node.network.desk.keys_of_exchange(vhost, exchange)
        if queue.startswith("weft.bridge.")
    }


async def take(node: weft.Node, queue: str, count: int) -> list[weft.Message]:
    """So many messages from a queue, accepted."""
    found = []
    async with asyncio.timeout(WAIT_S), node.receive(queue) as receiver:
        async for message in receiver:
            message.accept()
            found.append(message)
            if len(found) == count:
                return found
    return found


def ready(node: weft.Node, queue: str) -> int:
    stats = node._running.engine.queue_stats("/", queue)
    return -1 if stats is None else stats[0]
