"""Asking running nodes from the command line: one connection per node, one table or line per answer.

Owns where a command connects to, how it ends when a node says no, and how rows become a table. A command's questions
come in; text and an exit code go out.
It must never know what a class means: the node's schema and the commands do.
Rule: exit code 1 when a node refuses, 2 when it cannot be reached or an option is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from weft.client import connect
from weft.client.management import Management, Row
from weft.model.errors import ConfigError, Refused

TIMEOUT_S = 10.0
Work = Callable[[Management], Awaitable[int]]


def add_url(parser: argparse.ArgumentParser) -> None:
    """The options by which a node is chosen and its answer written."""
    parser.add_argument("--url", metavar="URL", help="the node (default: WEFT_URL, or amqp://localhost)")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def run(url: str | None, work: Work, timeout_s: float = TIMEOUT_S) -> int:
    """Do some work with a node's management; the exit code."""
    return asyncio.run(_run(url, work, timeout_s))


async def _run(url: str | None, work: Work, timeout_s: float) -> int:
    async with connect(url, timeout_s=timeout_s) as fabric:
        try:
            return await work(Management(fabric, timeout_s=timeout_s))
        except Refused as refused:
            print(refused, file=sys.stderr)
            return 1


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
    """Rows as a table with the columns that are wanted, or as JSON."""
    if as_json:
        print(json.dumps(list(rows), indent=2, default=str))
        return
    texts = [[printable(_text(row.get(column))) for column in columns] for row in rows]
    widths = [max([len(column), *(len(line[at]) for line in texts)]) for at, column in enumerate(columns)]
    for line in ([column.upper() for column in columns], *texts):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def printable(text: str) -> str:
    """Text of a peer, harmless for a terminal: line ends, escapes and the like as Python spells them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


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


async def tell_node(management: Management, operation: str) -> int:
    """Have the node itself do something, and print what came of it; the exit code."""
    result = await management.call("node", None, operation)
    print(" ".join([operation, *(f"{key}={value}" for key, value in (result or {}).items())]))
    return 0
