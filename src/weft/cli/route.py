"""`weft route`: what the links of a node carry.

Owns the words of this command; the node does the work (management class `route`).
It must never move a message itself.
"""

from __future__ import annotations

import argparse

from weft.cli import remote
from weft.client.management import Management
from weft.federation.records import route_name

COLUMNS = ("name", "kind", "direction", "state", "peer", "exchange", "queue", "key", "keys", "cause")
_ENDS = ("kind", "link", "exchange", "queue", "key", "source_exchange", "direction")
_FIELDS = (*_ENDS, "credit", "backlog_max", "bytes_per_s_max", "relay")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="add|del|list")
    add = words.add_parser("add", help="make a route, or change it")
    add.add_argument("kind", choices=("queue", "static", "dynamic"))
    add.add_argument("link", help="name of the link (weft link)")
    add.add_argument("--name", help="name of the route (default: made of the other words)")
    add.add_argument("--exchange", help="exchange at the destination")
    add.add_argument("--queue", help="queue at the source")
    add.add_argument("--key", help="binding key; for a queue route, the key messages get")
    add.add_argument("--source-exchange", help="exchange at the source, if its name differs")
    add.add_argument("--push", dest="direction", action="store_const", const="push", help="send instead of fetch")
    add.add_argument("--credit", type=int)
    add.add_argument("--backlog-max", type=int, help="fetch no more while this many wait for consumers here")
    add.add_argument("--bytes-per-s-max", type=int, help="let no more than this cross in a second")
    add.add_argument("--relay", choices=("ring", "complete"), help="complete: only what was published at the source")
    add.add_argument("--transient", dest="durable", action="store_false", default=True, help="forget it at a restart")
    words.add_parser("del", help="take a route away").add_argument("name")
    words.add_parser("list", help="every route, and what is really flowing")


def run(options: argparse.Namespace) -> int:
    """Do as the word says."""

    async def work(management: Management) -> int:
        match options.word:
            case "add":
                values = dict(remote.given(options, *_FIELDS, "durable"))
                name = options.name or route_name(values)
                row = await management.create("route", name, values)
                print(f"route {name}: {row['state']}, {row['cause']}")
            case "del":
                await management.delete("route", options.name)
            case _:
                remote.print_rows(await management.query("route"), COLUMNS, as_json=options.json)
        return 0

    return remote.run(options, work)
