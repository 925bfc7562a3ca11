"""What the commands that send and receive have in common: options, bodies, progress.

Owns the words of those options and the line that tells how far a command is. Text comes in from options and standard
input, bodies go out; rates go to standard error, so that standard output holds messages alone.
It must never send anything itself.
Rule: progress is shown on a terminal only, once a second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from time import monotonic

from weft.cli import remote
from weft.cli.options import seconds
from weft.client.message import Message

TICK_S = 1.0


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Where to connect to, and how long to try."""
    remote.add_node(parser)
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="S", help="give up after S seconds (default: %(default)s)"
    )


def bodies(words: list[str]) -> Iterator[str | bytes]:
    """Bodies from the command line, or one per line of standard input: text, or bytes if they are none."""
    for line in map(os.fsencode, words) if words else sys.stdin.buffer:
        data = line if words else line.rstrip(b"\n")
        try:
            yield data.decode()
        except UnicodeDecodeError:
            yield data


def body_of(message: Message) -> object:
    """The body of a message; as it came, if it is not what its content type says."""
    try:
        return message.body
    except (ValueError, LookupError, RecursionError):
        return message.data


def shown(body: object) -> str:
    """A body as one line of text."""
    if isinstance(body, bytes):
        return body.decode(errors="backslashreplace")
    return body if isinstance(body, str) else json.dumps(body, default=str)


class Progress:
    """How many messages went by, and how fast."""

    def __init__(self, verb: str) -> None:
        self.count = 0
        self._verb = verb
        self._started = self._told = monotonic()
        self._told_count = 0
        self._is_shown = sys.stderr.isatty()

    def add(self, count: int = 1) -> None:
        """So many more."""
        self.count += count
        now = monotonic()
        if self._is_shown and now - self._told >= TICK_S:
            rate = (self.count - self._told_count) / (now - self._told)
            print(f"\r{self._verb} {self.count:,} messages, {rate:,.0f}/s ", end="", file=sys.stderr, flush=True)
            self._told, self._told_count = now, self.count

    def end(self) -> None:
        """The last word."""
        secs = max(monotonic() - self._started, 1e-9)
        start = "\r" if self._is_shown else ""
        messages = f"{self.count:,} message{'' if self.count == 1 else 's'}"
        print(f"{start}{self._verb} {messages} in {secs:.2f} s, {self.count / secs:,.0f}/s", file=sys.stderr)
