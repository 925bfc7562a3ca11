"""A network of thousands of nodes, rehearsed: real directories, links and time on paper.

Owns the shape of the talk's network, node by node, and the spreading of one change through it. A `Paper` and a seed
come in; how long it took until every node knew, what it cost each node, and the connections of the busiest go out.
It must not open a socket or wait: the clock is a number.
Rule: nodes tell each other as `weft.directory.embedded` says, so a node's share of the work is bounded by its
neighbours, whatever the size of the whole.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.directory.embedded import Embedded
from weft.fabric.model import Paper

HOP_MS = (1.0, 50.0)
"""A message from node to node takes this long, with whatever delays it: within a building, or across an ocean."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What became of one change."""

    nodes: int
    links: int
    connections_max: int
    """Of the busiest node, links and processes together."""
    known_ms: float
    """When the last node knew."""
    half_ms: float
    """When half of the nodes did: until `known_ms` the fabric has two versions."""
    messages: int
    messages_max: int
    """Received by the busiest node."""


def links_of(paper: Paper) -> Iterator[tuple[str, str]]:
    """Every link of the network: up from each server, across within a region, and between regions."""
    gateways = paper.gateways_per_region
    for region in range(paper.regions):
        for here in range(gateways):
            yield from ((_gateway(region, here), _gateway(region, there)) for there in range(here))
            yield from ((_gateway(region, here), _gateway(other, here)) for other in range(region))
    for server in range(paper.servers):
        region, first = server % paper.regions, server // paper.regions * paper.uplinks
        for uplink in range(paper.uplinks):
            yield f"server-{server}", _gateway(region, (first + uplink) % gateways)


def rehearse(paper: Paper, seed: int = 1) -> Rehearsed:
    """Change one entry at one server, and follow it."""
    beside: dict[str, list[str]] = {}
    count = 0
    for here, there in links_of(paper):
        beside.setdefault(here, []).append(there)
        beside.setdefault(there, []).append(here)
        count += 1
    world = _World(beside, seed)
    learned = world.change("server-0", "/settings/colour", {"value": "red"})
    degree = {node: len(peers) for node, peers in beside.items()}
    busiest = max(n + (paper.processes_per_server if node.startswith("server-") else 0) for node, n in degree.items())
    times = sorted(learned.values())
    return Rehearsed(
        nodes=len(beside),
        links=count,
        connections_max=busiest,
        known_ms=times[-1] if len(times) == len(beside) else float("inf"),
        half_ms=times[len(times) // 2],
        messages=world.received.total(),
        messages_max=max(world.received.values(), default=0),
    )


class _World:
    """Directories, and the messages between them that have not arrived."""

    def __init__(self, beside: dict[str, list[str]], seed: int) -> None:
        self._beside = beside
        self._random = random.Random(seed)  # noqa: S311 - a rehearsal is to be repeatable
        self._now_ms = 0.0
        self._under_way: list[tuple[float, int, str, str, list[dict[str, Any]]]] = []
        self._sent = 0
        self.received: Counter[str] = Counter()
        self._directories = {node: Embedded(node) for node in beside}
        for node, directory in self._directories.items():
            directory.spread = partial(self._spread, node)

    def change(self, node: str, path: str, value: dict[str, Any]) -> dict[str, float]:
        """Make an entry at one node; when each node knew it, in milliseconds."""
        learned = {node: self._now_ms}
        asyncio.run(self._directories[node].put(path, value))
        while self._under_way:
            self._now_ms, _number, sender, to, records = heapq.heappop(self._under_way)
            self.received[to] += 1
            self._directories[to].receive(sender, records)
            learned.setdefault(to, self._now_ms)
        return {name: at for name, at in learned.items() if self._knows(name, value)}

    def _knows(self, node: str, value: dict[str, Any]) -> bool:
        return [entry.value for entry in self._directories[node].known()] == [value]

    def _spread(self, node: str, records: list[dict[str, Any]], but: str) -> None:
        for peer in self._beside[node]:
            if peer != but:
                self._sent += 1
                due_ms = self._now_ms + self._random.uniform(*HOP_MS)
                heapq.heappush(self._under_way, (due_ms, self._sent, node, peer, records))


def _gateway(region: int, number: int) -> str:
    return f"gateway-{region}-{number}"
