"""Answers as bytes, written in parts.

Owns writing a large document, a map with long lists in it, as JSON or as an AMQP map. Plain values come in; bytes go
out, and other work has its turn after every few rows.
It must not know what it writes, nor hold the loop for longer than a part.
Rule: docs/decisions/0017-pages-in-parts.md; AMQP 1.0 part 1, section 1.6 (`map32`, `list32`), part 3, section 3.2.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from weft._kernel import encode_json, encode_value
from weft.management.query import each

SECTION = encode_value(None)[:-1]
"""What an amqp-value section begins with."""
LONG = 8
"""Longer lists are written row by row."""
_LIST32, _MAP32 = b"\xd0", b"\xd1"


async def json_document(document: Mapping[str, object]) -> bytes:
    """A document as JSON."""
    written = [encode_json(name) + b":" + await _json_part(value) for name, value in document.items()]
    return b"{" + b",".join(written) + b"}"


async def _json_part(value: object) -> bytes:
    return b"[" + b",".join(await each(value, encode_json)) + b"]" if _is_long(value) else encode_json(value)


async def amqp_document(document: Mapping[str, object]) -> bytes:
    """A document as the section of an AMQP 1.0 message."""
    written: list[bytes] = []
    for name, value in document.items():
        part = _compound(_LIST32, await each(value, _bare)) if _is_long(value) else _bare(value)
        written += (_bare(name), part)
    return SECTION + _compound(_MAP32, written)


def _is_long(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list) and len(value) > LONG


def _bare(value: object) -> bytes:
    return encode_value(plain(value))[len(SECTION) :]


def _compound(code: bytes, items: list[bytes]) -> bytes:
    data = b"".join(items)
    return code + (len(data) + 4).to_bytes(4) + len(items).to_bytes(4) + data


def plain(value: object) -> object:
    """A value in AMQP's types: other keys become text, other things their text."""
    match value:
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case None | bool() | int() | float() | str() | bytes():
            return value
    return value if hasattr(value, "timestamp") else str(value)
