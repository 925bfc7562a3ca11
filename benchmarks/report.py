"""Tell the result: a table for people, a dated page for the record, a plot of the round trips.

Owns the wording and the drawing. Rows and facts about the machine come in; text, Markdown and SVG go out. It must
never run anything that is measured. The plot is written by hand as SVG, so that no plotting library is needed.
"""

from __future__ import annotations

import math
import os
import platform
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench import Row
from brokers import TITLES

COLUMNS = (
    "weft", "rabbitmq", "proton", "relay", "bare", "parquet", "kafka", "tuples", "free", "aio_pika", "pika",
    "qpid_proton",
)  # fmt: skip
COLORS = {"weft": "#0b6e4f", "rabbitmq": "#d1495b", "relay": "#8d99ae"}
VERDICTS = {True: "met", False: "MISSED", None: "–"}

METHOD = """\
Every broker is loaded by the same programs (`benchmarks/load`), over loopback TCP, on default settings but for ports,
folders and limits of memory and disk. Brokers take turns within each repetition; figures are medians, the range over
the repetitions stands in brackets. *CPU* is user and system time of the broker's process, divided by the messages
that went through. A run during which something else used more than 0.15 cores is repeated, up to three
times; if none was quiet the least disturbed stands, and the page says so. The plain relay is a process that only
copies bytes: the floor under any broker. Pinned measures put the broker and the clients on one core.
"""


