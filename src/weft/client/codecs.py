"""Bodies: values to bytes with a content type, and back.

Owns the table of codecs, which a program may add to. A value comes in and its bytes and content type go out; bytes and
a content type come in and a value goes out. It must never guess: bytes without a content type stay bytes.
Rule: bytes as they are, str as `text/plain`, whatever JSON can say as `application/json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class Encoded(NamedTuple):
    """A body that is encoded already."""

    data: bytes | str
    content_type: str | None


_DECODERS: dict[str, Callable[[bytes], Any]] = {}
_ENCODERS: dict[type, tuple[str, Callable[[Any], bytes]]] = {}


def add_codec(
    content_type: str,
    *,
    decode: Callable[[bytes], Any] | None = None,
    encode: Callable[[Any], bytes] | None = None,
    type: type | None = None,  # noqa: A002 - what a program calls it
) -> None:
    """Teach the client a content type: how its bodies are decoded, and which Python type is encoded so.

    >>> from fractions import Fraction
    >>> add_codec("text/x-fraction", decode=lambda data: Fraction(data.decode()),
    ...           encode=lambda value: str(value).encode(), type=Fraction)
    >>> encode(Fraction(1, 3))
    (b'1/3', 'text/x-fraction')
    >>> decode(b"1/3", "text/x-fraction")
    Fraction(1, 3)
    """
    if decode is not None:
        _DECODERS[content_type] = decode
    if encode is not None and type is not None:
        _ENCODERS[type] = (content_type, encode)


def encode(value: Any) -> tuple[bytes | str, str | None]:
    """The body and the content type of a value.

    >>> encode(b"as it is"), encode("text")
    ((b'as it is', None), ('text', 'text/plain; charset=utf-8'))
    >>> encode({"amount": 10})
    ('{"amount":10}', 'application/json')
    """
    kind = type(value)
    if kind is bytes:
        return value, None
    if kind is str:
        return value, TEXT
    if isinstance(value, Encoded):
        return value
    codec = _ENCODERS.get(kind)
    if codec is not None:
        return codec[1](value), codec[0]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), None
    try:
        return json.dumps(value, separators=(",", ":")), JSON
    except TypeError as error:
        raise TypeError(f"a body is bytes, str or what JSON can say ({error}); see weft.client.add_codec") from None


def decode(body: bytes, content_type: str | None) -> Any:
    """The value of a body."""
    if content_type is None:
        return body
    decoder = _DECODERS.get(content_type)
    if decoder is not None:
        return decoder(body)
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind == JSON or kind.endswith("+json"):
        return json.loads(body)
    if kind.startswith("text/"):
        _, _, charset = parameters.partition("charset=")
        return body.decode(charset.strip().strip('"') or "utf-8")
    decoder = _DECODERS.get(kind)
    return body if decoder is None else decoder(body)
