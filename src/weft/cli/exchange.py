"""`weft exchange`: exchanges of a node, and their bindings.

Owns the words of this command; the node does the work (management classes `exchange` and `binding`).
It must never declare anything by another way than management.
"""

from __future__ import annotations

import argparse

from weft.cli import remote
from weft.cli.options import key_values
from weft.client.management import Management
from weft.model.errors import Refused

COLUMNS = ("name", "type", "durable", "bindings", "published", "arguments")
BINDING_COLUMNS = ("source", "kind", "destination", "routing_key", "arguments")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="add|del|bind|unbind|list|bindings")
    add = words.add_parser("add", help="make an exchange")
    add.add_argument("type", choices=("direct", "fanout", "topic", "headers"))
    add.add_argument("name")
    add.add_argument("--transient", dest="durable", action="store_false", default=True)
    add.add_argument("--argument", action="append", default=[], metavar="KEY=VALUE")
    words.add_parser("del", help="delete an exchange").add_argument("name")
    for word in ("bind", "unbind"):
        end = words.add_parser(word, help=f"{word} a queue")
        end.add_argument("exchange")
        end.add_argument("queue")
        end.add_argument("key", nargs="?", default="")
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
                await bind(management, options.exchange, options.queue, options.key)
            case "unbind":
                await unbind(management, options.exchange, options.queue, options.key)
            case "list":
                remote.print_rows(await management.query("exchange"), COLUMNS, as_json=options.json)
            case _:
                remote.print_rows(await management.query("binding"), BINDING_COLUMNS, as_json=options.json)
        return 0

    return remote.run(options, work)


async def bind(management: Management, exchange: str, queue: str, key: str) -> None:
    """Bind a queue."""
    await management.create("binding", "", {"source": exchange, "destination": queue, "routing_key": key})


async def unbind(management: Management, exchange: str, queue: str, key: str) -> None:
    """Undo that."""
    where = {"source": exchange, "destination": queue, "routing_key": key}
    rows = await management.query("binding", where=where)
    if not rows:
        raise Refused(f"no binding of '{queue}' to '{exchange}' with key '{key}'", 404)
    await management.delete("binding", rows[0]["name"])
