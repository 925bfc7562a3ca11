"""The README tells the truth: its map points at what exists, its code runs, its links lead somewhere."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import peers
from house import tree
from weft.cli import COMMANDS, load

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
    assert ran.returncode == 0, ran.stderr


def test_the_start_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    text = (tree.ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)
    code = [block for block in map(textwrap.dedent, blocks) if re.match(r"\n*(from|import) ", block)]
    assert len(code) == 3
    node = peers.start_weft(tmp_path)
    try:
        program = "".join(code).replace(":5672", f":{node.port}")
        env = {**os.environ, "WEFT_URL": f"amqp://127.0.0.1:{node.port}"}
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, env=env)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.splitlines() == ["{'coffee': 1}", "b'one coffee'"]
    finally:
        node.stop()


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((tree.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named: dict[str, str] = {}
    for path in [*PAGES, *tree.files(".py", under=("src", "examples"))]:
        for extras in re.findall(r"weft\[([a-z,]+)\]", path.read_text(encoding="utf-8")):
            named |= dict.fromkeys(extras.split(","), tree.name(path))
    assert {"zookeeper", "spark"} <= named.keys()
    assert not named.keys() - project["optional-dependencies"].keys(), named


@pytest.mark.parametrize("page", PAGES, ids=tree.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{tree.name(page)} links to {target}"


LINE = re.compile(r"^(?:    )?(?:\$ )?(?:\.venv/bin/)?(weft [a-z][a-z-]*(?: .*?)?)(?:\s+# .*)?$", re.MULTILINE)


def typed(text: str) -> list[list[str]]:
    """The commands of weft in blocks, as a reader would type them."""
    blocks = re.findall(r"^    .*\n", text, re.MULTILINE) + re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL)
    lines = LINE.findall("".join(blocks))
    return [shlex.split(one) for line in lines if "…" not in line for one in line.split("; ")]


@pytest.mark.parametrize("page", PAGES, ids=tree.name)
def test_commands_are_as_they_are_written(page: Path) -> None:
    """Whatever is typed on a line of its own is understood, and every option that is named somewhere exists."""
    text = page.read_text(encoding="utf-8")
    for words in typed(text):
        if words[1] in COMMANDS:
            load(words[1])[1].parse_args(words[2:])
    for words in map(str.split, re.findall(r"`(weft [a-z][^`]*)`", text)):
        assert words[1] in (*COMMANDS, "signature"), words
        for option in (word for word in words if re.fullmatch(r"--[a-z][a-z-]*", word)):
            assert option in options(load(words[1])[1]), words


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Every option of a command and of its words."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for inner in action.choices.values() for option in options(inner)}
    return found
