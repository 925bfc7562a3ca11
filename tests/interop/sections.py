"""AMQP 1.0 messages as bytes, section by section: what must arrive as it was sent.

Owns messages that a client's own encoder would never write. Sections come in, bytes go out; it knows no connection.
Rule: AMQP 1.0 part 3.2.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from proton import Data, ubyte, ulong


def encode(*sections: tuple[int, Callable[[Data], None]]) -> bytes:
    """Sections exactly as asked for, including forms Proton's own Message would never write."""
    out = b""
    for code, fill in sections:
        section = Data()
        section.put_described()
        section.enter()
        section.put_ulong(code)
        fill(section)
        section.exit()
        out += section.encode()
    return out


def bare_message() -> bytes:
    return encode(
        (0x73, lambda d: d.put_object([ulong(7), b"guest", "to-somewhere", "subject", "reply-here", uuid.UUID(int=9)])),
        (0x74, lambda d: d.put_object({"text": "x", "int": 5, "list-free": True, "float": 1.5, "ub": ubyte(3)})),
        (0x75, lambda d: d.put_binary(b"first")),
        (0x75, lambda d: d.put_binary(bytes(range(256)))),
    )


BODIES: dict[str, bytes] = {
    "data": encode((0x75, lambda d: d.put_binary(b"one"))),
    "several-data": encode(*[(0x75, lambda d: d.put_binary(b"part"))] * 3),
    "empty-data": encode((0x75, lambda d: d.put_binary(b""))),
    "value-string": encode((0x77, lambda d: d.put_string("text"))),
    "value-null": encode((0x77, lambda d: d.put_null())),
    "value-map": encode((0x77, lambda d: d.put_object({"a": [1, {"b": None}]}))),
    "sequence": encode((0x76, lambda d: d.put_object([1, "two", 3.0])), (0x76, lambda d: d.put_object([]))),
    "properties": bare_message(),
}
