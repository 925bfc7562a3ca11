"""`weft move`: what is ready in a queue goes to another place.

Owns the words of this command; the node moves (operation `move` of class `queue`).
It must never lose a message: one that nobody takes stays, and ends the move.
"""

from __future__ import annotations

import argparse
import json

from weft.cli import remote
from weft.cli.options import at_least_one
from weft.client.management import Management


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    parser.add_argument("queue", help="where the messages are")
    parser.add_argument("to", help="a queue, or `exchange/key`")
    parser.add_argument("--count", type=at_least_one, metavar="N", help="at most so many messages")


def run(options: argparse.Namespace) -> int:
    """Move, and tell how many."""
    return move(options, {"to": options.to})


def move(options: argparse.Namespace, arguments: dict[str, object]) -> int:
    """Move messages of a queue; the exit code."""

    async def work(management: Management) -> int:
        values = arguments | ({} if options.count is None else {"count": options.count})
        result = await management.call("queue", options.queue, "move", values)
        moved = f"{result['count']} message{'' if result['count'] == 1 else 's'} moved"
        print(json.dumps(result) if options.json else moved)
        return 0

    return remote.run(options, work)
