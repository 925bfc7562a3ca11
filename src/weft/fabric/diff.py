"""What a node has, beside what the fabric file wants of it: the steps from one to the other.

Owns the comparison, class by class, and the order of steps. A `Member` and the rows a node's management gave come in;
steps go out.
It must not carry anything out, and must never propose to drop a queue that holds messages unless it was told to.
Rule: what is missing is made; what is there and not in the file is only removed when pruning was asked for, and never
the queues that clients have for as long as they are there.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from weft.fabric.file import Member
from weft.federation import link_of, parse_url, relay_of, route_of, to_table

Row = Mapping[str, Any]
CLASSES = ("exchange", "queue", "binding", "uplink", "route", "relay")
"""In the order in which they are made; they are removed in the other."""
TOPOLOGY = "/topology"
"""Where the directory has what each node is: its kind, tier, region and partition."""
OWN_PREFIXES = ("amq.", "weft.", "$", "service:")
"""Names that nodes make themselves."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do at a node."""

    action: Literal["make", "change", "remove", "keep"]
    kind: str
    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    def __str__(self) -> str:
        sign = {"make": "+", "change": "~", "remove": "-", "keep": "!"}[self.action]
        return f"{sign} {self.kind} {self.name}" + (f"  ({self.why})" if self.why else "")


def compare(
    member: Member, actual: Mapping[str, Sequence[Row]], *, prune: bool = False, force: bool = False
) -> list[Step]:
    """The steps that make a node what the file wants."""
    wanted = _wanted(member)
    steps: list[Step] = []
    for kind in CLASSES:
        known = {_name(kind, row): row for row in actual[kind]}
        for name, values in wanted[kind].items():
            if name not in known:
                steps.append(Step("make", kind, name, values))
            elif kind == "exchange" and (type_ := known[name].get("type")) != values["type"]:
                why = f"it is {type_}, not {values['type']}: delete it first, and its bindings with it"
                steps.append(Step("keep", kind, name, why=why))
            elif kind == "queue" and _lacks(values, known[name]):
                why = "it has not all of the arguments: delete it first, and its messages with it"
                steps.append(Step("keep", kind, name, why=why))
            elif kind in ("uplink", "route", "relay") and (why := _difference(values, known[name])):
                steps.append(Step("change", kind, name, values, why))
    if prune:
        relays = {str(row["name"]) for row in actual["relay"]}
        passing = {str(row["name"]) for row in actual["queue"] if row.get("durable") is False}
        for kind in reversed(CLASSES):
            rows = [row for row in actual[kind] if not _is_of_relay(kind, str(row["name"]), relays)]
            rows = [row for row in rows if row.get("destination", row["name"]) not in passing]
            steps += _extra(kind, wanted[kind], rows, force=force)
    return steps


def compare_place(member: Member, known: Row | None) -> list[Step]:
    """The step that tells the directory what a node is, if it does not know."""
    if known is not None and known.get("value") == member.place:
        return []
    return [Step("make", "directory", f"{TOPOLOGY}/{member.name}", {"value": member.place})]


def _wanted(member: Member) -> dict[str, dict[str, Mapping[str, Any]]]:
    bindings = {
        f"{b.source} -> {b.destination} : {b.routing_key}": {
            "source": b.source,
            "destination": b.destination,
            "routing_key": b.routing_key,
        }
        for b in member.bindings
    }
    return {
        "exchange": {name: {"type": type_, "durable": True} for name, type_ in member.exchanges.items()},
        "queue": {
            name: {"durable": True, **({"arguments": arguments} if arguments else {})}
            for name, arguments in member.queues.items()
        },
        "binding": dict(bindings),
        "uplink": {str(link["name"]): _without_name(to_table(link_of(link))) for link in member.links},
        "route": {str(route["name"]): _without_name(to_table(route_of(route))) for route in member.routes},
        "relay": {str(relay["name"]): _without_name(to_table(relay_of(relay))) for relay in member.relays},
    }


def _without_name(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "name"}


def _name(kind: str, row: Row) -> str:
    if kind == "binding":
        return f"{row['source']} -> {row['destination']} : {row.get('routing_key') or ''}"
    return str(row["name"])


def _lacks(values: Mapping[str, Any], row: Row) -> bool:
    """Was a queue made without some of these arguments?"""
    known = row.get("arguments") or {}
    return any(known.get(name) != value for name, value in values.get("arguments", {}).items())


def _difference(values: Mapping[str, Any], row: Row) -> str:
    """What a link, a route or a relay has that the file says otherwise; passwords are not told, and so not compared.
    A node of an older version tells less of them.
    """
    if "urls" in values and [str(parse_url(url)) for url in values["urls"]] != list(row.get("urls") or []):
        return "other addresses"
    shown = [name for name in values if name not in ("urls", "vhost") and row.get(name) is not None]
    changed = [name for name in shown if row[name] != values[name]]
    return f"other {' and '.join(changed)}" if changed else ""


def _is_of_relay(kind: str, name: str, relays: Container[str]) -> bool:
    """The links and routes of relays come and go with them."""
    base = name.removesuffix(".in").removesuffix(".out")
    return (kind == "uplink" and name in relays) or (kind == "route" and base != name and base in relays)


def _extra(kind: str, wanted: Mapping[str, object], rows: Sequence[Row], *, force: bool) -> list[Step]:
    steps: list[Step] = []
    for row in rows:
        name = _name(kind, row)
        end = str(row.get("destination", name)) if kind == "binding" else name
        if name in wanted or not name or end.startswith(OWN_PREFIXES):
            continue
        if kind == "queue" and not force and (row.get("ready") or row.get("unsettled")):
            held = (row.get("ready") or 0) + (row.get("unsettled") or 0)
            steps.append(Step("keep", kind, name, why=f"it holds {held} messages; --force drops them"))
        else:
            steps.append(Step("remove", kind, str(row["name"])))
    return steps
