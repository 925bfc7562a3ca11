"""Managed policies, those of operators too.

Owns reading, setting and clearing them by request, and telling which apply to an object. The broker's controller keeps
them and says what they mean.
It must not know what a definition holds.
Rule: schema/management.json, classes `policy` and `operator_policy`: everyone who may enter the virtual host sees them,
`policymaker` sets the former, `administrator` both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.management.caller import Caller
from weft.management.host import AppliedLike
from weft.management.manager import Manager
from weft.management.provider import Provider, Values
from weft.management.query import Row
from weft.management.turns import Turns
from weft.model.changes import Change
from weft.model.errors import Refused
from weft.store import ResourcePolicy


def applied_row(applied: AppliedLike) -> Row:
    """What applies to a queue or an exchange, as part of its row."""
    names = {"policy": applied.policy, "operator_policy": applied.operator_policy}
    return {**names, "effective_policy_definition": applied.definition}


def policy_values(body: Values) -> Values:
    """A policy in RabbitMQ's words as values of its class; wrong types are left for the manager to refuse."""
    priority: object = body.get("priority", 0)
    if isinstance(priority, str) and priority.removeprefix("-").isdecimal():
        priority = int(priority[:12])
    apply_to = body.get("apply-to", "all")
    return {
        "pattern": body.get("pattern"),
        "definition": body.get("definition"),
        "priority": priority,
        "apply_to": apply_to,
    }


class PoliciesClass(Provider):
    """Every policy of one of the two kinds."""

    def __init__(self, manager: Manager, *, operator: bool) -> None:
        self._manager = manager
        self._host = manager.host
        self._operator = operator
        self._class = "operator_policy" if operator else "policy"

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:
        for name in caller.vhosts() if vhost is None else [vhost]:
            for policy in self._host.topology.policies(name):
                if policy.operator == self._operator:
                    queues, exchanges = self._host.topology.count_applied(policy)
                    yield _row(policy) | {"queues": queues, "exchanges": exchanges}

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:
        self._require(caller)
        if values.get("pattern") is None or values.get("definition") is None:
            raise Refused("a policy needs a pattern and a definition", 400)
        is_known = any(row["name"] == name for row in self.rows(caller, vhost))
        policy = ResourcePolicy(
            vhost,
            name,
            values["pattern"],
            values["definition"],
            values.get("apply_to") or "all",
            values.get("priority") or 0,
            self._operator,
        )
        await self._apply(self._host.topology.set_policy(policy))
        about = {key: value for key, value in _row(policy).items() if key not in ("name", "vhost")}
        self._manager.events.tell(self._class, "changed" if is_known else "created", name, vhost, **about)
        return name

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        before = self.read(caller, vhost, name)
        await self.create(caller, vhost, name, before | values)

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        self._require(caller)
        await self._apply(self._host.topology.clear_policy(vhost, name, operator=self._operator))
        self._manager.events.tell(self._class, "deleted", name, vhost)

    async def _apply(self, parts: Iterator[list[Change]]) -> None:
        """Tens of thousands of queues may change: messages have their turn between two parts."""
        turns = Turns()
        for changes in parts:
            self._host.apply(changes)
            await turns.give_way()

    def _require(self, caller: Caller) -> None:
        caller.require("administrator" if self._operator else "policymaker")


def _row(policy: ResourcePolicy) -> Row:
    about = {"pattern": policy.pattern, "apply_to": policy.apply_to, "priority": policy.priority}
    return {"name": policy.name, "vhost": policy.vhost, **about, "definition": policy.definition}
