"""Imports: layers point downwards, every module can be imported alone, and `import weft` is cheap."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from house import tree

CLIENT_PARTS = {"weft", "weft._kernel", "weft.client", "weft.model", "weft.net"}
CLIENT_MODULES_MAX = 50
"""Modules that the client may load beyond those of asyncio: a few more than it does."""

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


def loaded_by(code: str) -> set[str]:
    return set(run(f"import sys; {code}; print(*sys.modules)").stdout.split())


def test_importing_weft_loads_nothing_else() -> None:
    assert loaded_by("import weft") - loaded_by("pass") == {"__future__", "weft"}


def test_the_client_loads_little_more_than_asyncio() -> None:
    """Modules are counted because their number is what an import costs, whatever the machine does meanwhile."""
    own = loaded_by("import weft; weft.connect") - loaded_by("import asyncio")
    ours = {name for name in own if name.partition(".")[0] == "weft"}
    assert "weft.client.fabric" in ours
    assert {".".join(name.split(".")[:2]) for name in ours} <= CLIENT_PARTS
    assert {name.partition(".")[0] for name in own - ours} <= sys.stdlib_module_names
    assert len(own) <= CLIENT_MODULES_MAX


def test_importing_the_client_takes_no_time_to_speak_of() -> None:
    """The target is 0.1 s on a machine that does nothing else; CPU time of a busy one may be several times that."""
    code = "import time; before = time.process_time(); import weft; weft.connect; print(time.process_time() - before)"
    assert min(float(run(code).stdout) for _ in range(3)) < 0.5


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
