"""To how many queues and exchanges each policy applies.

Owns the names of the policies that each object has, and the counts. What applies to an object comes in whenever that is
worked out; counts go out at once, however many objects there are.
It must not decide which policy applies: `policies` does.
Rule: an object counts for the policy it has, not for every policy whose pattern matches its name.
"""

from __future__ import annotations

from collections import Counter

from weft.broker.policies import NOTHING, Applied
from weft.store import Exchange, Queue, ResourcePolicy

_Names = tuple[str | None, str | None]
_NONE: _Names = (None, None)


class Assigned:
    """The policies of every object in one virtual host."""

    def __init__(self) -> None:
        self._names: dict[bool, dict[str, _Names]] = {True: {}, False: {}}
        self._counts: Counter[tuple[bool, bool, str]] = Counter()
        self._known: dict[_Names, _Names] = {}
        """One tuple for all objects that have the same policies."""

    def note(self, to: Queue | Exchange, applied: Applied) -> None:
        """These apply to an object from now on."""
        is_queue, names = isinstance(to, Queue), (applied.policy, applied.operator_policy)
        before = self._names[is_queue].get(to.name, _NONE)
        if names == before:
            return
        for change, policies in ((-1, before), (1, names)):
            for operator, name in enumerate(policies):
                if name is not None:
                    self._counts[is_queue, bool(operator), name] += change
        if names == _NONE:
            del self._names[is_queue][to.name]
        else:
            self._names[is_queue][to.name] = self._known.setdefault(names, names)

    def forget(self, to: Queue | Exchange) -> None:
        """The object is gone."""
        self.note(to, NOTHING)

    def count(self, policy: ResourcePolicy) -> tuple[int, int]:
        """Queues and exchanges that have this policy."""
        queues, exchanges = (self._counts[is_queue, policy.operator, policy.name] for is_queue in (True, False))
        return queues, exchanges
