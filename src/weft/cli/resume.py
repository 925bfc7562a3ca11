"""`weft resume`: let a node deliver again.

Owns the words of this command; the node does it (operation `resume` of class `node`).
It must never do more than that.
"""

from __future__ import annotations

import argparse

from weft.cli import remote


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)


def run(options: argparse.Namespace) -> int:
    """Ask the node to resume."""
    return remote.tell_node(options, "resume")
