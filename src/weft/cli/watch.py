"""`weft watch`: run a rule file over a node.

Owns the command's options, and the wiring of rules to a client.
It must never hold a rule or an action: those are in `weft.rules`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from weft.cli import remote
from weft.cli.fabric_source import FabricSource, run_with
from weft.model.errors import Refused, Unavailable
from weft.rules import load
from weft.rules.run import Runner

WITHDRAW_S = 5.0
"""Time to tell the node, at the end, that nobody watches by these rules any longer."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("rules", type=Path, help="the rule file (docs/guides/rules.md)")
    remote.add_node(parser, "the node to be watched")
    parser.add_argument("--vhost", help="the virtual host to be watched; the one of the URL by default")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")
    parser.add_argument("--once", action="store_true", help="look once, act, and end")
    parser.add_argument("--verbose", action="store_true", help="name the objects that no rule looks at")


def run(options: argparse.Namespace) -> int:
    """Until interrupted."""
    file = load(options.rules)
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, format="%(message)s")

    def write(line: str) -> None:
        print(line, flush=True)

    async def work(source: FabricSource) -> None:
        runner = Runner(file, source, dry_run=options.dry_run, write=write)
        if options.once:
            await runner.look()
            await runner.settle()
            return
        try:
            await source.register(file.rules)
        except Refused as refused:
            write(f"the node does not show these rules: {refused}")
        write(f"watching {source.node} by {len(file.rules)} rules, every {file.interval_s:g} s")
        try:
            await runner.run()
        finally:
            with suppress(Refused, Unavailable, TimeoutError):
                await asyncio.wait_for(source.withdraw(file.rules), WITHDRAW_S)

    return run_with(work, options)
