"""`weft ctl`: any object of a node, by its class and name.

Owns the words list, show, add, set, del, call, watch, export and import. Classes, columns and operations come from the
node's own schema, so a class that a newer node has is known here at once.
It must never know what a class means.
Rule: schema/management.json; docs/guides/management.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from weft.cli import remote
from weft.cli.options import at_least_one, key_values, printable
from weft.client import connect
from weft.client.management import Management
from weft.config.schema import nearest
from weft.model import document
from weft.model.errors import ConfigError

EVENTS = "weft.events"
DEFINITIONS_BYTES_MAX = 268_435_456
WIDTH_MAX = 8
"""Columns of a list when nobody named them."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    remote.add_vhost(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="WORD")
    words.add_parser("classes", help="what can be managed")
    listing = words.add_parser("list", help="objects of a class")
    listing.add_argument("kind", metavar="CLASS")
    listing.add_argument("--columns", metavar="A,B", help="what of them")
    listing.add_argument("--contains", metavar="TEXT", help="only those with this in their name")
    listing.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="only those that have this")
    listing.add_argument("--sort", metavar="COLUMN")
    listing.add_argument("--reverse", action="store_true", help="the largest first")
    listing.add_argument("--count", type=at_least_one, metavar="N", help="at most so many")
    for word, text in (("show", "one object"), ("del", "delete an object")):
        one = words.add_parser(word, help=text)
        one.add_argument("kind", metavar="CLASS")
        one.add_argument("name", nargs="?" if word == "show" else None)
    for word, text in (("add", "make an object"), ("set", "change an object")):
        one = words.add_parser(word, help=text)
        one.add_argument("kind", metavar="CLASS")
        one.add_argument("name")
        one.add_argument("values", nargs="*", default=[], metavar="KEY=VALUE")
    call = words.add_parser("call", help="carry out an operation")
    call.add_argument("kind", metavar="CLASS")
    call.add_argument("name")
    call.add_argument("operation")
    call.add_argument("values", nargs="*", default=[], metavar="KEY=VALUE")
    watch = words.add_parser("watch", help="events as they happen")
    watch.add_argument("pattern", nargs="?", default="#", help="CLASS.KIND.SEVERITY.OBJECT.NODE, with * and #")
    export = words.add_parser("export", help="write all definitions")
    export.add_argument("file", nargs="?", help="where to (default: standard output)")
    importing = words.add_parser("import", help="make what a file defines")
    importing.add_argument("file")


def run(options: argparse.Namespace) -> int:
    """Do as the word says."""
    if options.word == "watch":
        return asyncio.run(_watch(options))

    async def work(management: Management) -> int:
        classes = await management.schema()
        if "kind" in options and options.kind not in classes:
            raise ConfigError(f"no class {options.kind!r}, {nearest(options.kind, classes)}")
        match options.word:
            case "classes":
                rows = [{"class": name, "about": item["doc"]} for name, item in classes.items()]
                remote.print_rows(rows, ("class", "about"), as_json=options.json)
            case "list":
                await _list(management, options, classes[options.kind])
            case "show":
                print_object(await management.read(options.kind, options.name), as_json=options.json)
            case "add":
                await management.create(options.kind, options.name, key_values(options.values))
            case "set":
                await management.update(options.kind, options.name, key_values(options.values))
            case "del":
                await management.delete(options.kind, options.name)
            case "call":
                values = key_values(options.values)
                result = await management.call(options.kind, options.name, options.operation, values)
                print(json.dumps(result, indent=2, default=str))
            case _:
                await _definitions(management, options)
        return 0

    return remote.run(options, work)


async def _list(management: Management, options: argparse.Namespace, item: dict[str, Any]) -> None:
    known = [*item["properties"], *item["statistics"]]
    wanted = [column.strip() for column in (options.columns or "").split(",") if column.strip()]
    where = key_values(options.where)
    for name in (*wanted, *where, *([options.sort] if options.sort else ())):
        if name not in known:
            raise ConfigError(f"a {options.kind} has no {name!r}, {nearest(name, known)}")
    rows = await management.query(
        options.kind,
        where=where,
        contains=options.contains,
        sort=options.sort,
        descending=options.reverse,
        count=options.count,
    )
    columns = wanted or [name for name in known if any(name in row for row in rows)][:WIDTH_MAX] or ["name"]
    remote.print_rows(rows, columns, as_json=options.json)


async def _definitions(management: Management, options: argparse.Namespace) -> None:
    if options.word == "import":
        told = await management.call("node", None, "import", {"definitions": _read(options.file)})
        _tell_import(told, as_json=options.json)
    else:
        _write(json.dumps(await management.call("node", None, "export"), indent=2, default=str), options.file)


def _tell_import(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(told, indent=2))
        return
    taken = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in told.get("taken", {}).items())
    print(f"taken over: {taken or 'nothing is defined there'}")
    for line in told.get("without_effect", ()):
        print(f"kept, without effect here: {printable(line)}")


def _write(text: str, file: str | None) -> None:
    if file is None:
        print(text)
        return
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {(error.strerror or str(error)).lower()}") from None


def _read(file: str) -> Any:
    try:
        return json.loads(document.read(Path(file), DEFINITIONS_BYTES_MAX))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None


def print_object(row: dict[str, Any], *, as_json: bool) -> None:
    """One object, a line for each value."""
    if as_json:
        print(json.dumps(row, indent=2, default=str))
        return
    width = max(map(len, row), default=0)
    for name, value in row.items():
        text = json.dumps(value, default=str) if isinstance(value, dict | list) else value
        print(f"{name:<{width}}  {text}")


async def _watch(options: argparse.Namespace) -> int:
    async with connect(options.url, **remote.patience(options)) as fabric:
        async for message in fabric.receive(f"{EVENTS}/{options.pattern}"):
            body = message.body if isinstance(message.body, dict) else json.loads(message.data)
            print(json.dumps(body) if options.json else _line(body), flush=True)
    return 0


def _line(body: dict[str, Any]) -> str:
    values = " ".join(f"{key}={value}" for key, value in body["values"].items())
    return f"{body['severity']:<7} {body['class']}.{body['kind']} {body['object']} at {body['node']} {values}".rstrip()
