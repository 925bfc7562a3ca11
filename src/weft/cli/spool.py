"""`weft spool`: what a client's spool holds, and another try for what a node refused.

Owns the options of the command. A folder comes in; how much waits, since when, and what was refused for which reason
goes out. It reads beside a client that is at work; only `--retry` needs the folder for itself.
It must never take a message out of a spool: only a node's acceptance does.
See docs/guides/client.md, "Store and forward".
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import time

from weft.client.spool import REFUSED_MAX, Store

SHOWN = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("folder", type=Path, help="the folder that a client was given as its spool")
    parser.add_argument("--retry", action="store_true", help="have what was refused sent again by the next client")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(options: argparse.Namespace) -> int:
    """Show it, or have it tried again."""
    store = Store(options.folder, is_owner=options.retry)
    try:
        if options.retry:
            print(f"{store.retry()} messages wait again")
            return 0
        first, refused = store.held("waiting", 1), store.held("refused", REFUSED_MAX)
        oldest_s = time() - first[0].at_s if first else 0.0
        if options.json:
            reasons = [{"number": held.number, "address": held.address, "reason": held.reason} for held in refused]
            shown = {"waiting": store.count, "bytes": store.bytes, "oldest_s": round(oldest_s, 3), "refused": reasons}
            print(json.dumps(shown))
            return 0
        since = f", the oldest for {oldest_s:.0f} s" if first else ""
        print(f"{store.count} messages of {store.bytes} bytes wait{since}; {len(refused)} were refused")
        for held in refused[:SHOWN]:
            print(f"  {held.number} to {held.address}: {held.reason}")
        if len(refused) > SHOWN:
            print(f"  and {len(refused) - SHOWN} more")
    finally:
        store.close()
    return 0
