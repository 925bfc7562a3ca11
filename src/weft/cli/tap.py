"""`weft tap`: see messages as they pass, at an exchange or in a queue.

Owns the words of this command. At an exchange it is one more subscriber, in a queue it looks without taking.
It must never keep a message from those it is meant for.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from weft.cli import remote, showing
from weft.cli.options import at_least_one
from weft.client import connect


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    parser.add_argument("address", help="`exchange/key`, with * and # for a topic exchange; or a queue")
    parser.add_argument("--count", type=at_least_one, metavar="N", help="end after so many messages")


def run(options: argparse.Namespace) -> int:
    """Print until it is interrupted."""
    try:
        return asyncio.run(_run(options))
    except KeyboardInterrupt:
        return 0


async def _run(options: argparse.Namespace) -> int:
    left = options.count
    async with connect(options.url, **remote.patience(options)) as fabric:
        # A subscription has messages of its own to take, a queue has not.
        browse = "/" not in options.address
        await showing.check(fabric, options.address)
        async for message in fabric.receive(options.address, browse=browse):
            row = json.dumps(showing.as_row(message), default=str)
            print(row if options.json else showing.as_line(message), flush=True)
            left = None if left is None else left - 1
            if left == 0:
                break
    return 0
