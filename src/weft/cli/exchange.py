"""`weft exchange`: exchanges of a node, and their bindings.

Owns the words of this command; the node does the work (management classes `exchange` and `binding`).
It must never declare anything by another way than management.
"""

from __future__ import annotations

import argparse
from typing import Any

from weft.cli import remote
from weft.cli.options import key_values
from weft.client.management import Management
from weft.model.errors import Refused

COLUMNS = ("name", "type", "durable", "bindings", "messages_in", "messages_out", "arguments")
BINDING_COLUMNS = ("source", "kind", "destination", "routing_key", "arguments")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    remote.add_vhost(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="add|del|bind|unbind|list|bindings")
    add = words.add_parser("add", help="make an exchange")
    add.add_argument("type", choices=("direct", "fanout", "topic", "headers", "x-delayed-message"))
    add.add_argument("name")
    add.add_argument("--transient", dest="durable", action="store_false", default=True)
    add.add_argument("--argument", action="append", default=[], metavar="KEY=VALUE")
    words.add_parser("del", help="delete an exchange").add_argument("name")
    for word in ("bind", "unbind"):
        end = words.add_parser(word, help=f"{word} a queue, or another exchange")
        end.add_argument("exchange", help="where messages come from")
        end.add_argument("queue", help="where they go; an exchange with --kind exchange")
        end.add_argument("key", nargs="?", default="", help="the binding's key (default: none)")
        end.add_argument("--kind", choices=("queue", "exchange"), default="queue", help="what they go to")
        end.add_argument(
            "--argument",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="what a headers exchange compares, and x-match=all or any; may be repeated",
        )
    words.add_parser("list", help="every exchange")
    words.add_parser("bindings", help="every binding")


def run(options: argparse.Namespace) -> int:
    """Do as the word says."""

    async def work(management: Management) -> int:
        match options.word:
            case "add":
                arguments = key_values(options.argument)
                values = {"type": options.type, "durable": options.durable, "arguments": arguments}
                await management.create("exchange", options.name, values)
            case "del":
                await management.delete("exchange", options.name)
            case "bind":
                await bind(management, options.exchange, options.queue, options.key, **_more(options))
            case "unbind":
                await unbind(management, options.exchange, options.queue, options.key, **_more(options))
            case "list":
                rows = await management.query("exchange")
                remote.print_rows(rows, remote.where_needed(rows, COLUMNS), as_json=options.json)
            case _:
                rows = [row for row in await management.query("binding") if not management.owns(row["destination"])]
                remote.print_rows(rows, remote.where_needed(rows, BINDING_COLUMNS), as_json=options.json)
        return 0

    return remote.run(options, work)


def _more(options: argparse.Namespace) -> dict[str, Any]:
    return {"kind": options.kind, "arguments": key_values(options.argument)}


async def bind(management: Management, exchange: str, queue: str, key: str, **more: Any) -> None:
    """Bind a queue; `kind` and `arguments` of the binding are those of queues without any, unless told."""
    await management.create("binding", "", {"source": exchange, "destination": queue, "routing_key": key, **more})


async def unbind(management: Management, exchange: str, queue: str, key: str, **more: Any) -> None:
    """Undo that."""
    where = {"source": exchange, "destination": queue, "routing_key": key, **more}
    rows = await management.query("binding", where=where)
    if not rows:
        told = f" and arguments {more['arguments']}" if more.get("arguments") else ""
        raise Refused(f"no binding of '{queue}' to '{exchange}' with key '{key}'{told}", 404)
    await management.delete("binding", rows[0]["name"])
