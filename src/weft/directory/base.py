"""What a directory is: named entries in a tree, that can be watched, and that may end with who put them.

Owns the interface, the values it speaks in and the rules for names. Paths and tables come in; entries and differences
go out.
It must not know where entries are kept: `embedded` and `zookeeper` do.
Rule: every directory passes the same tests (tests/unit/directory/test_directories.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from weft.model.errors import ConfigError

PATH_BYTES_MAX = 1_024
VALUE_BYTES_MAX = 262_144
"""An entry says where something is and how it is set up; what is larger is data."""

_SEGMENT = re.compile(r"[^/\x00-\x1f\x7f]+")

Value = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it is now."""

    path: str
    value: Value
    version: int
    """Grows with each change of this entry."""
    owner: str = ""
    """The node that put it, where the directory knows."""
    ephemeral: bool = False
    """Ends with its owner."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What happened to one entry; `entry` is None if it is gone."""

    path: str
    entry: Entry | None


Watcher = Callable[[Sequence[Difference]], None]
"""Told of differences, on the loop's thread. The first call, before `watch` is over, holds what is there already."""


class Watch(Protocol):
    """A watcher that can be taken away."""

    def close(self) -> None:
        """Tell it nothing more."""


class Directory(Protocol):
    """Entries of a fabric, or of whoever shares the directory. Raises Unavailable while it cannot be reached."""

    async def start(self) -> None:
        """Be there; ephemeral entries last from now on until `stop`."""

    async def stop(self) -> None:
        """Leave: what was ephemeral goes."""

    async def put(self, path: str, value: Value, *, ephemeral: bool = False) -> Entry:
        """Make an entry, or change it."""

    async def get(self, path: str) -> Entry | None:
        """One entry."""

    async def delete(self, path: str) -> bool:
        """Take an entry away; was it there?"""

    async def entries(self, prefix: str) -> list[Entry]:
        """The entries at and below a path, by path."""

    def known(self) -> list[Entry]:
        """All entries that are at hand without asking anyone: what was watched, at least."""

    async def watch(self, prefix: str, watcher: Watcher) -> Watch:
        """Tell of everything that happens at and below a path."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_exc: object) -> None: ...


def check_path(path: str) -> str:
    """A path begins with a slash and has no empty part."""
    parts = path.split("/")
    is_right = parts[0] == "" and len(parts) > 1 and all(_SEGMENT.fullmatch(part) for part in parts[1:])
    if not is_right or ".." in parts or "." in parts or len(path.encode()) > PATH_BYTES_MAX:
        raise ConfigError(f"{path!r} is not a path of the directory, such as /services/user.lifecycle")
    return path


def check_prefix(prefix: str) -> str:
    """The root, or a path."""
    return "" if prefix in ("", "/") else check_path(prefix.rstrip("/"))


def is_below(path: str, prefix: str) -> bool:
    """Is a path at or below a prefix?"""
    return not prefix or path == prefix or path.startswith(f"{prefix}/")


def encode_value(value: Mapping[str, Any]) -> bytes:
    """A value as bytes; ConfigError if it cannot be kept."""
    try:
        data = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"an entry's value must be plain: {error}") from None
    if len(data) > VALUE_BYTES_MAX:
        raise ConfigError(f"an entry's value has {len(data)} bytes; {VALUE_BYTES_MAX} are allowed")
    return data


def decode_value(data: bytes | None) -> Value:
    """A value from bytes that others may have written; what is no table becomes one with the text in it."""
    if not data:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {"text": data.decode(errors="replace")}
    return value if isinstance(value, dict) else {"value": value}
