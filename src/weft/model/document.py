"""A TOML file that a person wrote, read with complaints a person can use.

Owns reading and size limit; what the keys mean is its caller's. A path or a text comes in, a plain dictionary goes out,
or a `ConfigError` of the form `FILE: what is wrong`.
It must never know a key.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from weft.model.errors import ConfigError

FILE_BYTES_MAX = 1_048_576
"""People write such files; anything larger is the wrong file."""


def read(path: Path, bytes_max: int = FILE_BYTES_MAX) -> str:
    """The file's text."""
    data = read_bytes(path, bytes_max)
    try:
        return data.decode("utf-8-sig")  # some editors begin a file with a mark of its encoding
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from error


def read_bytes(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The file, never more of it than so many bytes: a name may be that of a device without end."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ConfigError(f"cannot read {path}: {reason}") from error
    if len(data) > bytes_max:
        raise ConfigError(f"{path}: larger than {bytes_max} bytes, which no such file is")
    return data


def parse(text: str, origin: str) -> dict[str, Any]:
    """The text's tables; `origin` names it in complaints."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{origin}: {error}") from error
