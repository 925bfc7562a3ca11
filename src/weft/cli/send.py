"""`weft send`: messages from the command line or standard input to an address or a topic.

Owns the options of the command. Each word after the address, or each line of standard input, becomes a message; the
command ends when the node has all of them.
It must never hold more of them at a time than a window's worth.
See docs/guides/client.md.
"""

from __future__ import annotations

import argparse
from itertools import chain, islice, repeat

from weft.cli import remote
from weft.cli.messages import Progress, add_connection_options, bodies
from weft.cli.options import ascii_text, at_least_one, key_values
from weft.client.sync import connect

BATCH = 500


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("address", help="a queue or any other address; with --topic, a topic")
    parser.add_argument("body", nargs="*", default=[], help="messages; without any, each line of standard input is one")
    parser.add_argument("--topic", action="store_true", help="publish under a topic instead")
    parser.add_argument("--count", type=at_least_one, default=1, metavar="N", help="send each message N times")
    parser.add_argument("--header", action="append", default=[], metavar="KEY=VALUE", help="an application property")
    parser.add_argument("--content-type", type=ascii_text, help="what the bodies are (text/plain)")
    parser.add_argument("--transient", action="store_true", help="messages need not survive a restart of the node")
    add_connection_options(parser)


def run(options: argparse.Namespace) -> int:
    """Send them all."""
    properties = {"durable": not options.transient, "timeout_s": options.timeout}
    if options.content_type:
        properties["content_type"] = options.content_type
    given = key_values(options.header, "--header")
    if given:
        properties["headers"] = given
    messages = chain.from_iterable(repeat(body, options.count) for body in bodies(options.body))
    progress = Progress("sent")
    with connect(options.url, **remote.patience(options, options.timeout)) as fabric:
        while batch := list(islice(messages, 1 if options.topic else BATCH)):
            if options.topic:
                fabric.publish(options.address, batch[0], **properties)
            else:
                fabric.send_many(options.address, batch, **properties)
            progress.add(len(batch))
    progress.end()
    return 0
