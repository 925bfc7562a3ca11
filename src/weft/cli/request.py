"""`weft request`: ask a service, print its reply.

Owns the options of the command. One request goes out, one reply is printed; a service's error is told as one.
It must never wait longer than it was told.
See docs/guides/client.md.
"""

from __future__ import annotations

import argparse
import sys

from weft.cli import remote
from weft.cli.messages import add_connection_options, body_of, shown
from weft.cli.options import key_values
from weft.client.sync import connect
from weft.model.errors import ServiceError


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("address", help="the service")
    parser.add_argument("body", nargs="?", default="", help="what to ask")
    parser.add_argument("--header", action="append", default=[], metavar="KEY=VALUE", help="an application property")
    add_connection_options(parser)


def run(options: argparse.Namespace) -> int:
    """Ask and print."""
    with connect(options.url, **remote.patience(options, options.timeout)) as fabric:
        try:
            reply = fabric.request(
                options.address, options.body, timeout_s=options.timeout, headers=key_values(options.header, "--header")
            )
        except ServiceError as error:
            print(f"weft request: {options.address} answered with an error: {error.kind}: {error}", file=sys.stderr)
            return 1
    print(shown(body_of(reply)))
    return 0
