"""What a rule is, what it looks at, and what it says.

Owns three frozen values: `Observation` (the attributes of one object at one moment), `Rule`, and `Firing`.
They come from a rule file and from management, and go to the watch and to actions.
Nothing here may hold state or do anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Observation:
    """One object as management describes it now. Attributes may be nested: `latency.p99_ms` names one inside."""

    kind: str
    name: str
    attributes: Mapping[str, object]

    def number(self, path: str) -> float | None:
        """The attribute as a number; None where the object has no such attribute or it is not a number."""
        value = _value(self.attributes, path)
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True)
class Rule:
    """One section of a rule file: whom it watches, what is too much, what is to be done."""

    name: str
    kind: str = "queue"
    object: str = "*"
    """A pattern with `*` and `?` over the object's name."""
    attribute: str = ""
    above: float | None = None
    below: float | None = None
    clear: float | None = None
    """Where a raised alarm ends: at or on the other side of this. Without it, at the threshold itself."""
    rate: bool = False
    """Watch how much the attribute grows in a second, not the attribute."""
    for_s: float = 0.0
    """The threshold must be passed for so long."""
    event: str = ""
    """A pattern over events (`uplink.down.#`); such a rule has no threshold and fires with each."""
    severity: Severity = "warning"
    actions: tuple[str, ...] = ("log",)

    @property
    def threshold(self) -> float | None:
        """The one that is set."""
        return self.below if self.above is None else self.above

    @property
    def watched(self) -> str:
        """Class and names of what it looks at; the class of events stands in their pattern."""
        return f"{self.event.partition('.')[0] or self.kind} {self.object}"

    def is_passed(self, value: float) -> bool:
        """Is this too much, or too little?"""
        if self.above is not None:
            return value > self.above
        return self.below is not None and value < self.below

    def is_cleared(self, value: float) -> bool:
        """Is a raised alarm over at this value?"""
        if self.clear is None:
            return not self.is_passed(value)
        return value <= self.clear if self.above is not None else value >= self.clear


@dataclass(frozen=True, slots=True)
class Firing:
    """A threshold was crossed, upwards (`raised`) or back; or an event came."""

    rule: Rule
    object: str
    raised: bool
    value: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The class of the object; an event says it itself."""
        return str(self.details.get("class") or self.rule.kind)

    @property
    def text(self) -> str:
        """One line for people."""
        rule, where = self.rule, f"{self.kind} {self.object}"
        if self.value is None:
            return f"{rule.name}: {where}: {self.details.get('text') or rule.event}"
        what = f"{rule.attribute}{' per second' if rule.rate else ''} is {self.value:g}"
        side = "above" if rule.above is not None else "below"
        if self.raised:
            return f"{rule.name}: {where}: {what}, {side} {rule.threshold:g}"
        return f"{rule.name}: {where}: {what}, no longer {side} {rule.threshold:g}"

    def as_dict(self) -> dict[str, Any]:
        """The same for programs; the body of events and calls."""
        return {
            "rule": self.rule.name,
            "class": self.kind,
            "object": self.object,
            "attribute": self.rule.attribute,
            "raised": self.raised,
            "value": self.value,
            "threshold": self.rule.threshold,
            "severity": self.rule.severity,
            "text": self.text,
            "details": dict(self.details),
        }


def _value(attributes: object, path: str) -> object:
    """What is at the end of a path; a name in it may have dots itself, as types of messages do."""
    if not isinstance(attributes, Mapping):
        return None
    if path in attributes:
        return attributes[path]
    words = path.split(".")
    for count in range(len(words) - 1, 0, -1):
        inner = attributes.get(".".join(words[:count]))
        if inner is not None:
            return _value(inner, ".".join(words[count:]))
    return None
