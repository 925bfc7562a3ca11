"""The screen of `weft top`: figures of a node, its links, other nodes, and its queues.

Owns what is shown and how fast it changed since the look before. Rows come in, something that `rich` prints goes out.
It must not ask anybody, nor let a name from outside steer the terminal.
Rule: a rate is over the time between two looks; what was not there before has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from weft.cli.options import printable
from weft.client.management import Row

TYPES_MAX = 3
LINKS_MAX = 8
NODES_MAX = 32
HEAD_LINES = 9 + TYPES_MAX
TABLE_LINES = 2
"""A head, and a line between it and what is above."""
QUEUES_MIN = 5
SORTS = {
    "ready": "ready",
    "in": "published",
    "out": "delivered",
    "wait": "time_in_queue_p99_us",
    "age": "oldest_ms",
    "consumers": "consumers",
}
"""What queues are sorted by, and the attribute for that."""
QUEUES = ("queue", "ready", "unsettled", "consumers", "in/s", "out/s", "ack/s", "wait p50", "wait p99", "age")
LINKS = ("link", "to", "state", "routes", "carried/s", "answer p99")
NODES = ("node", "state", "connections", "queues", "ready", "in/s", "out/s", "wait p99")


class Screen:
    """What was seen last, and before."""

    def __init__(self, sort: str) -> None:
        self.sort = sort
        self.trouble = ""
        """Why nothing newer is shown."""
        self._node: Row = {}
        self._tables: dict[str, Sequence[Row]] = {}
        self._before: dict[tuple[str, str], Row] = {}
        self._at = monotonic()
        self._span = 1.0

    @staticmethod
    def queues_max(height: int, links: int, nodes: int) -> int:
        """How many queues fit beside so many links and other nodes."""
        taken = HEAD_LINES + sum(count + TABLE_LINES for count in (links, nodes) if count)
        return max(height - taken, QUEUES_MIN)

    def show(
        self, node: Row, queues: Sequence[Row], links: Sequence[Row], routes: Sequence[Row], nodes: Sequence[Row]
    ) -> None:
        """A look at everything."""
        self._before = {
            (table, row["name"]): row
            for table, rows in (("head", (self._node,)), *self._tables.items())
            for row in rows
            if row
        }
        self._node = node
        self._tables = {"nodes": nodes, "links": [_link(row, routes) for row in links], "queues": queues}
        now = monotonic()
        self._span, self._at = max(now - self._at, 0.001), now

    def _rate(self, table: str, row: Row, name: str) -> str:
        before = self._before.get((table, row["name"]))
        return "-" if before is None else f"{max(row[name] - before.get(name, 0), 0) / self._span:,.0f}"

    def draw(self) -> Any:
        """All of it."""
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [self._head()]
        if self.trouble:
            parts.append(Text(f"no answer, shown is what was: {printable(self.trouble)}", style="bold red"))
        cells = {"nodes": (NODES, self._node_cells), "links": (LINKS, self._link_cells)}
        for table, (columns, make) in cells.items():
            if self._tables[table]:
                parts.append(_table(columns, [make(row) for row in self._tables[table]]))
        parts.append(_table(QUEUES, [self._queue_cells(row) for row in self._tables["queues"]]))
        words = "  ".join(f"{sort[0]} {sort}" for sort in SORTS)
        parts.append(Text(f"by {self.sort}; keys: {words}  q quit", style="dim"))
        return Group(*parts)

    def _head(self) -> Any:
        from rich.text import Text

        node = self._node
        head = Text(f"{printable(node['name'])}  {_state(node)}  up {node['uptime_s']} s  ", style="bold")
        head.append(f"{node['connections']} connections  {node['queues']} queues  {node['consumers']} consumers\n")
        head.append(f"ready {node['ready']:,}  unsettled {node['unsettled']:,}  ")
        rates = (("in", "published"), ("out", "delivered"), ("ack", "settled"), ("unroutable", "unroutable"))
        head.append("  ".join(f"{word} {self._rate('head', node, name)}/s" for word, name in rates))
        head.append(f"\nmemory {node['memory_bytes'] / 1e6:,.0f} of {node['memory_bytes_max'] / 1e6:,.0f} MB  ")
        for word, name in (("wait", "time_in_queue"), ("settle", "settle"), ("confirm", "confirm")):
            head.append(f" {word} p50 {_time(node.get(f'{name}_p50_us'))} p99 {_time(node.get(f'{name}_p99_us'))} ")
        for name, row in _slowest(node.get("types", {})):
            words = f"wait p50 {_time(row['p50_us'])} p99 {_time(row['p99_us'])} of {row['count']:,}"
            head.append(f"\n{printable(name)}: {words}")
        return head

    def _node_cells(self, row: Row) -> list[str]:
        if "trouble" in row:
            return [row["name"], f"no answer: {row['trouble']}", *[""] * (len(NODES) - 2)]
        counts = [f"{row[name]:,}" for name in ("connections", "queues", "ready")]
        rates = [self._rate("nodes", row, name) for name in ("published", "delivered")]
        return [row["name"], _state(row), *counts, *rates, _time(row.get("time_in_queue_p99_us"))]

    def _link_cells(self, row: Row) -> list[str]:
        rate = self._rate("links", row, "carried")
        return [row["name"], row["to"], row["state"], str(row["routes"]), rate, _time(row["slowest_us"])]

    def _queue_cells(self, row: Row) -> list[str]:
        rates = [self._rate("queues", row, name) for name in ("published", "delivered", "settled")]
        waits = [_time(row.get(f"time_in_queue_{share}_us")) for share in ("p50", "p99")]
        oldest = row.get("oldest_ms")
        counts = [f"{row[name]:,}" for name in ("ready", "unsettled", "consumers")]
        return [row["name"], *counts, *rates, *waits, _time(None if oldest is None else oldest * 1000)]


def _link(row: Row, routes: Sequence[Row]) -> Row:
    """A link with what its routes carried."""
    own = [route for route in routes if route["link"] == row["name"]]
    return {
        "name": row["name"],
        "to": row.get("peer") or row.get("address") or "",
        "state": row["state"],
        "routes": len(own),
        "carried": sum(route.get("carried") or 0 for route in own),
        "slowest_us": max(
            (route["round_trip_p99_us"] for route in own if route.get("round_trip_p99_us")), default=None
        ),
    }


def _state(node: Row) -> str:
    alarms = "".join(f" {alarm.upper()}" for alarm in node.get("alarms", {}))
    waiting = node.get("connections_blocked")
    return str(node["state"]) + alarms + (f" {waiting} BLOCKED" if waiting else "")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", expand=True)
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at == 0 or column in ("to", "state") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _slowest(types: dict[str, dict[str, int]]) -> list[tuple[str, dict[str, int]]]:
    """The types of messages that wait longest."""
    return sorted(types.items(), key=lambda pair: pair[1]["p99_us"], reverse=True)[:TYPES_MAX]


def _time(us: int | None) -> str:
    if us is None:
        return "-"
    for unit, scale in (("s", 1_000_000), ("ms", 1_000)):
        if us >= scale:
            return f"{us / scale:.3g} {unit}"
    return f"{us} µs"
