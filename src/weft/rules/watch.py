"""Which rules fire: a pure function with memory.

Owns the state of every rule and object: below, passing since, raised. Observations and events come in with their
time; firings go out, one per crossing in each direction.
It must never read a clock, wait, or act.
Rule: a threshold fires once when it is crossed and once when it is cleared; `clear` keeps the two apart (hysteresis).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from weft.rules.rule import Firing, Observation, Rule

STATES_MAX = 100_000
"""Objects watched at a time, over all rules; `Watch.unwatched` counts what found no room."""

Key = tuple[str, str, str, str]
"""Rule, class, virtual host and name: each virtual host has a queue of that name."""


@dataclass(slots=True)
class _State:
    """One rule over one object."""

    passing_since_s: float | None = None
    raised: bool = False
    last: float | None = None
    last_s: float = 0.0


class Watch:
    """Turns what objects say into firings."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rule for rule in rules if not rule.event)
        self._event_rules = tuple(rule for rule in rules if rule.event)
        self._states: dict[Key, _State] = {}
        self._fired = {rule.name: 0 for rule in rules}
        self.unwatched = 0
        """Observations that found no room."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The classes of objects that any rule looks at."""
        return tuple(sorted({rule.kind for rule in self._rules}))

    def interesting(self, observation: Observation) -> bool:
        """Does any rule look at this object?"""
        return any(_covers(rule, observation) for rule in self._rules)

    def standing(self) -> dict[str, tuple[bool, int]]:
        """Each rule: is it crossed for any object, and how often it fired. A rule over events is never crossed."""
        crossed = {key[0] for key, state in self._states.items() if state.raised}
        return {name: (name in crossed, fired) for name, fired in self._fired.items()}

    def observe(self, observations: Iterable[Observation], now_s: float) -> list[Firing]:
        """Everything that management said this time. Objects that are no longer there end their alarms silently."""
        firings: list[Firing] = []
        seen: set[Key] = set()
        for observation in observations:
            for rule in self._rules:
                if not _covers(rule, observation):
                    continue
                key = (rule.name, observation.kind, str(observation.attributes.get("vhost", "")), observation.name)
                seen.add(key)
                firing = self._look(rule, key, observation, now_s)
                if firing is not None:
                    firings.append(firing)
        for key in self._states.keys() - seen:
            del self._states[key]
        return self._counted(firings)

    def on_event(self, routing_key: str, body: Mapping[str, object]) -> list[Firing]:
        """An event message: its key is `class.kind.severity.object.node`."""
        words = routing_key.split(".")
        name = str(body.get("object") or body.get("name") or routing_key)
        return self._counted(
            [
                Firing(rule, name, raised=True, details=body)
                for rule in self._event_rules
                if _matches(rule.event.split("."), words) and fnmatchcase(name, rule.object)
            ]
        )

    def _counted(self, firings: list[Firing]) -> list[Firing]:
        for firing in firings:
            self._fired[firing.rule.name] += firing.raised
        return firings

    def _look(self, rule: Rule, key: Key, observation: Observation, now_s: float) -> Firing | None:
        value = observation.number(rule.attribute)
        if value is None:
            return None
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= STATES_MAX:
                self.unwatched += 1
                return None
            state = self._states[key] = _State()
        if rule.rate:
            value = _growth(state, value, now_s)
            if value is None:
                return None
        if state.raised:
            if not rule.is_cleared(value):
                return None
            state.raised, state.passing_since_s = False, None
            return Firing(rule, observation.name, raised=False, value=value)
        if not rule.is_passed(value):
            state.passing_since_s = None
            return None
        if state.passing_since_s is None:
            state.passing_since_s = now_s
        if now_s - state.passing_since_s < rule.for_s:
            return None
        state.raised = True
        return Firing(rule, observation.name, raised=True, value=value)


def _covers(rule: Rule, observation: Observation) -> bool:
    return rule.kind == observation.kind and fnmatchcase(observation.name, rule.object)


def _growth(state: _State, value: float, now_s: float) -> float | None:
    """Per second since the last look; None at the first, and when a counter began anew."""
    last, last_s = state.last, state.last_s
    state.last, state.last_s = value, now_s
    if last is None or now_s <= last_s or value < last:
        return None
    return (value - last) / (now_s - last_s)


def _matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Topic matching: `*` is one word, `#` any number of them."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_matches(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _matches(pattern[1:], words[1:])
