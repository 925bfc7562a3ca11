"""Imports: layers point downwards, every module can be imported alone, and `import weft` is cheap."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from house import tree

HEAVY = {"asyncio", "ssl", "uvloop", "weft._kernel", "weft.server", "importlib.metadata"}

MODULES = [
    ".".join(path.relative_to(tree.ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in tree.files(".py", under=("src",))
    if path.name != "__main__.py"
]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tree.ROOT)


@pytest.fixture(scope="module")
def imports() -> dict[str, subprocess.CompletedProcess[str]]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(MODULES, pool.map(lambda module: run(f"import {module}"), MODULES), strict=True))


@pytest.mark.timeout(300)  # some of them import Spark and pandas, a second each
@pytest.mark.parametrize("module", MODULES)
def test_imports_alone(module: str, imports: dict[str, subprocess.CompletedProcess[str]]) -> None:
    assert imports[module].returncode == 0, imports[module].stderr


def test_importing_weft_is_cheap() -> None:
    loaded = run("import sys, weft; print(*sys.modules)").stdout.split()
    assert not HEAVY & set(loaded)


def test_every_public_name_can_be_had() -> None:
    assert run("import weft; [getattr(weft, name) for name in weft.__all__]").returncode == 0


def test_layers() -> None:
    linter = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        capture_output=True,
        text=True,
        cwd=tree.ROOT,
    )
    assert linter.returncode == 0, linter.stdout + linter.stderr
