"""Limits of users and virtual hosts, as properties of both.

Owns the translation between a property such as `max_queues` and the limit it stands for. Values come in with a request,
rows and records go out; the policy's controller keeps and applies them.
It must not decide what a limit does.
Rule: RabbitMQ's names of limits with dashes as underscores; -1 takes a bound away.
"""

from __future__ import annotations

from typing import Literal

from weft.management.host import Host, PolicyLike
from weft.management.provider import Values
from weft.management.query import Row
from weft.store import Limit

Kind = Literal["user", "vhost"]
LIMITS: dict[Kind, tuple[str, ...]] = {
    "user": ("max_connections", "max_channels"),
    "vhost": ("max_connections", "max_queues"),
}
UNLIMITED = -1


def limits_of(policy: PolicyLike, kind: Kind) -> dict[str, Row]:
    """The limits of every user or virtual host that has some, as part of its row."""
    rows: dict[str, Row] = {}
    for limit in policy.limits():
        if limit.kind == kind:
            rows.setdefault(limit.name, {})[limit.what.replace("-", "_")] = limit.value
    return rows


def set_limits(host: Host, kind: Kind, name: str, values: Values) -> Row:
    """Set those that are given; what was."""
    given = {what: values[what] for what in LIMITS[kind] if values.get(what) is not None}
    for what, value in given.items():
        word = what.replace("_", "-")
        if value == UNLIMITED:
            host.apply(host.policy.clear_limit(kind, name, word))
        else:
            host.apply(host.policy.set_limit(Limit(kind, name, word, value)))
    return given
