"""`weft trace`: where a message has been, from node to node.

Owns the words of this command. Messages that crossed a link carry their identity and the nodes they passed; this reads
them from wherever the message is now.
It must never take a message.
Rule: annotations `x-opt-weft-id` and `x-opt-weft-trace` (docs/reference/mapping.md).
"""

from __future__ import annotations

import argparse
import asyncio

from weft.cli import remote, showing
from weft.cli.options import at_least_one
from weft.client.management import Management
from weft.client.message import Message


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    parser.add_argument("address", help="the queue or stream the message is in")
    parser.add_argument("id", nargs="?", help="its message-id, correlation-id or fabric id (default: every message)")
    parser.add_argument("--count", type=at_least_one, metavar="N", help="at most so many messages")


def run(options: argparse.Namespace) -> int:
    """Print the way of each message that fits."""
    here: list[str] = []

    async def name(management: Management) -> int:
        here.append(str((await management.read("node"))["name"]))
        return 0

    code = remote.run(options, name)
    return code or asyncio.run(_run(options, here[0]))


async def _run(options: argparse.Namespace, here: str) -> int:
    found = 0
    rows: list[dict[str, object]] = []
    async for message in showing.browse(options, None, showing.QUIET_S):
        if options.id is not None and options.id not in _names(message):
            continue
        rows.append({"id": _names(message)[0], "way": " -> ".join(_way(message, here)), "subject": message.subject})
        found += 1
        if found == options.count:
            break
    remote.print_rows(rows, ("id", "way", "subject"), as_json=options.json)
    return 0 if rows else 1


def _names(message: Message) -> list[str]:
    names = [message.annotations.get(showing.ID), message.message_id, message.correlation_id]
    return [str(name) for name in names if name is not None] or ["-"]


def _way(message: Message, here: str) -> list[str]:
    """The nodes it passed, the one it is at last."""
    passed = [str(name) for name in message.annotations.get(showing.TRACE) or ()]
    return passed if passed and passed[-1] == here else [*passed, here]
