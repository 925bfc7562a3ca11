"""Asking running nodes from the command line: one connection per node, one table or line per answer.

Owns where a command connects to, how long it waits for a node that is not there, and how rows become a table. A
command's questions come in; text and an exit code go out.
It must never know what a class means: the node's schema and the commands do.
Rule: nobody waits for a node that is not there unless told to (`--wait-for-node`); `weft.cli` tells what went wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from weft.cli.options import printable, seconds
from weft.client import connect
from weft.client.management import Management, Row
from weft.client.options import Options
from weft.model.errors import ConfigError

TIMEOUT_S = 10.0
COLUMN_CHARS_MIN = 8
"""What is left of a column that is cut for a terminal."""
Work = Callable[[Management], Awaitable[int]]


def add_url(parser: argparse.ArgumentParser) -> None:
    """The options by which a node is chosen and its answer written."""
    add_node(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_node(parser: argparse.ArgumentParser, what: str = "the node, or several with commas between them") -> None:
    """The options by which a node is chosen."""
    form = "as amqp://user:password@host:port/vhost"
    parser.add_argument("--url", metavar="URL", help=f"{what}, {form} (default: WEFT_URL, or amqp://localhost)")
    parser.add_argument(
        "--wait-for-node", type=seconds, metavar="S", help="wait so long for a node that is not there yet (default: 0)"
    )


def add_vhost(parser: argparse.ArgumentParser) -> None:
    """For objects of a virtual host that the caller need not enter."""
    parser.add_argument("--vhost", metavar="VHOST", help="the virtual host of the objects (default: that of the URL)")


def patience(options: argparse.Namespace, timeout_s: float = TIMEOUT_S) -> Options:
    """For `connect`: how long a command tries to reach its node."""
    wait_s: float | None = options.wait_for_node
    return {"timeout_s": wait_s or timeout_s, "patient": wait_s is not None}


def run(options: argparse.Namespace, work: Work) -> int:
    """Do some work with the management of the node that the options name; the exit code."""
    return asyncio.run(_run(options.url, work, patience(options), TIMEOUT_S, getattr(options, "vhost", None)))


def run_at(url: str, work: Work, timeout_s: float) -> int:
    """The same at a node that is known."""
    return asyncio.run(_run(url, work, {"timeout_s": timeout_s, "patient": False}, timeout_s))


async def _run(url: str | None, work: Work, connecting: Options, timeout_s: float, vhost: str | None = None) -> int:
    async with connect(url, **connecting) as fabric:
        return await work(Management(fabric, vhost=vhost, timeout_s=timeout_s))


def broker_url(text: str) -> str:
    """A url from qpid's spelling of a broker, [user/password@]host[:port]; urls are taken as they are."""
    if "://" in text:
        return text
    found = re.fullmatch(r"(?:([^/@]+)/([^@]*)@)?([^@/]+)", text)
    if found is None:
        raise ConfigError(f"{text!r} is not a broker: write [user/password@]host[:port]")
    entry = f"{found[1]}:{found[2]}@" if found[1] else ""
    return f"amqp://{entry}{found[3]}"


def print_rows(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool = False) -> None:
    """Rows as a table with the columns that are wanted, or as JSON. A terminal is not written over the edge of; whoever
    reads from a pipe gets every letter.
    """
    if as_json:
        print(json.dumps(list(rows), indent=2, default=str))
        return
    texts = [[printable(_text(row.get(column))) for column in columns] for row in rows]
    widths = [max([len(column), *(len(line[at]) for line in texts)]) for at, column in enumerate(columns)]
    if sys.stdout.isatty():
        widths = fitting(widths, shutil.get_terminal_size().columns - 2 * (len(widths) - 1))
    for line in ([column.upper() for column in columns], *texts):
        print("  ".join(_cell(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip())


def where_needed(rows: Sequence[Row], columns: Sequence[str]) -> Sequence[str]:
    """The columns, and the virtual host where there is another than `/`: names alone do not tell what it takes."""
    return (columns[0], "vhost", *columns[1:]) if {row.get("vhost") for row in rows} - {"/"} else columns


def fitting(widths: Sequence[int], room: int) -> list[int]:
    """Widths that fit, if they can: the widest columns give way first, and none to less than a few letters."""
    least, most = COLUMN_CHARS_MIN, max([COLUMN_CHARS_MIN, *widths])
    while least < most:  # the largest width to cut at that fits
        middle = (least + most + 1) // 2
        least, most = (middle, most) if sum(min(width, middle) for width in widths) <= room else (least, middle - 1)
    return [min(width, least) for width in widths]


def _cell(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ",".join(str(item) for item in value)
        case dict():
            return json.dumps(value, default=str)
        case _:
            return str(value) or "-"


def given(options: argparse.Namespace, *names: str) -> Mapping[str, Any]:
    """The options of these names that were given."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def tell_node(options: argparse.Namespace, operation: str) -> int:
    """Have the node itself do something, and print what came of it; the exit code."""

    async def work(management: Management) -> int:
        result = await management.call("node", None, operation) or {}
        words = [operation, *(f"{key}={value}" for key, value in result.items())]
        print(json.dumps(result, default=str) if options.json else " ".join(words))
        return 0

    return run(options, work)
