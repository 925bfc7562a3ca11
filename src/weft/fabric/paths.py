"""Redundancy: how many paths there are between two nodes, what they share, and how likely all of them fail.

Owns the arithmetic of the talk (P_loss to the power of n) and its correction for what paths have in common. A fabric or
plain numbers come in; paths and estimates go out.
It must never promise more than the numbers say: shared nodes and zones are named.
Rule: a path works while every node on it and every zone it touches does; what two paths share fails for both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from weft.fabric.file import Fabric

PATHS_MAX = 12
"""Paths that are looked at: the estimate takes every combination of them, and more than a few add nothing."""
TABLE = ((0.99, 2), (0.99, 3), (0.999, 2), (0.999, 3))
"""The rows of the talk: uptime of one path, number of paths."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a set of paths gives."""

    paths: tuple[tuple[str, ...], ...]
    shared: tuple[str, ...]
    """Nodes and zones that all paths need, the ends left out."""
    naive_loss: float
    """If all paths were independent."""
    loss: float
    """With what they share counted once."""


def loss_of(uptime: float, paths: int) -> float:
    """P_failure = P_loss^n, for independent paths."""
    return float((1 - uptime) ** paths)


def paths_needed(uptime: float, target: float) -> int:
    """How many independent paths of this uptime reach a target; 0 if none can."""
    if uptime <= 0:
        return 0
    count = 1
    while 1 - loss_of(uptime, count) < target:
        count += 1
        if count > 64:
            return 0
    return count


def find_paths(fabric: Fabric, start: str, end: str) -> list[tuple[str, ...]]:
    """The shortest paths between two nodes, over links in either direction: what routes carry goes both ways. A link
    whose routes relay nothing is a path between its ends, and part of no other.
    """
    beside: dict[str, set[str]] = {name: set() for name in fabric.members}
    found: list[tuple[str, ...]] = []
    is_direct = False
    for here, there, link in fabric.edges:
        if not _relays(fabric, here, link):
            is_direct |= {here, there} == {start, end}
            continue
        beside[here].add(there)
        beside[there].add(here)
    if is_direct and end not in beside[start]:
        found.append((start, end))
    left = _distances(beside, end)
    if start not in left:
        return found
    # Only what can still arrive is followed: there are more ways through a mesh than anyone can count.
    nodes_max = (len(found[0]) if found else left[start] + 1) + 2
    pending: deque[tuple[str, ...]] = deque([(start,)])
    while pending and len(found) < PATHS_MAX:
        path = pending.popleft()
        if path[-1] == end:
            found.append(path)
            continue
        nearer = (name for name in beside[path[-1]] if len(path) + 1 + left[name] <= nodes_max and name not in path)
        pending += [(*path, name) for name in sorted(nearer)]
    return found


def _distances(beside: Mapping[str, set[str]], end: str) -> dict[str, int]:
    """Links between each node and one of them, for those that have a way to it."""
    found, pending = {end: 0}, deque([end])
    while pending:
        name = pending.popleft()
        for other in beside[name] - found.keys():
            found[other] = found[name] + 1
            pending.append(other)
    return found


def _relays(fabric: Fabric, node: str, link: str) -> bool:
    """Do messages that came from elsewhere go on over this link?"""
    routes = [route for route in fabric.members[node].routes if route["link"] == link]
    return not routes or any(route.get("relay", "ring") == "ring" for route in routes)


def estimate(fabric: Fabric, paths: Sequence[tuple[str, ...]]) -> Estimate:
    """How likely it is that no path works; the two ends are taken as working."""
    parts = [_parts(fabric, path) for path in paths]
    uptimes = {name: up for part in parts for name, up in part.items()}
    naive = 1.0
    for part in parts:
        naive *= 1 - _product(part.values())
    works = 0.0
    for count in range(1, len(parts) + 1):
        for chosen in combinations(parts, count):
            together = {name for part in chosen for name in part}
            works += (-1) ** (count + 1) * _product(uptimes[name] for name in together)
    shared = set.intersection(*(set(part) for part in parts)) if parts else set()
    return Estimate(tuple(paths), tuple(sorted(shared)), naive if parts else 1.0, max(0.0, 1 - works))


def _parts(fabric: Fabric, path: Sequence[str]) -> Mapping[str, float]:
    """What a path needs: the nodes between its ends, and their zones."""
    found: dict[str, float] = {}
    for name in path[1:-1]:
        member = fabric.members[name]
        found[name] = member.uptime
        if member.zone:
            found[f"zone {member.zone}"] = max(member.uptime, 0.999)
    return found


def _product(values: object) -> float:
    result = 1.0
    for value in values:  # type: ignore[attr-defined]
        result *= value
    return result
