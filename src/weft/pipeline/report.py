"""The report: what the gold tables say, as one HTML page for people and as a few lines for a terminal.

Owns the choice of what is shown and the words beside it. Gold tables come in; text goes out. Spark is not needed.
It must never load anything from elsewhere: the page is one file, and opens in ten years as it does today.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from weft.pipeline import svg
from weft.pipeline.store import Store
from weft.pipeline.svg import short
from weft.pipeline.topology import articulation_points

Row = dict[str, Any]
TABLE_ROWS_MAX = 20
LINES_MAX = 6

STYLE = """
:root{--ink:#1b1f24;--paper:#fff;--soft:#6a737d;--rule:#e1e4e8;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ink:#dfe3e8;--paper:#14171a;--soft:#8b949e;--rule:#30363d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:820px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em;border-top:1px solid var(--rule);padding-top:.8em}
p.note,.none,.legend{color:var(--soft)}svg{width:100%;height:auto}svg text{font-size:12px;fill:var(--soft)}
.grid{stroke:var(--rule)}.line{fill:none;stroke:var(--c);stroke-width:2}
.edge{stroke:var(--soft);opacity:.6}.tip{fill:var(--soft)}
.node{fill:#2f6fde}.node.marked{fill:#d1453b}
.s0{--c:#2f6fde}.s1{--c:#e08a1e}.s2{--c:#2a9d5c}.s3{--c:#d1453b}
.s4{--c:#8256d0}.s5{--c:#17a2b8}.s6{--c:#b5651d}.s7{--c:#7a7a7a}
.bar,.dot{fill:var(--c);stroke:none}
.legend span{display:inline-block;margin-right:1em}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.4em;background:var(--c)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:.25em .6em;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}
.words{text-align:left}svg{overflow:visible}
@media(max-width:560px){svg text{font-size:22px}.x text:nth-child(even){display:none}.figures{gap:1em 2em}}
.figures{display:flex;gap:2em;flex-wrap:wrap}.figures b{display:block;font-size:1.6em}
"""


def html(store: Store) -> str:
    """The page."""
    sections = (_figures, _rates, _latency, _sizes, _paths, _suspects, _forecasts, _map)
    body = "".join(section(store) for section in sections)
    now = datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    title = "<!doctype html><html lang=en><meta charset=utf-8><title>weft pipeline</title>"
    view = '<meta name=viewport content="width=device-width,initial-scale=1">'
    head = f"<h1>What went through the fabric</h1><p class=note>from {escape(store.url)}, written {now}</p>"
    return f"{title}{view}<style>{STYLE}</style>{head}{body}</html>\n"


def text(store: Store, printable: Callable[[str], str] = str) -> str:
    """The same in a few lines; names are others' words, and `printable` makes them harmless where they are shown."""
    told = [f"{name + ':':<26}{printable(value)}" for name, value in _summary(store)]
    rows = _by_address(store.gold_rows("traffic"))
    if rows:
        told += ["", f"{'address':<32}{'messages':>10}{'per s':>10}{'p50 ms':>9}{'p99 ms':>9}"]
        told += [
            f"{printable(name)[:31]:<32}{short(row['messages']):>10}{short(row['per_s']):>10}"
            f"{short(row['p50']):>9}{short(row['p99']):>9}"
            for name, row in rows[:10]
        ]
    for row in store.gold_rows("forecasts"):
        if row["action"] != "keep":
            told.append(f"scale {printable(row['queue'])}: {row['consumers']} to {row['recommended']} workers")
    return "\n".join(told) + "\n"


def _summary(store: Store) -> list[tuple[str, str]]:
    traffic = store.gold_rows("traffic")
    suspects, redundancy = store.gold_rows("suspects"), store.gold_rows("redundancy")
    paths, edges = store.gold_rows("paths"), store.gold_rows("edges")
    points = articulation_points((row["source"], row["target"]) for row in edges)
    told = [
        ("messages", short(sum(row["messages"] for row in traffic))),
        ("bytes", short(sum(row["bytes"] for row in traffic))),
        ("lost on some path", short(sum(row["lost"] for row in paths))),
        ("lost on every path", short(sum(row["failed"] for row in redundancy))),
        ("duplicates", short(sum(row["duplicates"] for row in paths))),
        ("suspect accounts", short(len(suspects))),
        ("single points of failure", ", ".join(points) or "none seen"),
    ]
    return told if traffic or paths or suspects or edges else []


def _figures(store: Store) -> str:
    cells = "".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in _summary(store))
    return f"<div class=figures>{cells}</div>" if cells else "<p class=none>No run has left anything here yet.</p>"


def _name(row: Row) -> str:
    """Where messages went, for people."""
    return f"{row['exchange']}/{row['address']}" if row["exchange"] else row["address"] or "(no address)"


def _by_address(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Sums per address; percentiles of windows cannot be summed, so the worst window's are shown."""
    sums: dict[str, Row] = {}
    for row in rows:
        name = _name(row)
        sums.setdefault(name, {"messages": 0, "bytes": 0, "per_s": 0.0, "p50": None, "p99": None, "windows": set()})
        known = sums[name]
        known["messages"] += row["messages"]
        known["bytes"] += row["bytes"]
        known["windows"].add((row["window_start"], row["window_end"]))
        for short_name in ("p50", "p99"):
            value = row[f"latency_{short_name}_ms"]
            known[short_name] = max(
                (number for number in (known[short_name], value) if number is not None), default=None
            )
    for known in sums.values():
        seconds = sum((end - start).total_seconds() for start, end in known["windows"])
        known["per_s"] = known["messages"] / seconds if seconds else 0.0
    return sorted(sums.items(), key=lambda item: -item[1]["messages"])


def _series(rows: Sequence[Row], value: Callable[[Row], float | None], merge: Callable[..., float]) -> dict[str, Any]:
    """Values over time for the busiest addresses."""
    busy = [name for name, _ in _by_address(rows)[:LINES_MAX]]
    series: dict[str, dict[float, float]] = {name: defaultdict(float) for name in busy}
    for row in rows:
        name, found = _name(row), value(row)
        if name in series and found is not None:
            at = row["window_start"].timestamp()
            series[name][at] = merge(series[name][at], found)
    return {name: sorted(points.items()) for name, points in series.items()}


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%H:%M:%S")


def _rates(store: Store) -> str:
    series = _series(store.gold_rows("traffic"), lambda row: float(row["messages_per_s"]), lambda a, b: a + b)
    rows = [
        (name, short(row["messages"]), short(row["bytes"]), short(row["per_s"]), short(row["p50"]), short(row["p99"]))
        for name, row in _by_address(store.gold_rows("traffic"))
    ]
    head = ("address", "messages", "bytes", "per s", "p50 ms", "p99 ms")
    return _section("Rates", "messages per second, by address", svg.lines(series, unit="/s", label=_clock)) + _table(
        head, rows
    )


def _latency(store: Store) -> str:
    series = _series(store.gold_rows("traffic"), lambda row: row["latency_p99_ms"], max)
    note = "99th percentile from creation to arrival, the worst node and type of each window"
    return _section("Latency", note, svg.lines(series, unit="ms", label=_clock))


def _sizes(store: Store) -> str:
    groups = [
        (f"≤ {short(row['size_class'])} B", {name: row[f"latency_{name}_ms"] or 0.0 for name in ("p50", "p90", "p99")})
        for row in store.gold_rows("sizes")
    ]
    return _section("Latency by size", "milliseconds, by size of the body", svg.bars(groups, unit="ms"))


def _paths(store: Store) -> str:
    rows = [
        (row["path"] or "–", row["sender"], short(row["expected"]), short(row["lost"]), short(row["duplicates"]),
         f"{row['p_loss']:.2g} ({row['p_loss_low']:.1g} … {row['p_loss_high']:.1g})")
        for row in store.gold_rows("paths")
    ]  # fmt: skip
    told = "".join(
        f"<p>{escape(row['sender'])}: {short(row['failed'])} of {short(row['expected'])} messages came over none of"
        f" {row['paths']} paths, P = {row['p_failure']:.2g}; independent paths would give"
        f" {row['p_failure_predicted']:.2g}."
        f" {'That fits.' if row['independent'] else '<b>That does not fit: these paths fail together.</b>'}</p>"
        for row in store.gold_rows("redundancy")
    )
    head = ("path", "sender", "sent", "lost", "doubled", "P(loss), 95 %")
    return _section("Losses", "numbered messages, by the path they took", told) + _table(head, rows)


def _suspects(store: Store) -> str:
    found = sorted(store.gold_rows("suspects"), key=lambda row: -row["score"])
    rows = [
        (row["account"], ", ".join(row["reasons"]), f"{row['score']:.1f}", _time(row["window_end"])) for row in found
    ]
    return _section("Risk", "accounts that look stolen", "") + _table(("account", "why", "score", "until"), rows)


def _forecasts(store: Store) -> str:
    series: dict[str, Any] = {}
    for row in store.gold_rows("rates"):
        series.setdefault(row["queue"], []).append((row["time"].timestamp(), row["arrival_per_s"]))
    dashed = []
    for row in store.gold_rows("forecasts"):
        now, name = row["time"].timestamp(), f"{row['queue']} ahead"
        dashed.append(name)
        series[name] = [(now, row["arrival_per_s"]), (now + 120, row["arrival_forecast_per_s"])]
    rows = [
        (row["queue"], row["action"], f"{row['consumers']} → {row['recommended']}", short(row["depth"]),
         short(row["depth_forecast"]), short(row["arrival_forecast_per_s"]))
        for row in store.gold_rows("forecasts")
    ]  # fmt: skip
    head = ("queue", "advice", "workers", "depth", "depth ahead", "arrivals ahead")
    plot = svg.lines(series, unit="/s", label=_clock, dashed=dashed)
    return _section("Capacity", "arrivals per queue, and two minutes ahead", plot) + _table(head, rows)


def _map(store: Store) -> str:
    edges = [(row["source"], row["target"], float(row["messages"])) for row in store.gold_rows("edges")]
    points = articulation_points((source, target) for source, target, _ in edges)
    note = (
        f"who passes messages to whom; without {', '.join(points)} it falls apart" if points else "who passes messages"
    )
    return _section("Map", note, svg.network(edges, points))


def _time(value: datetime | None) -> str:
    return value.strftime("%Y-%m-%d %H:%M") if value else "–"


def _section(title: str, note: str, inside: str) -> str:
    return f"<h2>{escape(title)}</h2><p class=note>{escape(note)}</p>{inside}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "<p class=none>none seen</p>"
    shown = rows[:TABLE_ROWS_MAX]
    # Numbers end below each other, words begin so.
    kinds = [" class=words" if any(row[at][:1].isalpha() for row in shown) or not at else "" for at in range(len(head))]
    cells = ["".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in shown]
    more = f"<p class=none>and {len(rows) - TABLE_ROWS_MAX} more</p>" if len(rows) > TABLE_ROWS_MAX else ""
    titles = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, head, strict=True))
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<div class=wide><table><tr>{titles}</tr>{body}</table></div>{more}"
