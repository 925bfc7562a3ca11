"""The README tells the truth: its map points at what exists, its code runs, its links lead somewhere."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from house import tree

README = (tree.ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*tree.ROOT.glob("*.md"), *tree.files(".md", under=("docs",))]


def map_paths() -> list[str]:
    _, _, table = README.partition("| I look for")
    rows = itertools.takewhile(lambda line: line.startswith("|"), table.splitlines()[1:])
    named = [path for row in rows for path in re.findall(r"`([^`]+)`", row.split("|")[2])]
    return [expanded for path in named for expanded in expand(path)]


def expand(path: str) -> list[str]:
    """`a/{b,c}/d` names two paths."""
    choice = re.search(r"\{([^}]*)\}", path)
    if choice is None:
        return [path]
    return [
        one for word in choice[1].split(",") for one in expand(path[: choice.start()] + word + path[choice.end() :])
    ]


def test_the_map_is_there() -> None:
    assert len(map_paths()) > 8


@pytest.mark.parametrize("path", map_paths())
def test_the_map_points_at_what_exists(path: str) -> None:
    assert (tree.ROOT / path).exists()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_the_code_runs(code: str) -> None:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=tree.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{tree.name(page)} links to {target}"
