"""The shape of source files: short enough to read, headed by what they own, documented where others look."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from house import tree

FILE_LINES_MAX = 600
PYTHON_FUNCTION_LINES_MAX = 60
RUST_FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 120

PYTHON = [path for path in tree.files(".py", ".pyi") if not tree.generated(path)]
RUST = [path for path in tree.files(".rs") if not tree.generated(path)]


def test_there_is_something_to_check() -> None:
    assert len(PYTHON) > 20
    assert len(RUST) > 5


@pytest.mark.parametrize("path", PYTHON + RUST, ids=tree.name)
def test_file_and_line_length(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= FILE_LINES_MAX, f"{tree.name(path)} has {len(lines)} lines"
    long = [number for number, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX]
    assert not long, f"{tree.name(path)} is too wide in lines {long}"


@pytest.mark.parametrize("path", PYTHON, ids=tree.name)
def test_python_function_length(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= PYTHON_FUNCTION_LINES_MAX, f"{tree.name(path)}: {node.name} has {length} lines"


@pytest.mark.parametrize("path", RUST, ids=tree.name)
def test_rust_function_length(path: Path) -> None:
    for function, length in rust_functions(path.read_text(encoding="utf-8")):
        assert length <= RUST_FUNCTION_LINES_MAX, f"{tree.name(path)}: {function} has {length} lines"


def rust_functions(text: str) -> list[tuple[str, int]]:
    """Name and length of each function, as rustfmt lays them out: the closing brace stands under the `fn`."""
    found = []
    lines = text.splitlines()
    for start, line in enumerate(lines):
        opening = re.match(
            r"(\s*)(?:pub(?:\([\w:\s]+\))?\s+)?(?:const\s+|async\s+|unsafe\s+|extern\s+\"C\"\s+)*fn\s+(\w+)", line
        )
        if opening is None:
            continue
        for end in range(start, len(lines)):
            if lines[end].rstrip() == opening[1] + "}" or (end == start and lines[end].rstrip().endswith(("}", ";"))):
                found.append((opening[2], end - start + 1))
                break
            if lines[end].startswith(opening[1] + ")") and lines[end].rstrip().endswith(";"):
                break
    return found


def test_rust_functions_are_found() -> None:
    source = (
        "impl X {\n    pub fn a(\n        b: u8,\n    ) -> u8 {\n        b\n    }\n    fn c() {}\n    fn d(&self);\n}\n"
    )
    assert rust_functions(source) == [("a", 5), ("c", 1), ("d", 1)]


@pytest.mark.parametrize("path", [path for path in PYTHON if path.parent.name != "corpus"], ids=tree.name)
def test_python_header(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{tree.name(path)} has no header"


@pytest.mark.parametrize("path", RUST, ids=tree.name)
def test_rust_header(path: Path) -> None:
    first = next((line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()), "")
    assert first.startswith(("//!", "#![")), f"{tree.name(path)} has no header"


PUBLIC = [path for path in PYTHON if tree.name(path).startswith("src/weft/") and path.suffix == ".py"]


@pytest.mark.parametrize("path", PUBLIC, ids=tree.name)
def test_public_names_are_documented(path: Path) -> None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{tree.name(path)}: {node.name} is public and has no docstring"
