"""What definitions of RabbitMQ name that a node of ours does not have, or does not do.

Owns the words for it. A document comes in before anything of it is made; a refusal that names all that cannot be made
goes out, or lines about what is kept and has no effect.
It must never change a document, nor tell a value of it: URIs of upstreams and shovels hold passwords.
Rule: docs/guides/rabbitmq.md. What a document says and a node does not do is told, never passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.management.classes.parameters import OPERATOR_POLICY, VHOST_LIMITS
from weft.management.host import TopologyLike
from weft.management.query import Row
from weft.model.errors import Refused

TOLD_MAX = 10
"""Exchanges named in one refusal."""
IN_PLACE = {
    "shovel": "`weft link add` and `weft route add queue` do what it did",
    "federation-upstream": "`weft link add` and `weft route add dynamic` do what it did",
}
"""What does here what a component did there."""


def refuse_unknown(topology: TopologyLike, document: Row, vhost: str | None) -> None:
    """Refuse a document with exchanges of types that there are not, before anything of it is made."""
    unknown = [
        f"'{row.get('name')}' in {_place(row, vhost)} ({row['type']})"
        for row in _rows(document, "exchanges")
        if isinstance(row.get("type"), str) and row["type"] not in topology.exchange_types
    ]
    if unknown:
        told = ", ".join(unknown[:TOLD_MAX]) + (f" and {len(unknown) - TOLD_MAX} more" if unknown[TOLD_MAX:] else "")
        text = f"unknown exchange type: {told}; nothing was made: give them another type, or take them out"
        raise Refused(f"COMMAND_INVALID - {text}", 503)


def without_effect(topology: TopologyLike, document: Row, vhost: str | None) -> Iterator[str]:
    """Lines about what is kept, and exported again, and does nothing here."""
    for row in _rows(document, "parameters"):
        component = row.get("component")
        if component not in (OPERATOR_POLICY, VHOST_LIMITS):
            instead = f"; {IN_PLACE[component]}" if component in IN_PLACE else ""
            yield f"{component} '{row.get('name')}' in {_place(row, vhost)}{instead}"
    for row in _rows(document, "policies"):
        if idle := sorted(topology.idle_keys & dict(row.get("definition") or {}).keys()):
            yield f"{', '.join(idle)} of policy '{row.get('name')}' in {_place(row, vhost)}"


def _rows(document: Row, kind: str) -> list[dict[str, Any]]:
    """The rows that can be looked at; who makes them tells what is wrong with the others."""
    rows = document.get(kind)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _place(row: Row, vhost: str | None) -> str:
    return f"'{vhost if vhost is not None else row.get('vhost')}'"
