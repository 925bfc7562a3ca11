"""`weft browse`: look into a queue or a stream, and leave everything where it is.

Owns the words of this command; `showing` reads and prints.
It must never take a message.
"""

from __future__ import annotations

import argparse
import asyncio
import json

from weft.cli import remote, showing
from weft.cli.options import at_least_one


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    parser.add_argument("address", help="a queue or a stream")
    parser.add_argument("--count", type=at_least_one, metavar="N", help="at most so many messages")


def run(options: argparse.Namespace) -> int:
    """Print what is there."""
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    async for message in showing.browse(options, options.count, showing.QUIET_S):
        print(json.dumps(showing.as_row(message), default=str) if options.json else showing.as_line(message))
    return 0
