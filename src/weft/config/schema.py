"""What a configuration file may hold, as values.

Owns the two classes the generated schema is made of, and the search for the nearest known key.
It must never hold a key itself: those are in schema/management.json.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["string", "integer", "boolean", "strings", "table"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """One key of a table."""

    name: str
    type: Kind
    doc: str
    default: str | int | bool | tuple[str, ...] | None = None
    required: bool = False
    min: int | None = None
    max: int | None = None
    choices: tuple[str, ...] = ()

    def complaint(self, value: object) -> str | None:
        """Why a value does not fit, or None."""
        match self.type:
            case "string" if not isinstance(value, str):
                return "must be a string"
            case "string" if self.choices and value not in self.choices:
                return f"must be one of {', '.join(self.choices)}"
            case "boolean" if not isinstance(value, bool):
                return "must be true or false"
            case "strings" if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
                return "must be a list of strings"
            case "table" if not isinstance(value, dict):
                return "must be a table"
            case "integer":
                return self._integer_complaint(value)
        return None

    def _integer_complaint(self, value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        low, high = self.min or 0, self.max if self.max is not None else 2**63 - 1
        return None if low <= value <= high else f"must be from {low} to {high}"


@dataclass(frozen=True, slots=True)
class Entity:
    """One table, or with `many` a list of tables."""

    name: str
    doc: str
    many: bool
    attributes: tuple[Attribute, ...]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
