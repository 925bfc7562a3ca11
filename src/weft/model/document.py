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


def read(path: Path) -> str:
    """The file's text."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes, which no such file is")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from error


def parse(text: str, origin: str) -> dict[str, Any]:
    """The text's tables; `origin` names it in complaints."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{origin}: {error}") from error