def number(value: float) -> str:
    """Three digits that matter, thousands apart."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def present(rows: list[Row]) -> list[str]:
    return [name for name in COLUMNS if any(name in row.figures for row in rows)]


def cells(row: Row, names: list[str], *, ranges: bool = False) -> list[str]:
    result = [row.what]
    for name in names:
        cell = f"{number(row.figures[name])} {row.unit}" if name in row.figures else ""
        if ranges and name in row.spread and len(set(row.spread[name])) > 1:
            low, high = row.spread[name]
            cell += f" ({number(low)}–{number(high)})"
        result.append(cell)
    return [*result, row.target, VERDICTS[row.met] if row.target else ""]


def text_table(rows: list[Row]) -> str:
    names = present(rows)
    table = [["", *(TITLES[name] for name in names), "target", ""], *(cells(row, names) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    lines = []
    for line in table:
        middle = (cell.rjust(width) for cell, width in zip(line[1:-2], widths[1:-2], strict=True))
        lines.append("  ".join([line[0].ljust(widths[0]), *middle, line[-2].ljust(widths[-2]), line[-1]]).rstrip())
    return "\n".join(lines)


def markdown_table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] + ["--:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *lines])


def summary(rows: list[Row]) -> str:
    judged = [row for row in rows if row.target]
    missed = [row.what.strip() for row in judged if row.met is False]
    unknown = sum(row.met is None for row in judged)
    words = f"{sum(row.met is True for row in judged)} of {len(judged)} targets met"
    if unknown:
        words += f", {unknown} cannot be judged without RabbitMQ (apt-get install rabbitmq-server)"
    return words + (f"; missed: {'; '.join(missed)}" if missed else "")


def noise(disturbed: list[tuple[str, float]], runs: int) -> str:
    """How much of the result something else had a hand in; empty if nothing did."""
    if not disturbed:
        return ""
    cores = statistics.median(other for _, other in disturbed)
    return f"{len(disturbed)} of {runs} runs were disturbed: something else kept {cores:.2f} cores busy (median)"


@dataclass(frozen=True)
class Result:
    """All that a page of results tells."""

    date: str
    rows: list[Row]
    round_trips: dict[str, dict[int, tuple[float, float]]]
    noise: str
    failures: list[str]
    repetitions: int
    secs: int

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        page = folder / f"{self.date}.md"
        if self.round_trips:
            (folder / f"{self.date}-round-trips.svg").write_text(plot(self.round_trips))
        page.write_text(self.markdown())
        return page

    def markdown(self) -> str:
        names = present(self.rows)
        head = ["", *(TITLES[name] for name in names), "target", "verdict"]
        parts = [
            f"# Speed and memory, {self.date}",
            f"{summary(self.rows)}." + (f" {self.noise}." if self.noise else ""),
            markdown_table(head, [cells(row, names, ranges=True) for row in self.rows]),
            *self._round_trip_part(),
            "## Machine and versions",
            "\n".join(f"- {name}: {value}" for name, value in facts().items()),
            f"## Method\n\n{METHOD}\n{self.repetitions} repetitions, {self.secs} s each. Again: `make bench`.",
        ]
        if self.failures:
            parts.append("## What could not be measured\n\n" + "\n".join(f"- {line}" for line in self.failures))
        return "\n\n".join(parts) + "\n"

    def _round_trip_part(self) -> list[str]:
        if not self.round_trips:
            return []
        names = [name for name in COLUMNS if name in self.round_trips]
        sizes = sorted(self.round_trips[names[0]])
        head = ["bytes", *(f"{TITLES[name]} {share}, µs" for name in names for share in ("p50", "p99"))]
        lines = [
            [f"{size:,}", *(number(us) for name in names for us in self.round_trips[name][size])] for size in sizes
        ]
        return [
            "## Round trip through two queues, AMQP 0-9-1, everything on one core",
            markdown_table(head, lines),
            f"![round trips by size]({self.date}-round-trips.svg)",
        ]


def plot(series: dict[str, dict[int, tuple[float, float]]]) -> str:
    """Round trip (p50, p99) against message size, both on logarithmic axes."""
    width, height, left, top, right, bottom = 760, 420, 70, 50, 130, 60
    sizes = sorted({size for points in series.values() for size in points})
    values = [value for points in series.values() for both in points.values() for value in both]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))

    def x(size: float) -> float:
        return left + (width - left - right) * (sizes.index(int(size)) / max(1, len(sizes) - 1))

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - math.log(value / low) / math.log(high / low))

    def label(at_x: float, at_y: float, words: str, anchor: str = "middle", color: str = "#333") -> str:
        return f'<text x="{at_x:.0f}" y="{at_y:.0f}" text-anchor="{anchor}" fill="{color}">{words}</text>'

    parts = [label(left, 24, "Round trip through two queues, p50 and (dashed) p99, everything on one core", "start")]
    decade = low
    while decade <= high:
        for step in (1, 2, 5):
            if decade * step <= high:
                at = y(decade * step)
                parts.append(f'<line x1="{left}" x2="{width - right}" y1="{at:.0f}" y2="{at:.0f}" stroke="#ddd"/>')
                parts.append(label(left - 8, at + 4, f"{decade * step:,.0f}", "end"))
        decade *= 10
    parts.append(label(left - 8, top - 12, "µs", "end"))
    names = {size: f"{size:,}" if size < 1024 else f"{size // 1024} KiB" for size in sizes}
    parts += [label(x(size), height - bottom + 20, name) for size, name in names.items()]
    parts.append(label((left + width - right) / 2, height - 12, "bytes of body"))
    for name, points in series.items():
        color = COLORS[name]
        for share, more in ((0, ""), (1, ' stroke-dasharray="5 4"')):
            line = " ".join(f"{x(size):.1f},{y(points[size][share]):.1f}" for size in sorted(points))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"{more}/>')
        parts += [f'<circle cx="{x(size):.1f}" cy="{y(points[size][0]):.1f}" r="3" fill="{color}"/>' for size in points]
        last = max(points)
        parts.append(label(x(last) + 10, y(points[last][0]) + 4, TITLES[name], "start", color))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def facts() -> dict[str, str]:
    """The machine and the versions, as far as the machine tells them."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    found = {
        "machine": f"{model.group(1) if model else platform.machine()}, {os.cpu_count()} cores, "
        f"{int(memory.group(1)) / 1e6 if memory else 0:.0f} GB",
        "kernel": platform.release(),
        "weft": _output([sys.executable, "-m", "weft", "--version"]).removeprefix("weft ")
        + f" on Python {platform.python_version()}",
    }
    for name, package in (
        ("RabbitMQ", "rabbitmq-server"),
        ("Erlang", "erlang-base"),
        ("librabbitmq", "librabbitmq4"),
        ("Qpid Proton", "libqpid-proton11"),
    ):
        version = _output(["dpkg-query", "-W", "-f", "${Version}", package])
        if version:
            found[name] = f"{version} (Debian)"
    return found


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
