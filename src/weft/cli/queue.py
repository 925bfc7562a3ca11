"""`weft queue`: queues of a node.

Owns the words of this command; the node does the work (management class `queue`).
It must never delete a queue that holds messages unless it is told to.
"""

from __future__ import annotations

import argparse

from weft.cli import remote
from weft.cli.options import key_values
from weft.client.management import Management

COLUMNS = ("name", "type", "durable", "ready", "unsettled", "consumers", "published", "arguments")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    remote.add_vhost(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="add|del|list")
    add = words.add_parser("add", help="make a queue")
    add.add_argument("name")
    add.add_argument("--transient", dest="durable", action="store_false", default=True)
    add.add_argument("--argument", action="append", default=[], metavar="KEY=VALUE")
    delete = words.add_parser("del", help="delete a queue")
    delete.add_argument("name")
    delete.add_argument("--force", action="store_true", help="even if it holds messages or is in use")
    words.add_parser("list", help="every queue")


def run(options: argparse.Namespace) -> int:
    """Do as the word says."""

    async def work(management: Management) -> int:
        match options.word:
            case "add":
                values = {"durable": options.durable, "arguments": key_values(options.argument)}
                await management.create("queue", options.name, values)
            case "del":
                conditions = {} if options.force else {"if_empty": True, "if_unused": True}
                await management.delete("queue", options.name, conditions)
            case _:
                rows = [row for row in await management.query("queue") if not management.owns(row["name"])]
                remote.print_rows(rows, remote.where_needed(rows, COLUMNS), as_json=options.json)
        return 0

    return remote.run(options, work)
