"""What an exchange wants, and from whom: keys with the paths each has come along.

Owns, for one exchange, the keys bound at this node and the keys other nodes have asked for through it, and answers
which keys to ask a source for. Bindings and reflections come in; the wanted set, per source, goes out.
It must not bind, send or know a link.
Rule: a path vector, as between the networks of the internet: a key travels with the names of the nodes that passed it
on, the first (its origin) being where it is bound. Nobody takes a key whose path holds its own name, so a key that is
bound nowhere any more is gone after as many steps as there are nodes, in any topology. Each origin's shortest path is
passed on: one path for all of them could hide, behind an origin that a source must not be asked for, another that
only this way leads to (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Key = tuple[str, str]
"""A routing key, and the canonical text of the binding's arguments."""
Path = tuple[str, ...]
"""Names of nodes, the origin first."""
Paths = dict[str, Path]
"""The path of each origin."""

HOPS_MAX = 32
"""Longest path a key may take: twice what crosses a planet of tiers."""
ORIGINS_MAX = 1_024
"""Origins of one key that are passed on, the nearest first."""


class Reach:
    """The keys of one exchange."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._bound: dict[Key, int] = {}
        self._learned: dict[str, dict[Key, Paths]] = {}

    # what is bound here

    def bind(self, key: Key) -> bool:
        """One more binding at this node; True if that may change what is wanted."""
        self._bound[key] = count = self._bound.get(key, 0) + 1
        return count == 1

    def unbind(self, key: Key) -> bool:
        """One binding less."""
        count = self._bound.get(key, 0) - 1
        if count > 0:
            self._bound[key] = count
            return False
        return self._bound.pop(key, None) is not None

    # what others ask for through us

    def learn(self, who: str, added: Iterable[tuple[Key, Path]], dropped: Iterable[tuple[Key, str]]) -> list[Key]:
        """A node (by one of its routes, `who`) asks for these keys along these paths, and no more for those of these
        origins; the keys whose state may have changed.
        """
        known = self._learned.setdefault(who, {})
        changed: dict[Key, None] = {}
        for key, origin in dropped:
            paths = known.get(key, {})
            if paths.pop(origin, None) is not None:
                changed[key] = None
                if not paths:
                    del known[key]
        for key, path in added:
            paths = known.setdefault(key, {})
            if paths.get(path[0]) != path:
                paths[path[0]] = path
                changed[key] = None
        if not known:
            del self._learned[who]
        return list(changed)

    def forget(self, who: str) -> list[Key]:
        """A node asks for nothing any more."""
        return list(self._learned.pop(who, ()))

    def learned(self, who: str) -> Mapping[Key, Paths]:
        """What a node asks for now."""
        return self._learned.get(who, {})

    # what to ask a source for

    def all_keys(self) -> list[Key]:
        """Every key that is bound here or asked for through us."""
        found = dict.fromkeys(self._bound)
        for known in self._learned.values():
            found.update(dict.fromkeys(known))
        return list(found)

    def paths(self, key: Key, source: str, *, only_own: bool = False) -> Paths:
        """The paths of a key as a source is to see it; none if it must not be asked.

        What is bound here needs no other: what reaches this node goes on from here. `only_own` leaves out what others
        ask for through us.
        """
        if key in self._bound:
            return {self._node: (self._node,)}
        if only_own:
            return {}
        best: Paths = {}
        for known in self._learned.values():
            for origin, path in known.get(key, {}).items():
                if source in path or self._node in path or len(path) >= HOPS_MAX:
                    continue
                if origin not in best or (len(path), path) < (len(best[origin]), best[origin]):
                    best[origin] = path
        nearest = sorted(best.values(), key=lambda path: (len(path), path))[:ORIGINS_MAX]
        return {path[0]: (*path, self._node) for path in nearest}
