"""Managed parameters: values that are kept for others.

Owns reading, setting and deleting them by request, in a virtual host or for the node. They go straight to the store.
It must not know what a value means: weft reads none of them.
Rule: schema/management.json, classes `parameter` and `global_parameter`; what RabbitMQ keeps as parameters and weft has
as objects of their own (policies, limits) is not among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from urllib.parse import quote, unquote

from weft._kernel import encode_json
from weft.management.caller import Caller
from weft.management.manager import Manager
from weft.management.provider import Provider, Values
from weft.management.query import Row
from weft.model.errors import Refused
from weft.store import Parameter

OPERATOR_POLICY = "operator_policy"
VHOST_LIMITS = "vhost-limits"
"""Components under which RabbitMQ keeps what has a class of its own here."""
_ELSEWHERE = {"policy": "policy", OPERATOR_POLICY: "operator_policy", VHOST_LIMITS: "vhost"}
NAME_BYTES_MAX = 255
PARAMETERS_MAX = 10_000
_Place = tuple[str, str, str]
"""Component, virtual host and name."""


def parameter_name(component: str, name: str) -> str:
    """How a parameter is named among those of a virtual host."""
    return f"{quote(component, safe='')}/{quote(name, safe='')}"


class _Kept(Provider):
    """What both classes do."""

    def __init__(self, manager: Manager, class_name: str) -> None:
        self._manager = manager
        self._store = manager.host.parameters
        self._class = class_name
        self._changes: Counter[_Place] = Counter()

    def _put(self, one: Parameter, name: str, values: Values) -> None:
        for word in (one.name, one.component or one.name):
            if not 0 < len(word.encode()) <= NAME_BYTES_MAX:
                raise Refused(f"a name must have 1 to {NAME_BYTES_MAX} bytes", 400)
        if "value" not in values:
            raise Refused("a parameter needs a value", 400)
        known = [(kept.component, kept.vhost, kept.name) for kept in self._store.parameters()]
        is_known = (one.component, one.vhost, one.name) in known
        if not is_known and len(known) >= PARAMETERS_MAX:
            raise Refused(f"there are {PARAMETERS_MAX} parameters already", 409)
        with self._store.transaction():
            self._store.put_parameter(one)
        self._store.sync()
        self._changes[one.component, one.vhost, one.name] += 1
        self._tell("changed" if is_known else "created", one, name)

    def _drop(self, one: Parameter, name: str) -> None:
        with self._store.transaction():
            self._store.delete_parameter(one)
        self._store.sync()
        del self._changes[one.component, one.vhost, one.name]
        self._tell("deleted", one, name)

    def _counted(self, one: Parameter) -> Row:
        return {
            "bytes": len(encode_json(one.value)),
            "changes": self._changes[one.component, one.vhost, one.name],
        }

    def _tell(self, kind: str, one: Parameter, name: str) -> None:
        self._manager.events.tell(self._class, kind, name, one.vhost or None)


class Parameters(_Kept):
    """Values of components in virtual hosts, named `COMPONENT/NAME`."""

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager, "parameter")

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:
        seen = set(caller.vhosts()) if vhost is None else {vhost}
        for one in self._store.parameters():
            if one.component and one.vhost in seen:
                name = parameter_name(one.component, one.name)
                about = {"name": name, "vhost": one.vhost, "component": one.component, "value": one.value}
                yield about | self._counted(one)

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:
        caller.require("policymaker")
        component, one = _split(name)
        if component in _ELSEWHERE:
            raise Refused(f"'{component}' is kept elsewhere: see the class {_ELSEWHERE[component]}", 400)
        self._put(Parameter(component, vhost, one, values.get("value")), name, values)
        return parameter_name(component, one)

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        self.read(caller, vhost, name)
        await self.create(caller, vhost, name, values)

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        caller.require("policymaker")
        row = self.read(caller, vhost, name)
        self._drop(Parameter(*_place(row, name)), name)


class GlobalParameters(_Kept):
    """Values of the node."""

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager, "global_parameter")

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - they are the node's
        for one in self._store.parameters():
            if not one.component:
                yield {"name": one.name, "value": one.value} | self._counted(one)

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:  # noqa: ARG002
        self._put(Parameter("", "", name, values.get("value")), name, values)
        return name

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        self.read(caller, vhost, name)
        await self.create(caller, vhost, name, values)

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        row = self.read(caller, vhost, name)
        self._drop(Parameter("", "", name, row["value"]), name)


def _split(name: str) -> tuple[str, str]:
    component, slash, rest = name.partition("/")
    if not slash:
        raise Refused("a parameter is named COMPONENT/NAME", 400)
    return unquote(component), unquote(rest)


def _place(row: Row, name: str) -> tuple[str, str, str, object]:
    return row["component"], row["vhost"], _split(name)[1], row["value"]
