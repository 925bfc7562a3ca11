"""Argument tables as text: the one spelling under which they are stored and compared.

Owns the translation between a `Table` (Python values of an AMQP field table) and canonical JSON.
Equal tables give equal text whatever the order of their keys, so the text also serves as an identity.
It knows nothing of what arguments mean, and refuses text it did not write.
What JSON lacks is spelled as an object with one key that begins with a dollar sign.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime

from weft.model.errors import Corrupt, LocalProtocolError
from weft.model.events import Table

_EMPTY = "{}"


def encode_table(table: Table) -> str:
    """The canonical text of a table."""
    if not table:
        return _EMPTY
    return json.dumps(_encode(table), sort_keys=True, separators=(",", ":"))


def decode_table(text: str) -> Table:
    """The table of a canonical text."""
    if text == _EMPTY:
        return {}
    try:
        value = _decode(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise Corrupt(f"stored arguments cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise Corrupt("stored arguments are not a table")
    return value


def _encode(value: object) -> object:
    match value:
        case bytes() | bytearray():
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        case datetime():
            return {"$time": value.isoformat()}
        case list() | tuple():
            return [_encode(item) for item in value]
        case dict():
            table = {str(key): _encode(item) for key, item in value.items()}
            return {"$table": table} if any(key.startswith("$") for key in table) else table
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise LocalProtocolError(f"an argument cannot be a {type(value).__name__}")


def _decode(value: object) -> object:
    match value:
        case list():
            return [_decode(item) for item in value]
        case {"$bytes": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
        case {"$time": str(text), **rest} if not rest:
            return datetime.fromisoformat(text)
        case {"$table": dict(table), **rest} if not rest:
            return {key: _decode(item) for key, item in table.items()}
        case dict():
            return {key: _decode(item) for key, item in value.items()}
        case _:
            return value
