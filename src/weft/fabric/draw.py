"""The picture of a fabric: as text for a terminal, as SVG for a page.

Owns both drawings. What was found out about nodes and links comes in (`Found`); text goes out.
It must not ask anyone.
Rule: nodes stand in layers by their tier, if a fabric file gave them one; else by how far they are from a gateway or,
without one, from the node that most links lead to.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from html import escape
from typing import Any

TIERS = ("front", "mid", "core")
"""From programs inwards; tiers with other names come after these."""
FACTS = ("queues", "ready", "connections", "published", "delivered", "time_in_queue_p99_us")
"""What of a node's row is on the map: what it holds, what it did, and how fast."""
BOX_W, BOX_H, GAP_X, GAP_Y, MARGIN = 190, 64, 40, 90, 30


@dataclass(slots=True)
class Found:
    """What a crawl has found."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Facts by node: url and `FACTS`, or why it could not be asked; its kind, tier, region and partition, as far as
    they are known.
    """
    links: list[dict[str, Any]] = field(default_factory=list)
    """from, to, name, role, state, routes (a list of texts)."""


def layers(found: Found) -> list[tuple[str, list[str]]]:
    """Nodes with what their layer is called: by tiers, or without a name by their distance from the middle."""
    tiers = {str(facts.get("tier") or "") for facts in found.nodes.values()}
    if not any(tiers):
        return [("", names) for names in _by_distance(found)]
    order = sorted(tiers, key=lambda tier: (not tier, TIERS.index(tier) if tier in TIERS else len(TIERS), tier))
    return [
        (tier, sorted(name for name, facts in found.nodes.items() if str(facts.get("tier") or "") == tier))
        for tier in order
    ]


def _by_distance(found: Found) -> list[list[str]]:
    beside: dict[str, set[str]] = {name: set() for name in found.nodes}
    incoming = dict.fromkeys(found.nodes, 0)
    for link in found.links:
        if link["to"] in beside and link["from"] in beside:
            beside[link["from"]].add(link["to"])
            beside[link["to"]].add(link["from"])
            incoming[link["to"]] += 1
    middle = {link["to"] for link in found.links if link.get("role") == "gateway" and link["to"] in beside}
    if not middle and found.nodes:
        middle = {max(sorted(incoming), key=lambda name: incoming[name])}
    distance = dict.fromkeys(sorted(middle), 0)
    pending = deque(distance)
    while pending:
        name = pending.popleft()
        for other in sorted(beside[name]):
            if other not in distance:
                distance[other] = distance[name] + 1
                pending.append(other)
    for name in found.nodes:
        distance.setdefault(name, max(distance.values(), default=0) + 1)
    rows: list[list[str]] = [[] for _ in range(max(distance.values(), default=0) + 1)]
    for name in sorted(distance):
        rows[distance[name]].append(name)
    return rows


def text(found: Found) -> str:
    """The map for a terminal."""
    lines: list[str] = []
    for depth, (tier, names) in enumerate(layers(found)):
        if tier:
            lines.append(f"{'  ' * depth}-- {tier} tier")
        for name in names:
            facts = found.nodes[name]
            lines.append(f"{'  ' * depth}[{name}]  {_facts(facts)}")
            for link in found.links:
                if link["from"] == name:
                    arrow = "==>" if link["state"] == "operational" else "-x>"
                    role = f" ({link['role']})" if link.get("role") else ""
                    lines.append(f"{'  ' * depth}   {arrow} {link['to'] or '?'}{role}  {link['state']}")
                    lines += [f"{'  ' * depth}        {route}" for route in link["routes"]]
    return "\n".join(lines)


def _facts(facts: dict[str, Any]) -> str:
    if "error" in facts:
        return f"not reached: {facts['error']}"
    parts = [*_place(facts), str(facts.get("url", ""))]
    parts += [f"{facts[key]} {key}" for key in FACTS[:-1] if facts.get(key) is not None]
    if facts.get(FACTS[-1]) is not None:
        parts.append(f"99 of 100 wait at most {duration(facts[FACTS[-1]])}")
    return ", ".join(part for part in parts if part)


def duration(us: int) -> str:
    """Some microseconds, in milliseconds from a thousand on."""
    return f"{us} µs" if us < 1_000 else f"{us / 1_000:.1f} ms"


def _place(facts: dict[str, Any]) -> list[str]:
    return [str(facts[key]) for key in ("kind", "region", "partition") if facts.get(key)]


def svg(found: Found) -> str:
    """The map as a picture."""
    rows = layers(found)
    width = MARGIN * 2 + max((len(names) for _, names in rows), default=1) * (BOX_W + GAP_X)
    height = MARGIN * 2 + len(rows) * (BOX_H + GAP_Y)
    places: dict[str, tuple[int, int]] = {}
    for depth, (_, names) in enumerate(rows):
        left = (width - len(names) * (BOX_W + GAP_X) + GAP_X) // 2
        for at, name in enumerate(names):
            places[name] = (left + at * (BOX_W + GAP_X), MARGIN + depth * (BOX_H + GAP_Y))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#456"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    drawn = [link for link in found.links if link["from"] in places and link["to"] in places]
    parts += [_line(link, places[link["from"]], places[link["to"]]) for link in drawn]
    parts += [_box(name, found.nodes[name], *places[name]) for name in places]
    parts += [
        f'<text x="{MARGIN // 4}" y="{MARGIN + depth * (BOX_H + GAP_Y) - 8}" font-size="13" fill="#456">'
        f"{escape(tier)} tier</text>"
        for depth, (tier, _) in enumerate(rows)
        if tier
    ]
    return "\n".join([*parts, "</svg>", ""])


def _line(link: dict[str, Any], here: tuple[int, int], there: tuple[int, int]) -> str:
    x1, x2 = here[0] + BOX_W // 2, there[0] + BOX_W // 2
    if here[1] == there[1]:
        y1 = y2 = here[1] + BOX_H // 2
        x1, x2 = (here[0] + BOX_W, there[0]) if here[0] < there[0] else (here[0], there[0] + BOX_W)
    else:
        y1, y2 = (here[1], there[1] + BOX_H) if here[1] > there[1] else (here[1] + BOX_H, there[1])
    dash = "" if link["state"] == "operational" else ' stroke-dasharray="6 4"'
    label = escape(f"{link.get('role') or link['name']}: {len(link['routes'])} routes")
    tip = escape("\n".join(link["routes"]) or "no routes")
    return (
        f'<g><line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#456" stroke-width="2"{dash}'
        ' marker-end="url(#tip)"/>'
        f'<text x="{(x1 + x2) // 2 + 6}" y="{(y1 + y2) // 2}" font-size="11" fill="#456">{label}</text>'
        f"<title>{tip}</title></g>"
    )


def _box(name: str, facts: dict[str, Any], x: int, y: int) -> str:
    fill = "#fdd" if "error" in facts else "#eef5ff"
    second = str(facts.get("error") or facts.get("url", ""))[:30]
    third = ", ".join(
        [*_place(facts), *(f"{facts[key]} {key}" for key in ("queues", "ready") if facts.get(key) is not None)]
    )
    return (
        f'<g><rect x="{x}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="8" fill="{fill}" stroke="#456"/>'
        f'<text x="{x + 10}" y="{y + 22}" font-size="15" font-weight="bold">{escape(name)}</text>'
        f'<text x="{x + 10}" y="{y + 40}" font-size="11">{escape(second)}</text>'
        f'<text x="{x + 10}" y="{y + 55}" font-size="11">{escape(third)}</text>'
        f"<title>{escape(_facts(facts))}</title></g>"
    )
