"""`weft relay`: exchanges and queues that two nodes keep in step.

Owns the words of this command; the first node does the work (management class `relay`).
It must never speak to the second one.
"""

from __future__ import annotations

import argparse

from weft.cli import remote
from weft.client.management import Management

COLUMNS = ("name", "exchange", "queue", "mode", "state", "peer", "urls", "cause")
_FIELDS = ("exchange", "queue", "mode", "role", "bytes_per_s_max")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="create|delete|list|show")
    create = words.add_parser("create", help="keep an exchange or a queue of two nodes in step")
    create.add_argument("here", metavar="A", help="url of the node that has the relay, and makes the connection")
    create.add_argument("there", metavar="B", nargs="+", help="url of the other; with several the next is tried")
    what = create.add_mutually_exclusive_group(required=True)
    what.add_argument("--exchange", help="each side gets what its bindings ask for")
    what.add_argument("--queue", help="what comes into it at A goes to it at B")
    create.add_argument("--name", help="name of the relay (default: made of the exchange or queue, and B)")
    create.add_argument("--mode", choices=("ring", "complete"), help="complete: only what was published at the source")
    create.add_argument("--role", help="what B is to A; services are announced to gateways")
    create.add_argument("--bytes-per-s-max", type=int, help="let no more than this cross in a second, each way")
    words.add_parser("delete", help="take a relay away").add_argument("name")
    words.add_parser("show", help="one relay").add_argument("name")
    words.add_parser("list", help="every relay, and what is really flowing")


def run(options: argparse.Namespace) -> int:
    """Do as the word says."""

    async def work(management: Management) -> int:
        match options.word:
            case "create":
                urls = [remote.broker_url(text) for text in options.there]
                name = options.name or _name(options.exchange or options.queue, urls[0])
                row = await management.create("relay", name, {"urls": urls, **remote.given(options, *_FIELDS)})
                print(f"relay {name}: {row['state']}, {row['cause']}")
            case "delete":
                await management.delete("relay", options.name)
            case "show":
                remote.print_rows([await management.read("relay", options.name)], COLUMNS, as_json=options.json)
            case _:
                remote.print_rows(await management.query("relay"), COLUMNS, as_json=options.json)
        return 0

    if options.word == "create":
        options.url = remote.broker_url(options.here)
    return remote.run(options, work)


def _name(what: str, url: str) -> str:
    """The same relay has the same name; nothing of a password is in it."""
    return f"{what}@{url.rpartition('@')[2].partition('://')[2] or url.rpartition('@')[2]}".replace("/", "")
