"""Barriers, and publishers that wait for their consumers, as plainly as it can be said: a part of the model.

Owns what a barrier remembers and how a message ends that several queues have. Ids and fates come in; whether an id is
known, and who is answered what, come out. It knows no queue and no protocol.
Rules: docs/guides/idempotency.md, docs/guides/end-to-end.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Fate = Literal["accepted", "released", "modified", "rejected"]
Answer = Fate | Literal["unroutable"]
WORSE: tuple[Fate, ...] = ("accepted", "released", "modified", "rejected")

GRAINS = 1_024
"""Ends that a barrier tells apart within its window."""


class Window(NamedTuple):
    """How long and how much a barrier remembers."""

    ms: int = 600_000
    ids_max: int = 1_000_000

    def arguments(self) -> dict[str, object]:
        """As a client of 0-9-1 writes them, for a queue or an exchange."""
        return {"x-barrier": "message-id", "x-barrier-window": self.ms, "x-barrier-ids-max": self.ids_max}


@dataclass(eq=False)
class Barrier:
    """The ids that passed, oldest first, and when each ends."""

    window: Window
    ids: dict[str, int] = field(default_factory=dict)
    duplicates: int = 0
    open: dict[str, Receipt] = field(default_factory=dict)
    """Ids of messages whose publishers still wait."""
    forgotten: int = 0

    def knows(self, name: str, now_ms: int) -> bool:
        self.ids = {known: until_ms for known, until_ms in self.ids.items() if until_ms > now_ms}
        return name in self.ids

    def remember(self, name: str, now_ms: int) -> None:
        while len(self.ids) >= self.window.ids_max:
            del self.ids[next(iter(self.ids))]
        # Ends are rounded up to a part of the window, so that few of them are kept apart.
        grain_ms = max(self.window.ms // GRAINS, 1)
        self.ids[name] = ((now_ms + self.window.ms) // grain_ms + 1) * grain_ms

    def forget(self, name: str) -> None:
        """An id may come again; its place stays taken until it ends."""
        self.forgotten += 1
        gone = f"gone {self.forgotten}"
        self.ids = {gone if known == name else known: until_ms for known, until_ms in self.ids.items()}


@dataclass(eq=False)
class Receipt:
    """A publish, as long as somebody has to speak for it."""

    number: int
    answers: dict[int, Answer]
    """Where the last word goes, by number."""
    waits: bool = True
    left: int = 0
    fate: Fate = "accepted"
    ids: list[tuple[Barrier, str]] = field(default_factory=list)
    copies: list[Receipt] = field(default_factory=list)

    def join(self, barrier: Barrier, name: str) -> None:
        """A barrier holds it back: it ends as the first one does, if that is still on its way."""
        first = barrier.open.get(name)
        if first is not None:
            self.left += 1
            first.copies.append(self)

    def known_to(self, barrier: Barrier, name: str) -> None:
        if self.left:
            self.ids.append((barrier, name))
            barrier.open[name] = self

    @property
    def is_awaited(self) -> bool:
        return (self.waits and self.left > 0) or any(copy.is_awaited for copy in self.copies)

    def speak(self, fate: Fate) -> None:
        """One of its queues is done with it."""
        self.fate = max(self.fate, fate, key=WORSE.index)
        self.left -= 1
        if self.left:
            return
        for barrier, name in self.ids:
            if barrier.open.get(name) is self:
                del barrier.open[name]
                if self.fate != "accepted":
                    barrier.forget(name)
        for copy in self.copies:
            copy.speak(self.fate)
        if self.waits:
            self.answers[self.number] = self.fate
