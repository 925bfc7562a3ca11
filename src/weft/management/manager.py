"""Requests about managed objects, however they came: found in the schema, checked, and handed to their provider.

Owns the table of providers and the checks that hold for every class: is there such a class, may the caller ask, do the
values have the types of the schema. A caller and plain values come in; rows and plain values go out, or a refusal.
It must not know AMQP, HTTP or the command line; they know it.
Rule: schema/management.json; tags as in `caller`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from weft.management._generated_classes import CLASSES
from weft.management.caller import NODE, Caller
from weft.management.events import Events
from weft.management.host import Host
from weft.management.provider import Provider, Values
from weft.management.query import Page, Query, Row
from weft.management.schema import Field, ManagedClass
from weft.model.errors import Refused
from weft.model.names import clean_name

BY_NAME = {item.name: item for item in CLASSES}


class Manager:
    """Everything that can be asked of a node and its objects."""

    def __init__(self, host: Host, events: Events) -> None:
        self.host = host
        self.events = events
        self.requests = 0
        """Requests about objects so far, those of the node itself included."""
        self.on_vhosts: Callable[[], None] = lambda: None
        """Called when a virtual host was made or deleted."""
        self.tell_statistics: Callable[[], Awaitable[int]] = _tell_none
        """Publishes the statistics of every object; how many."""
        self._providers: dict[str, Provider] = {name: Provider() for name in BY_NAME}

    def register(self, class_name: str, provider: Provider) -> None:
        """From now on this provider answers for a class; KeyError if the schema has no such class."""
        if class_name not in BY_NAME:
            raise KeyError(class_name)
        self._providers[class_name] = provider

    def caller(self, user: str, vhost: str = "/") -> Caller:
        """A user who asks."""
        return Caller(user, self.host.policy, vhost)

    @property
    def node(self) -> Caller:
        """The node itself, which may do everything."""
        return self.caller(NODE)

    @property
    def is_quiesced(self) -> bool:
        """Has delivery been stopped?"""
        return self.host.driver.quiesced

    # requests

    async def query(self, caller: Caller, class_name: str, query: Query) -> Page:
        """Many objects."""
        managed = self._enter(caller, class_name)
        if query.vhost is not None:
            caller.enter(query.vhost)
        if query.sort is not None and query.sort not in managed.attributes:
            raise Refused(f"'{query.sort}' cannot be sorted by; there are {', '.join(managed.attributes)}", 400)
        return await self._providers[class_name].query(caller, query)

    async def read(self, caller: Caller, class_name: str, vhost: str, name: str) -> Row:
        """One object."""
        self._enter(caller, class_name, vhost)
        return await self._providers[class_name].fetch(caller, vhost, clean_name(name))

    async def create(self, caller: Caller, class_name: str, vhost: str, name: str, values: Values) -> str:
        """Make an object; its name."""
        managed = self._enter(caller, class_name, vhost)
        self._check(managed, vhost, values, {"key", "create", "write", "secret"})
        return await self._providers[class_name].create(caller, vhost, clean_name(name), values)

    async def update(self, caller: Caller, class_name: str, vhost: str, name: str, values: Values) -> None:
        """Change an object."""
        managed = self._enter(caller, class_name, vhost)
        self._check(managed, vhost, values, {"key", "write", "secret"})
        await self._providers[class_name].update(caller, vhost, clean_name(name), values)

    async def delete(self, caller: Caller, class_name: str, vhost: str, name: str, options: Values) -> None:
        """Delete an object."""
        self._enter(caller, class_name, vhost)
        await self._providers[class_name].delete(caller, vhost, clean_name(name), options)

    async def call(
        self, caller: Caller, class_name: str, vhost: str, name: str, operation: str, arguments: Values
    ) -> Values:
        """Carry out an operation."""
        managed = self._enter(caller, class_name, vhost)
        found = managed.operation(operation)
        if found is None:
            known = ", ".join(item.name for item in managed.operations) or "none"
            raise Refused(f"class {class_name} has no operation '{operation}'; it has {known}", 501)
        if found.needs:
            caller.require(found.needs)
        _check_fields(found.arguments, arguments)
        return await self._providers[class_name].call(caller, vhost, clean_name(name), operation, arguments)

    def tell(self, class_name: str, kind: str, name: str, values: Values) -> None:
        """An event from outside, about an object that no node keeps."""
        self._providers[class_name].heard(kind, name, values)
        self.events.tell(class_name, kind, name, None, **values)

    # checks

    def _enter(self, caller: Caller, class_name: str, vhost: str | None = None) -> ManagedClass:
        self.requests += 1
        managed = BY_NAME.get(class_name)
        if managed is None:
            raise Refused(f"no class '{class_name}'; there are {', '.join(BY_NAME)}", 404)
        caller.require(managed.needs)
        if vhost is not None and managed.scope == "vhost":
            caller.enter(vhost)
        return managed

    @staticmethod
    def _check(managed: ManagedClass, vhost: str, values: Values, allowed: set[str]) -> None:
        fields = [field for field in managed.properties if field.how in allowed]
        _check_fields(fields, values)
        if managed.scope == "vhost" and values.get("vhost", vhost) != vhost:
            raise Refused(f"the request is for virtual host '{vhost}', and its body for '{values['vhost']}'", 400)


async def _tell_none() -> int:
    return 0


def _check_fields(fields: Iterable[Field], values: dict[str, Any]) -> None:
    known = {field.name: field for field in fields}
    for name, value in values.items():
        field = known.get(name)
        if field is None:
            raise Refused(f"'{name}' cannot be given here; known are {', '.join(known) or 'none'}", 400)
        if value is not None and not field.fits(value):
            raise Refused(f"'{name}' must be of type {field.type}", 400)
