"""`weft directory`: who is where: entries of the fabric's directory, as a node knows them.

Owns the words of this command: `list`, `resolve` (who serves a service or address), `watch`, `put`, `del`.
It must never talk to ZooKeeper or a store itself: the node does.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from weft.cli import remote
from weft.client.management import Management, Row
from weft.model.errors import Refused

COLUMNS = ("name", "node", "version", "ephemeral", "value")
WATCH_S = 0.5


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="list|resolve|watch|put|del")
    for word, meaning in (("list", "entries at and below a path"), ("watch", "the same, then every change")):
        words.add_parser(word, help=meaning).add_argument("path", nargs="?", default="/")
    words.add_parser("resolve", help="the instances of a service, or what an address is").add_argument("name")
    put = words.add_parser("put", help="make an entry, or change it")
    put.add_argument("path")
    put.add_argument("value", metavar="JSON", help='such as {"urls": ["amqp://host"]}')
    words.add_parser("del", help="take an entry away").add_argument("path")


def run(options: argparse.Namespace) -> int:
    """Do as the word says."""

    async def work(management: Management) -> int:
        match options.word:
            case "put":
                await management.create("directory", options.path, {"value": _value(options.value)})
            case "del":
                await management.delete("directory", options.path)
            case "resolve":
                rows = await _below(management, f"/services/{options.name}")
                rows = rows or await _below(management, f"/addresses/{options.name}")
                if not rows:
                    raise Refused(f"nothing is known of '{options.name}'", 404)
                remote.print_rows(rows, COLUMNS, as_json=options.json)
            case "watch":
                await _watch(management, options.path)
            case _:
                remote.print_rows(await _below(management, options.path), COLUMNS, as_json=options.json)
        return 0

    return remote.run(options, work)


def _value(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Refused(f"the value is not JSON: {error}", 400) from None
    if not isinstance(value, dict):
        raise Refused("the value must be a JSON object", 400)
    return value


async def _below(management: Management, path: str) -> list[Row]:
    if not path.startswith("/"):
        raise Refused(f"{path!r} is no path: write /{path}", 400)
    prefix = path.rstrip("/")
    rows = await management.query("directory", sort="name")
    return [row for row in rows if row["name"] == prefix or row["name"].startswith(f"{prefix}/")]


async def _watch(management: Management, path: str) -> None:
    """Print what is there, then what changes, until someone ends it."""
    known: dict[str, Row] = {}
    while True:
        now = {row["name"]: row for row in await _below(management, path)}
        for name in sorted(known.keys() - now.keys()):
            print(f"- {name}", flush=True)
        for name, row in now.items():
            if row != known.get(name):
                sign = "~" if name in known else "+"
                print(f"{sign} {name} {json.dumps(row.get('value'), default=str)}", flush=True)
        known = now
        await asyncio.sleep(WATCH_S)
