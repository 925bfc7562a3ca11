"""`weft retry`: dead letters go back to the queue they died in first.

Owns the words of this command; the node moves (operation `move` of class `queue`, without a place).
It must never lose a message: one whose queue is gone stays, and ends the retry.
"""

from __future__ import annotations

import argparse

from weft.cli import remote
from weft.cli.move import move
from weft.cli.options import at_least_one


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    parser.add_argument("queue", help="where the dead letters are")
    parser.add_argument("--count", type=at_least_one, metavar="N", help="at most so many messages")


def run(options: argparse.Namespace) -> int:
    """Move them back, and tell how many."""
    return move(options, {})
