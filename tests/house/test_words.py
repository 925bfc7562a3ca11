"""Words: nothing is left undone in a comment, and no file knows the machine it was written on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from house import tree

TEXT = [
    path
    for path in tree.files()
    if path.suffix in {".py", ".pyi", ".rs", ".md", ".toml", ".json", ".sh", ".c", ".js", ".java", ""}
]
TOP = [path for path in tree.ROOT.iterdir() if path.is_file() and path.suffix in {".md", ".toml", "", ".yaml"}]

UNDONE = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX)\b")
SOMEONES_MACHINE = re.compile(r"(?<![\w.~*])/(?:home|root|work|Users)/\w")


@pytest.mark.parametrize("path", TEXT + TOP, ids=tree.name)
def test_words(path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for pattern in (UNDONE, SOMEONES_MACHINE):
        found = pattern.search(text)
        line = text.count("\n", 0, found.start()) + 1 if found else 0
        assert found is None, f"{tree.name(path)}:{line}: {found[0]!r}"
