"""What is managed, as values: classes with properties, statistics, operations and events.

Owns the classes the generated schema is made of, and finding them by name.
It must never hold a managed class itself: those are in schema/management.json.
The reference page is docs/reference/management.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Type = Literal["string", "integer", "number", "boolean", "strings", "list", "map", "any"]
_PYTHON: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "list": (list, tuple),
    "map": (dict,),
}


@dataclass(frozen=True, slots=True)
class Field:
    """A property, a statistic or an argument. `how` is read, key, create, write or secret; counter or gauge."""

    name: str
    type: Type
    doc: str
    how: str = "read"

    def fits(self, value: object) -> bool:
        """Is this a value of the field's type?"""
        if self.type == "any":
            return True
        is_flag = isinstance(value, bool)
        if self.type == "strings":
            return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
        return isinstance(value, _PYTHON[self.type]) and (is_flag == (self.type == "boolean"))


@dataclass(frozen=True, slots=True)
class Operation:
    """Something to be done to an object, beyond making, changing and deleting it."""

    name: str
    doc: str
    needs: str
    arguments: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class EventKind:
    """Something that happens to an object."""

    name: str
    severity: str
    doc: str


@dataclass(frozen=True, slots=True)
class ManagedClass:
    """One class of managed objects."""

    name: str
    doc: str
    scope: Literal["node", "vhost"]
    needs: str
    properties: tuple[Field, ...]
    statistics: tuple[Field, ...]
    operations: tuple[Operation, ...]
    events: tuple[EventKind, ...]

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of all properties and statistics that can be read."""
        return tuple(field.name for field in (*self.properties, *self.statistics) if field.how != "secret")

    def operation(self, name: str) -> Operation | None:
        """The operation of this name."""
        return next((operation for operation in self.operations if operation.name == name), None)

    def event(self, kind: str) -> EventKind:
        """The event of this kind; KeyError if the schema has none."""
        for event in self.events:
            if event.name == kind:
                return event
        raise KeyError(f"{self.name}.{kind}")
