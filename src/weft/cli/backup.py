"""`weft backup`: a copy of a data folder, from which a node can be started.

Owns the words. Two folders come in; the node of the first may be running, stopped or dead.
It must never write into the first, nor ask the node.
Rule: docs/guides/operations.md, "Backup".
"""

from __future__ import annotations

import argparse
from pathlib import Path

from weft.log.backup import back_up


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("folder", metavar="DATA_DIR", help="the data folder of a node")
    parser.add_argument("target", metavar="FOLDER", help="where the copy goes; it must not be there yet")


def run(options: argparse.Namespace) -> int:
    """Copy, and tell how much."""
    target = Path(options.target)
    backup = back_up(Path(options.folder), target)
    print(f"copied {backup.segments} segments, {backup.bytes} bytes, and the definitions to {target}")
    print(f"to use it: weft up --data-dir {target}")
    return 0
