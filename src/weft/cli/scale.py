"""`weft scale`: start and stop instances of services as their queues want it.

Owns the command's options, and the wiring of scaling to a client.
It must never decide how many: that is in `weft.scaling`.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from weft.cli import remote
from weft.cli.fabric_source import FabricSource, run_with
from weft.cli.options import seconds
from weft.client.url import URL_DEFAULT, URL_VARIABLE
from weft.model.errors import ConfigError
from weft.scaling import load
from weft.scaling.run import ADDRESS, INTERVAL_S, Runner

INTERVAL_S_MIN = 0.1
INTERVAL_S_MAX = 3_600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("services", type=Path, help="the scaling file (docs/guides/scaling.md)")
    remote.add_node(parser, "the node whose queues are watched")
    parser.add_argument("--vhost", help="the virtual host; the one of the URL by default")
    parser.add_argument("--interval", type=seconds, default=INTERVAL_S, metavar="S", help="seconds between two looks")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")


def run(options: argparse.Namespace) -> int:
    """Until interrupted; then the instances it started end."""
    services = load(options.services)
    if not INTERVAL_S_MIN <= options.interval <= INTERVAL_S_MAX:
        raise ConfigError(f"--interval must be from {INTERVAL_S_MIN:g} to {INTERVAL_S_MAX:g} seconds")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    url = options.url or os.environ.get(URL_VARIABLE) or URL_DEFAULT

    def write(line: str) -> None:
        print(line, flush=True)

    async def work(source: FabricSource) -> None:
        names = ", ".join(service.name for service in services)
        write(f"scaling {names} at {source.node}, every {options.interval:g} s")
        await source.prepare(ADDRESS)
        runner = Runner(services, source, url, dry_run=options.dry_run, interval_s=options.interval, write=write)
        await runner.run()

    return run_with(work, options)
