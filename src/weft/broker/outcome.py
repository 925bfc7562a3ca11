"""What a decision comes to.

Owns the value that decisions on topology return when they do not refuse.
Decisions fill it, the controller saves and applies its edits and makes the peer's answer of the rest.
It must not hold behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weft.broker.tables import Edit
from weft.model.changes import Change

Counts = Callable[[str, str], tuple[int, int, int] | None]
"""(ready, unsettled, consumers) of a queue in a virtual host, or None if the kernel has no such queue (yet)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Yes: what changes, and the numbers of the reply."""

    edits: list[Edit] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    """For the kernel only, beside what the edits become."""
    name: str = ""
    messages: int = 0
    consumers: int = 0
