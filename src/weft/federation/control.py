"""What nodes say to each other about their fabric: small JSON messages to the address `$fabric`.

Owns the spelling of these messages and their checks. Bytes from a peer come in, a checked `Said` goes out, or
RemoteProtocolError; tables of ours become bytes.
It must not act on anything: `bridges`, `announce` and the directory do.
Words: `hello`, `reflect`, `reflected`, `refused`, `withdraw`, `verify` here; `entries` is the directory's
(docs/reference/fabric.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.federation.reach import HOPS_MAX, Key, Path
from weft.model.errors import RemoteProtocolError
from weft.model.names import FABRIC

ADDRESS = FABRIC
BODY_BYTES_MAX = 16_777_216
KEYS_PER_MESSAGE = 10_000
"""Keys in one `reflect`: half a megabyte; more go in several."""
NO_ARGUMENTS = "{}"


@dataclass(frozen=True, slots=True)
class Said:
    """One message, checked."""

    op: str
    node: str
    table: Mapping[str, Any] = field(default_factory=dict)

    def text(self, name: str, default: str | None = None) -> str:
        """A field that must be text."""
        value = self.table.get(name, default)
        if not isinstance(value, str):
            raise RemoteProtocolError(f"{self.op} from {self.node}: {name} must be text")
        return value

    def number(self, name: str, default: int = 0) -> int:
        """A field that must be a number."""
        value = self.table.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
            raise RemoteProtocolError(f"{self.op} from {self.node}: {name} must be a number")
        return value

    def flag(self, name: str) -> bool:
        """A field that is true, or not."""
        return self.table.get(name) is True


def encode(op: str, node: str, **table: Any) -> bytes:
    """The bytes of a message."""
    return json.dumps({"op": op, "node": node, **table}, separators=(",", ":")).encode()


def decode(body: bytes) -> Said:
    """A peer's message; RemoteProtocolError if it is none."""
    if len(body) > BODY_BYTES_MAX:
        raise RemoteProtocolError(f"a control message of {len(body)} bytes; {BODY_BYTES_MAX} are allowed")
    try:
        table = json.loads(body)
        if b"\\u" in body:
            json.dumps(table, ensure_ascii=False).encode()  # half a pair is no text, and no name of anything
    except (ValueError, RecursionError):
        raise RemoteProtocolError("a control message that is not JSON") from None
    if not isinstance(table, dict):
        raise RemoteProtocolError("a control message that is not a table")
    op, node = table.pop("op", None), table.pop("node", None)
    if not isinstance(op, str) or not isinstance(node, str) or not node:
        raise RemoteProtocolError("a control message without op or node")
    return Said(op, node, table)


def pack_paths(added: Iterable[tuple[Key, Path]]) -> list[list[Any]]:
    """Keys grouped by their path: many share one."""
    groups: dict[Path, list[Any]] = {}
    for key, path in added:
        groups.setdefault(path, []).append(_pack(key))
    return [[list(path), packed] for path, packed in groups.items()]


def pack_origins(dropped: Iterable[tuple[Key, str]]) -> list[list[Any]]:
    """Keys grouped by an origin of theirs."""
    groups: dict[str, list[Any]] = {}
    for key, origin in dropped:
        groups.setdefault(origin, []).append(_pack(key))
    return [[origin, packed] for origin, packed in groups.items()]


def unpack_paths(said: Said, name: str) -> list[tuple[Key, Path]]:
    """What `pack_paths` made, from a peer."""
    found: list[tuple[Key, Path]] = []
    for group in _list(said, name):
        match group:
            case [[*path], [*keys]] if path and len(path) <= HOPS_MAX and all(isinstance(node, str) for node in path):
                nodes = tuple(path)
                found += [(_unpack(said, key), nodes) for key in keys]
            case _:
                raise RemoteProtocolError(f"{said.op} from {said.node}: {name} holds no paths with keys")
    return found


def unpack_origins(said: Said, name: str) -> list[tuple[Key, str]]:
    """What `pack_origins` made, from a peer."""
    found: list[tuple[Key, str]] = []
    for group in _list(said, name):
        match group:
            case [str(origin), [*keys]]:
                found += [(_unpack(said, key), origin) for key in keys]
            case _:
                raise RemoteProtocolError(f"{said.op} from {said.node}: {name} holds no origins with keys")
    return found


def digest(keys: Iterable[Key]) -> str:
    """A short name for a set of keys: two sets with the same digest are the same set."""
    total = 0
    for routing_key, arguments in keys:
        packed = hashlib.blake2b(f"{routing_key}\x00{arguments}".encode(), digest_size=16).digest()
        total = (total + int.from_bytes(packed, "big")) % 2**128
    return f"{total:032x}"


def _pack(key: Key) -> str | list[str]:
    return key[0] if key[1] == NO_ARGUMENTS else [key[0], key[1]]


def _unpack(said: Said, packed: object) -> Key:
    match packed:
        case str():
            return packed, NO_ARGUMENTS
        case [str(routing_key), str(arguments)]:
            return routing_key, arguments
        case _:
            raise RemoteProtocolError(f"{said.op} from {said.node}: {packed!r} is not a key")


def _list(said: Said, name: str) -> list[Any]:
    value = said.table.get(name, [])
    if not isinstance(value, list):
        raise RemoteProtocolError(f"{said.op} from {said.node}: {name} must be a list")
    return value
