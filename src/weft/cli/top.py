"""`weft top`: a node, live in the terminal.

Owns the screen: the node's figures above, its queues below, the busiest first, drawn anew every few seconds. Everything
is asked over AMQP.
It must never ask for more rows than fit on the screen.
Rule: `rich` draws it and is an extra of its own: `pip install 'weft[top]'`.
"""

from __future__ import annotations

import argparse
import asyncio
from time import monotonic
from typing import Any

from weft.cli import remote
from weft.cli.options import seconds
from weft.client import connect
from weft.client.management import Management
from weft.model.errors import ConfigError

PAUSE_S = 2.0
TYPES_MAX = 3
HEAD_LINES = 9 + TYPES_MAX
COLUMNS = ("queue", "ready", "unsettled", "consumers", "in/s", "out/s", "ack/s", "wait p50", "wait p99", "oldest")
SORTS = {
    "ready": "ready",
    "in": "published",
    "out": "delivered",
    "wait": "time_in_queue_p99_us",
    "oldest": "oldest_ms",
    "consumers": "consumers",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_node(parser)
    parser.add_argument("--sort", choices=tuple(SORTS), default="ready", help="which queues are shown first")
    parser.add_argument("--pause", type=seconds, default=PAUSE_S, metavar="S", help="seconds between two looks")
    parser.add_argument("--once", action="store_true", help="look twice, print, end")


def run(options: argparse.Namespace) -> int:
    """Draw until it is interrupted."""
    try:
        import rich  # noqa: F401 - only to say early what is missing
    except ImportError:
        raise ConfigError("this needs rich: pip install 'weft[top]'") from None
    try:
        return asyncio.run(_run(options))
    except KeyboardInterrupt:
        return 0


async def _run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    async with connect(options.url, **remote.patience(options)) as fabric:
        view = View(Management(fabric), SORTS[options.sort])
        await view.look(console.height)
        if options.once:
            await asyncio.sleep(min(options.pause, 1.0))
            await view.look(console.height)
            console.print(view.draw())
            return 0
        with Live(view.draw(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(options.pause)
                await view.look(console.height)
                live.update(view.draw(), refresh=True)


class View:
    """What is on the screen."""

    def __init__(self, management: Management, sort: str) -> None:
        self._management = management
        self._sort = sort
        self._node: dict[str, Any] = {}
        self._queues: list[dict[str, Any]] = []
        self._before: dict[str, dict[str, Any]] = {}
        self._at = monotonic()
        self._span = 1.0

    async def look(self, height: int) -> None:
        """Ask the node."""
        self._before = {row["name"]: row for row in (self._node, *self._queues) if row}
        rows = max(height - HEAD_LINES, 5)
        self._node = await self._management.read("node")
        self._queues = await self._management.query("queue", sort=self._sort, descending=True, count=rows)
        now = monotonic()
        self._span, self._at = max(now - self._at, 0.001), now

    def _rate(self, row: dict[str, Any], name: str) -> str:
        before = self._before.get(row["name"])
        return "-" if before is None else f"{max(row[name] - before.get(name, 0), 0) / self._span:,.0f}"

    def draw(self) -> Any:
        """The screen."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        node = self._node
        state = node["state"] + "".join(f" {alarm.upper()}" for alarm in node.get("alarms", {}))
        head = Text(f"{node['name']}  {state}  up {node['uptime_s']} s  ", style="bold")
        head.append(f"{node['connections']} connections  {node['queues']} queues  {node['consumers']} consumers\n")
        head.append(f"ready {node['ready']:,}  unsettled {node['unsettled']:,}  ")
        rates = (("in", "published"), ("out", "delivered"), ("ack", "settled"), ("unroutable", "unroutable"))
        head.append("  ".join(f"{word} {self._rate(node, name)}/s" for word, name in rates))
        head.append(f"\nmemory {node['memory_bytes'] / 1e6:,.0f} of {node['memory_bytes_max'] / 1e6:,.0f} MB  ")
        for word, name in (("wait", "time_in_queue"), ("settle", "settle"), ("confirm", "confirm")):
            head.append(f" {word} p50 {_time(node.get(f'{name}_p50_us'))} p99 {_time(node.get(f'{name}_p99_us'))} ")
        for name, row in _slowest(node.get("types", {})):
            head.append(f"\n{name}: wait p50 {_time(row['p50_us'])} p99 {_time(row['p99_us'])} of {row['count']:,}")
        table = Table(box=None, header_style="bold", expand=True)
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "queue" else "right", no_wrap=True)
        for row in self._queues:
            table.add_row(*self._cells(row))
        return Group(head, table)

    def _cells(self, row: dict[str, Any]) -> list[str]:
        rates = [self._rate(row, name) for name in ("published", "delivered", "settled")]
        waits = [_time(row.get(f"time_in_queue_{share}_us")) for share in ("p50", "p99")]
        oldest = row.get("oldest_ms")
        counts = [f"{row[name]:,}" for name in ("ready", "unsettled", "consumers")]
        return [row["name"], *counts, *rates, *waits, _time(None if oldest is None else oldest * 1000)]


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
