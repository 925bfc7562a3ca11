"""What values of options may be: counts, seconds, pairs; and text that may be printed.

Owns how the text of an option becomes a value, and the words for a text that cannot. Text comes in; a value goes out,
or an error that argparse or `weft.cli` tells in one line.
It must never know which command an option belongs to.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from typing import Any

from weft.model.errors import ConfigError

COUNT_MAX = 2**63 - 1


def at_least_one(text: str) -> int:
    """A count of which 0 would make no sense."""
    return _count(text, 1)


def not_negative(text: str) -> int:
    """A count or a size that may be 0."""
    return _count(text, 0)


def _count(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{number} is less than {least}")
    if number > COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{number} is more than {COUNT_MAX}")
    return number


def ascii_text(text: str) -> str:
    """Text that protocols write as symbols: no letters beyond ASCII."""
    if not (text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!a} is not plain ASCII")
    return text


def offset(text: str) -> int | str:
    """Where a stream is read from: a number, or a word that the node knows."""
    return not_negative(text) if text.isdecimal() else text


def seconds(text: str) -> float:
    """A time, which does not go backwards or on for ever."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not (number > 0 and math.isfinite(number)):
        raise argparse.ArgumentTypeError(f"{text} is not more than 0 seconds")
    return number


def key_values(texts: Iterable[str], option: str = "") -> dict[str, Any]:
    """KEY=VALUE texts, of an option if it is named; a value is JSON if it can be read so, else text."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option}{' ' if option else ''}{text!r} is not KEY=VALUE")
        try:
            found[key] = json.loads(value)
        except (ValueError, RecursionError):
            found[key] = value
    return found


def printable(text: str) -> str:
    """Text of a peer, harmless for a terminal: line ends, escapes and the like as Python spells them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
