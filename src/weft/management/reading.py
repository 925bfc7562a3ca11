"""Large documents, read in parts.

Owns reading a JSON object whose values may be long lists, such as the definitions of a broker with many queues. Bytes
come in; plain values go out, and other work has its turn after every few rows.
It must not know what it reads, nor hold the loop for more than a part: `json.loads` takes fifty thousand queues in one
go, and keeps the interpreter's lock on any thread.
Rule: docs/decisions/0017-pages-in-parts.md; RFC 8259, as Python's `json` understands it.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from json import JSONDecodeError, JSONDecoder
from typing import Any

from weft.management.turns import Turns
from weft.model.errors import Refused

_BLANK = re.compile(r"[ \t\n\r]*")
_DECODER = JSONDecoder()
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a character beyond 16 bits, as JSON escapes it: alone it is nothing that can be stored or sent."""


async def json_object(data: bytes, what: str) -> dict[str, Any]:
    """The object in this text; Refused if it is none, and `what` says where it came from."""
    try:
        # A byte order mark is passed over, as `json.loads` does it with bytes.
        return await _Reader(data.decode("utf-8-sig")).whole()
    except (ValueError, RecursionError) as error:
        raise Refused(f"{what} is not JSON: {error}", 400) from None
    except _OtherValue:
        raise Refused(f"{what} must be a JSON object", 400) from None


def json_value(data: bytes) -> Any:
    """The value in a short text; ValueError or RecursionError if it is none."""
    value = json.loads(data)
    if _HALF.search(data.decode(errors="replace")):
        _check_text(value)
    return value


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a character is no text") from None


class _OtherValue(Exception):
    """It is JSON, and not an object."""


class _Reader:
    """A place in a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._has_halves = _HALF.search(text) is not None
        self._turns = Turns()

    async def whole(self) -> dict[str, Any]:
        """The object that is all of the text."""
        self._skip()
        is_object = self._text.startswith("{", self._at)
        found: dict[str, Any] = {}
        if is_object:
            async for _ in self._items("}"):
                name = self._name()
                found[name] = await self._member()
        else:
            self._value()
        self._skip()
        if self._at < len(self._text):
            raise JSONDecodeError("Extra data", self._text, self._at)
        if not is_object:
            raise _OtherValue
        return found

    def _name(self) -> str:
        if not self._text.startswith('"', self._at):
            raise JSONDecodeError("Expecting property name enclosed in double quotes", self._text, self._at)
        name: str = self._value()
        self._skip()
        if not self._text.startswith(":", self._at):
            raise JSONDecodeError("Expecting ':' delimiter", self._text, self._at)
        self._at += 1
        self._skip()
        return name

    async def _member(self) -> Any:
        """What a name stands for: the elements of a list one by one, anything else at once."""
        if not self._text.startswith("[", self._at):
            return self._value()
        rows: list[Any] = []
        async for _ in self._items("]"):
            rows.append(self._value())  # noqa: PERF401 - the loop turns in between
        return rows

    async def _items(self, end: str) -> AsyncIterator[None]:
        """Stops at every item between here and the end, for it to be read."""
        self._at += 1
        self._skip()
        if self._text.startswith(end, self._at):
            self._at += 1
            return
        while True:
            yield
            self._skip()
            if self._text.startswith(end, self._at):
                self._at += 1
                return
            if not self._text.startswith(",", self._at):
                raise JSONDecodeError("Expecting ',' delimiter", self._text, self._at)
            self._at += 1
            self._skip()
            await self._turns.next_row()

    def _value(self) -> Any:
        value, self._at = _DECODER.raw_decode(self._text, self._at)
        if self._has_halves:
            _check_text(value)
        return value

    def _skip(self) -> None:
        blank = _BLANK.match(self._text, self._at)
        self._at = blank.end() if blank else self._at
