"""Messages as lines on a terminal: what `browse`, `tap` and `trace` print.

Owns the one form of a message on a line, and reading messages from an address without taking them.
It must never settle a message that somebody else is meant to get.
Rule: a body is told as text if it is some, else by its size; docs/guides/management.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import AsyncIterator
from typing import Any

from weft.cli import remote
from weft.cli.options import printable
from weft.client import Fabric, connect
from weft.client.management import Management
from weft.client.message import Message
from weft.model.errors import DeadlineExceeded, Refused

BODY_CHARS_MAX = 200
QUIET_S = 1.0
"""Silence after which a queue has shown all it has."""
ID, TRACE = "x-opt-weft-id", "x-opt-weft-trace"


async def browse(options: argparse.Namespace, count: int | None, quiet_s: float | None) -> AsyncIterator[Message]:
    """Messages of the queue that options name, left where they are, until there are no more or so many were seen."""
    seen = 0
    async with connect(options.url, **remote.patience(options)) as fabric:
        await check(fabric, options.address)
        receiver = fabric.receive(options.address, browse=True, timeout_s=quiet_s)
        try:
            async for message in receiver:
                yield message
                seen += 1
                if count is not None and seen >= count:
                    return
        except DeadlineExceeded:
            return


async def check(fabric: Fabric, address: str) -> None:
    """Refused if there is nothing of this address: who only looks must not make a queue of a word that was mistyped."""
    management, (exchange, slash, _) = Management(fabric), address.partition("/")
    if address.startswith("/") or await management.find("queue", address) is not None:
        return
    if not slash:
        raise Refused(f"there is no queue '{address}'", 404)
    if await management.find("exchange", exchange) is None:
        raise Refused(f"there is no exchange '{exchange}', nor a queue '{address}'", 404)


def as_row(message: Message) -> dict[str, Any]:
    """A message as plain values."""
    values = {
        "subject": message.subject,
        "message_id": message.message_id,
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "content_type": message.content_type,
        "headers": message.headers or None,
        "annotations": message.annotations or None,
        "offset": message.offset,
        "body": _body(message),
    }
    return {key: value for key, value in values.items() if value is not None}


def as_line(message: Message) -> str:
    """A message on one line."""
    row = as_row(message)
    body = row.pop("body", "")
    words = [f"{key}={json.dumps(value, default=str)}" for key, value in row.items() if key != "annotations"]
    return " ".join([*words, printable(str(body))])


def _body(message: Message) -> str:
    value = message.body
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return f"<{len(data)} bytes>"
    else:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= BODY_CHARS_MAX else f"{text[:BODY_CHARS_MAX]}… ({len(text)} characters)"
