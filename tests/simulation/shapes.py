"""Topologies to try: pairs of nodes that are linked, from a kind, a size and chance.

Owns the shapes and the little graph theory that says what a fabric of such a shape must do. Names go in, pairs out.
It must not know weft: what is right is said here a second time, from the shape alone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Mapping
from itertools import combinations

Edge = tuple[str, str]
SHAPES = ("tree", "ring", "complete", "mesh")
COMPLETE_MAX = 12
"""Nodes of a complete graph: each more is linked to all others."""
RING_MAX = 24


def edges(shape: str, names: list[str], chance: random.Random) -> list[Edge]:
    """The links of a fabric: always connected."""
    if shape == "complete":
        return list(combinations(names[:COMPLETE_MAX], 2))
    if shape == "ring":
        ring = names[:RING_MAX]
        return list(zip(ring, [*ring[1:], ring[0]], strict=True))
    found = [(names[chance.randrange(at)], names[at]) for at in range(1, len(names))]
    if shape == "mesh":
        more = [pair for pair in combinations(names, 2) if pair not in found]
        found += chance.sample(more, min(chance.randint(1, len(names)), len(more)))
    return found


def neighbours(pairs: Collection[Edge]) -> dict[str, list[str]]:
    """Who is linked to whom."""
    found: dict[str, list[str]] = {}
    for one, other in pairs:
        found.setdefault(one, []).append(other)
        found.setdefault(other, []).append(one)
    return found


def distances(graph: Mapping[str, Collection[str]], start: str, without: str = "") -> dict[str, int]:
    """Steps from a node to every one it reaches, not through `without`."""
    found = {start: 0}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        for other in graph[node]:
            if other not in found and other != without:
                found[other] = found[node] + 1
                waiting.append(other)
    return found
