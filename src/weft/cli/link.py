"""`weft link`: connections that a node keeps to others.

Owns the words of this command; the node does the work (management class `uplink`).
It must never dial the other node itself.
"""

from __future__ import annotations

import argparse

from weft.cli import remote
from weft.client.management import Management

COLUMNS = ("name", "state", "peer", "address", "role", "connects", "cause")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="add|del|list")
    add = words.add_parser("add", help="make a link, or change it")
    add.add_argument("name")
    add.add_argument("urls", nargs="+", metavar="URL", help="where the peer is; with several the next is tried")
    add.add_argument("--role", help="what the peer is to this node; services are announced to gateways")
    add.add_argument("--heartbeat-s", type=int)
    add.add_argument("--retry-max-s", type=int)
    add.add_argument("--tls-ca", metavar="FILE")
    add.add_argument("--management", metavar="URL", help="of a RabbitMQ: dynamic routes from it bind by this")
    add.add_argument("--transient", dest="durable", action="store_false", default=True, help="forget it at a restart")
    words.add_parser("del", help="take a link away").add_argument("name")
    words.add_parser("list", help="every link, and what it is doing")


def run(options: argparse.Namespace) -> int:
    """Do as the word says."""

    async def work(management: Management) -> int:
        match options.word:
            case "add":
                names = ("urls", "role", "heartbeat_s", "retry_max_s", "tls_ca", "management", "durable")
                values = remote.given(options, *names)
                row = await management.create("uplink", options.name, values)
                print(f"link {options.name}: {row['state']}, {row['cause']}")
            case "del":
                await management.delete("uplink", options.name)
            case _:
                remote.print_rows(await management.query("uplink"), COLUMNS, as_json=options.json)
        return 0

    return remote.run(options, work)
