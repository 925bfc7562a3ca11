"""Managed rules: what somebody watches on this node, and how often it fired.

Owns a row for each rule of each watcher that told the node of it (`weft watch`), at most `RULES_MAX`. A watcher makes
the rule, reports how it stands whenever that changes, and deletes it when it ends.
It must not watch anything itself: rules run beside the node.
Rule: schema/management.json, class `rule`; docs/guides/rules.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.management.caller import Caller
from weft.management.manager import Manager
from weft.management.provider import Provider, Values
from weft.management.query import Row
from weft.model.errors import Refused

RULES_MAX = 1_000


class Rules(Provider):
    """Every rule that the node was told of."""

    def __init__(self, manager: Manager) -> None:
        self._events = manager.events
        self._rows: dict[str, Row] = {}

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - rules are the node's
        return [dict(row) for row in self._rows.values()]

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:  # noqa: ARG002
        caller.require("monitoring")
        if name not in self._rows and len(self._rows) >= RULES_MAX:
            raise Refused(f"there are {RULES_MAX} rules already: delete those whose watchers are gone", 409)
        if not name:
            raise Refused("a rule needs a name", 400)
        about = {key: values.get(key) for key in ("object", "attribute", "threshold")}
        is_new = name not in self._rows
        self._rows[name] = {"name": name, **about, "state": "clear", "fired": 0}
        if is_new:
            self._events.tell("rule", "created", name, **about)
        return name

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        caller.require("monitoring")
        if self._rows.pop(name, None) is None:
            raise Refused(f"no rule '{name}'", 404)
        self._events.tell("rule", "deleted", name)

    async def call(self, caller: Caller, vhost: str, name: str, operation: str, arguments: Values) -> Values:
        if operation != "report":
            return await super().call(caller, vhost, name, operation, arguments)
        row = self._rows.get(name)
        if row is None:
            raise Refused(f"no rule '{name}'", 404)
        row["state"] = "crossed" if arguments.get("crossed") else "clear"
        row["fired"] = arguments.get("fired", row["fired"])
        return {}
