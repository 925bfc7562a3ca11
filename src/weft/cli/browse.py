"""`weft browse`: look into a queue or a stream, and leave everything where it is.

Owns the words of this command; `showing` reads and prints.
It must never take a message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from weft.cli import remote, showing
from weft.cli.options import at_least_one
from weft.model.errors import Refused


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    parser.add_argument("address", help="a queue or a stream")
    parser.add_argument("--count", type=at_least_one, metavar="N", help="at most so many messages")


def run(options: argparse.Namespace) -> int:
    """Print what is there."""
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    try:
        async for message in showing.browse(options.url, options.address, options.count, showing.QUIET_S):
            print(json.dumps(showing.as_row(message), default=str) if options.json else showing.as_line(message))
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 1
    return 0
