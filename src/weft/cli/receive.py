"""`weft receive`: messages from an address, a topic or a stream to standard output, one per line.

Owns the options of the command. A message is accepted once it is printed; nothing is lost when the command is
interrupted. It must never change what it prints, except where bytes are no text.
See docs/guides/client.md.
"""

from __future__ import annotations

import argparse
import json

from weft.cli import remote
from weft.cli.messages import Progress, add_connection_options, body_of, shown
from weft.cli.options import at_least_one, offset, seconds
from weft.client import Message
from weft.client.sync import Fabric, Receiver, connect
from weft.model.errors import DeadlineExceeded


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("address", help="a queue or any other address; with --topic, a topic or a pattern of topics")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--topic", action="store_true", help="subscribe to a topic instead")
    kind.add_argument("--browse", action="store_true", help="look at the messages and leave them where they are")
    kind.add_argument("--offset", type=offset, help="read a stream from a number, or from first, last or next")
    parser.add_argument("--count", type=at_least_one, metavar="N", help="end after N messages")
    parser.add_argument("--wait", type=seconds, metavar="S", help="end when nothing came for S seconds")
    parser.add_argument("--selector", help="only messages whose headers fit this SQL-like condition")
    parser.add_argument("--json", action="store_true", help="print properties too, as one JSON object per line")
    add_connection_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print them as they come."""
    progress = Progress("received")
    connecting = remote.patience(options, options.timeout)
    with connect(options.url, **connecting) as fabric, _receiver(fabric, options) as receiver:
        try:
            for message in receiver:
                print(_line(message) if options.json else shown(body_of(message)), flush=True)
                message.accept()
                progress.add()
                if progress.count == options.count:
                    break
        except (DeadlineExceeded, KeyboardInterrupt):
            pass  # that was all
    progress.end()
    return 0


def _receiver(fabric: Fabric, options: argparse.Namespace) -> Receiver:
    if options.topic:
        return fabric.subscribe(options.address, selector=options.selector, timeout_s=options.wait)
    if options.offset is not None:
        return fabric.stream(options.address, offset=options.offset, timeout_s=options.wait)
    return fabric.receive(
        options.address,
        accept="explicit",
        selector=options.selector,
        browse=options.browse,
        timeout_s=options.wait,
    )


def _line(message: Message) -> str:
    body = body_of(message)
    fields = {
        "body": shown(body) if isinstance(body, bytes) else body,
        "message_id": message.message_id,
        "subject": message.subject,
        "content_type": message.content_type,
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "headers": message.headers,
        "annotations": message.annotations,
    }
    return json.dumps({key: value for key, value in fields.items() if value not in (None, {})}, default=str)
