"""`weft quiesce`: stop delivery from every queue of a node; publishers go on.

Owns the words of this command; the node does it (operation `quiesce` of class `node`).
It must never be needed to resume: management answers while delivery is stopped.
"""

from __future__ import annotations

import argparse

from weft.cli import remote


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)


def run(options: argparse.Namespace) -> int:
    """Ask the node to quiesce."""
    return remote.tell_node(options, "quiesce")
