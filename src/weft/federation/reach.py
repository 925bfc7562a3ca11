"""What an exchange wants, and from whom: keys with the path each has come along.

Owns, for one exchange, the keys bound at this node and the keys other nodes have asked for through it, and answers
which keys to ask a source for. Bindings and reflections come in; the wanted set, per source, goes out.
It must not bind, send or know a link.
Rule: a path vector, as between the networks of the internet: a key travels with the names of the nodes that passed it
on, the first being where it is bound. Nobody takes a key whose path holds its own name, so a key that is bound nowhere
any more is gone after as many steps as there are nodes, in any topology (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Key = tuple[str, str]
"""A routing key, and the canonical text of the binding's arguments."""
Path = tuple[str, ...]
"""Names of nodes, the one where the key is bound first."""

HOPS_MAX = 32
"""Longest path a key may take: twice what crosses a planet of tiers."""


class Reach:
    """The keys of one exchange."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._bound: dict[Key, int] = {}
        self._learned: dict[str, dict[Key, Path]] = {}

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

    def learn(self, who: str, added: Mapping[Key, Path], dropped: Iterable[Key]) -> list[Key]:
        """A node (by one of its routes, `who`) asks for these keys and for those no more; the keys whose state may
        have changed.
        """
        known = self._learned.setdefault(who, {})
        changed = [key for key in dropped if known.pop(key, None) is not None]
        for key, path in added.items():
            if known.get(key) != path:
                known[key] = path
                changed.append(key)
        if not known:
            del self._learned[who]
        return changed

    def forget(self, who: str) -> list[Key]:
        """A node asks for nothing any more."""
        return list(self._learned.pop(who, ()))

    def learned(self, who: str) -> Mapping[Key, Path]:
        """What a node asks for now."""
        return self._learned.get(who, {})

    # what to ask a source for

    def all_keys(self) -> set[Key]:
        """Every key that is bound here or asked for through us."""
        found = set(self._bound)
        for known in self._learned.values():
            found.update(known)
        return found

    def path(self, key: Key, source: str) -> Path | None:
        """The path of a key as a source is to see it, or None if it must not be asked."""
        if key in self._bound:
            return (self._node,)
        best: Path | None = None
        for known in self._learned.values():
            path = known.get(key)
            if path is None or source in path or self._node in path or len(path) >= HOPS_MAX:
                continue
            if best is None or (len(path), path) < (len(best), best):
                best = path
        return None if best is None else (*best, self._node)
