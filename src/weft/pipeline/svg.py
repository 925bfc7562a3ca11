"""Plots as SVG text: lines, bars and a map, enough for a report and nothing more.

Owns geometry and markup. Plain numbers and names come in, one `<svg>` element goes out.
It must never read data, load a font or run a script: a report must open anywhere, for ever.
Colours come from CSS classes `s0` … `s7` of the page, so that a plot follows light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 32, 16, 36
SERIES_MAX = 8
"""Colours of the page; more lines than that nobody can tell apart."""

TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="15" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    ' markerUnits="userSpaceOnUse"><path class="tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>'
)
"""The head of an arrow."""

Points = Sequence[tuple[float, float]]


def lines(series: Mapping[str, Points], *, unit: str, label: Callable[[float], str], dashed: Sequence[str] = ()) -> str:
    """Lines over a common x axis; names in `dashed` are drawn so."""
    shown = dict(list(series.items())[:SERIES_MAX])
    points = [point for line in shown.values() for point in line]
    if not points:
        return "<p class=none>nothing to show</p>"
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = _round_up(max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low) / (high - low) if high > low else 0.5
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)

    drawn = [_axes(top, unit), _x_labels([(place(x, 0)[0], label(x)) for x in _spread(low, high)])]
    for number, (name, line) in enumerate(shown.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in sorted(line)))
        style = ' stroke-dasharray="6 4"' if name in dashed else ""
        drawn.append(
            f'<polyline class="line s{number}" points="{path}"{style}><title>{escape(name)}</title></polyline>'
        )
        if len(line) == 1:
            x, y = place(*line[0])
            drawn.append(f'<circle class="dot s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    return _svg(drawn, HEIGHT) + _legend(shown)


def bars(groups: Sequence[tuple[str, Mapping[str, float]]], *, unit: str) -> str:
    """Groups of bars, each group with the same names in it."""
    values = [value for _, group in groups for value in group.values()]
    if not values:
        return "<p class=none>nothing to show</p>"
    top = _round_up(max(values))
    names = list(groups[0][1])
    wide = (WIDTH - LEFT - RIGHT) / len(groups)
    bar = min(48.0, wide * 0.8 / len(names))
    drawn = [_axes(top, unit)]
    labels = []
    for at, (label, group) in enumerate(groups):
        middle = LEFT + wide * (at + 0.5)
        labels.append((middle, label))
        for number, name in enumerate(names):
            height = group.get(name, 0.0) / top * (HEIGHT - TOP - BOTTOM)
            x = middle + (number - len(names) / 2) * bar
            title = escape(f"{label} {name}: {short(group.get(name, 0.0))}")
            drawn.append(
                f'<rect class="bar s{number}" x="{x:.1f}" y="{HEIGHT - BOTTOM - height:.1f}" width="{bar - 2:.1f}"'
                f' height="{height:.1f}"><title>{title}</title></rect>'
            )
    drawn.append(_x_labels(labels))
    return _svg(drawn, HEIGHT) + _legend(dict.fromkeys(names, ()))


def network(edges: Sequence[tuple[str, str, float]], marked: Sequence[str] = ()) -> str:
    """Nodes on a circle, an edge as thick as what flows over it; marked nodes stand out."""
    nodes = sorted({name for source, target, _ in edges for name in (source, target)})
    if not nodes:
        return "<p class=none>no path of more than one node was seen</p>"
    size, radius = 520, 190
    places = {
        name: (WIDTH / 2 + radius * 1.3 * math.sin(turn), size / 2 - radius * math.cos(turn))
        for name, turn in ((name, 2 * math.pi * number / len(nodes)) for number, name in enumerate(nodes))
    }
    most = max(weight for *_, weight in edges) or 1.0
    drawn = [TIP]
    for source, target, weight in edges:
        (x1, y1), (x2, y2) = places[source], places[target]
        drawn.append(
            f'<line class="edge" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" marker-end="url(#tip)"'
            f' stroke-width="{1 + 5 * weight / most:.1f}"><title>{escape(source)} to {escape(target)}:'
            f" {short(weight)} messages</title></line>"
        )
    for name, (x, y) in places.items():
        kind = "node marked" if name in marked else "node"
        drawn.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
        drawn.append(f'<text x="{x:.1f}" y="{y - 15:.1f}" text-anchor="middle">{escape(name)}</text>')
    return _svg(drawn, size)


def short(value: float | None) -> str:
    """A number as people read it: 12, 3.4 k, 5.6 M."""
    if value is None:
        return "–"
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            scale = 1e3 if suffix == " k" else limit
            return f"{value / scale:.3g}{suffix}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.3g}"


def _svg(parts: Sequence[str], height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _axes(top: float, unit: str) -> str:
    drawn = []
    for step in range(5):
        y = HEIGHT - BOTTOM - step / 4 * (HEIGHT - TOP - BOTTOM)
        drawn.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        text = f"{short(top * step / 4)}{' ' + unit if step == 4 else ''}"
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    return "".join(drawn)


def _x_labels(labels: Sequence[tuple[float, str]]) -> str:
    drawn = (f'<text x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(text)}</text>' for x, text in labels)
    return f'<g class="x">{"".join(drawn)}</g>'


def _legend(series: Mapping[str, object]) -> str:
    keys = "".join(f'<span><i class="key s{number}"></i>{escape(name)}</span>' for number, name in enumerate(series))
    return f"<p class=legend>{keys}</p>"


def _spread(low: float, high: float, steps: int = 5) -> list[float]:
    return [low] if high <= low else [low + (high - low) * step / steps for step in range(steps + 1)]


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.999)
