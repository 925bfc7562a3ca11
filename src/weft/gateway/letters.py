"""What a gateway carries, and what each side of it must be able to do: all that a plug-in has to know.

Owns `Letter` and the protocols `Source` and `Target`.
It must not know any system, weft's own included.
Rule: a source keeps a letter until it is told `done` or `refuse`, and gives it again, with the same id, if it is closed
before; a target returns from `push` when it answers for every letter. So nothing is lost, and what comes twice has one
id. What is away for a while raises OSError or `Unavailable`: then both sides are opened again, later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self


@dataclass(frozen=True, slots=True)
class Letter:
    """One message, in no system's own form."""

    id: str
    """The same whenever it is the same message: targets tell copies apart by it."""
    body: bytes
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    token: Any = field(default=None, compare=False, repr=False)
    """The source's own: what it needs to know when the letter is done."""


Refusals = Mapping[str, str]
"""Why a target will never take a letter, by the letter's id."""


class Source(Protocol):
    """Where letters come from. Entered, it is connected; left, it takes back what is not done."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_exc: object) -> None: ...

    async def pull(self, count_max: int) -> Sequence[Letter]:
        """The next letters, at least one: waits for it."""

    async def done(self, letters: Sequence[Letter]) -> None:
        """They are safe elsewhere."""

    async def refuse(self, letter: Letter, why: str) -> None:
        """It will never be taken: put it aside."""


class Target(Protocol):
    """Where letters go. Entered, it is connected."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_exc: object) -> None: ...

    async def push(self, letters: Sequence[Letter]) -> Refusals:
        """Take them; done when all but those in the answer are safe."""
