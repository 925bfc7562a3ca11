"""`weft drain`: send the clients of a node elsewhere, so that it can be stopped.

Owns the words of this command; the node does it (operation `drain` of class `node`).
It must never end the node: who runs it does.
"""

from __future__ import annotations

import argparse

from weft.cli import remote


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)


def run(options: argparse.Namespace) -> int:
    """Ask the node to drain."""
    return remote.tell_node(options, "drain")
