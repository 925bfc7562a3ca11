"""The files of the project, for tests that look at all of them.

Owns which folders count and what is left out (built or downloaded files). It must never judge a file: the tests do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = (
    "src",
    "crates",
    "tests",
    "tools",
    "docs",
    "schema",
    "examples",
    "benchmarks",
    "fuzz",
    "newsfragments",
    ".ci",
)
LEFT_OUT = {"target", "node_modules", "__pycache__", "corpus", "artifacts", "results", "bin", "build"}


def files(*suffixes: str, under: tuple[str, ...] = FOLDERS) -> list[Path]:
    """Source files with one of the suffixes; all files when none is named."""
    return sorted(path for folder in under for path in _walk(ROOT / folder) if not suffixes or path.suffix in suffixes)


def _walk(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.is_dir() and path.name not in LEFT_OUT and not path.name.startswith("."):
            yield from _walk(path)
        elif path.is_file():
            yield path


def generated(path: Path) -> bool:
    """Written by a tool, so its length is the schema's."""
    return "generated" in path.relative_to(ROOT).as_posix()


def name(path: Path) -> str:
    """A path as it is told in a complaint."""
    return path.relative_to(ROOT).as_posix()
