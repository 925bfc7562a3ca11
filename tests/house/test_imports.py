"""Imports: layers point downwards, every module can be imported alone, and `import weft` is cheap."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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


ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""A process with several cannot be copied."""
OTHERS = ("asyncio", "ssl", "logging", "argparse", "aiohttp", "pandas", "pyarrow", "pyspark.sql")
"""What weft imports of others and what takes long; nobody has imported anything of weft."""
ALONE = f"""
import importlib, json, os, sys, traceback
for other in {OTHERS}:
    importlib.import_module(other)
told = {{}}
for module in sys.argv[1:]:
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            importlib.import_module(module)
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader) as words:
        told[module] = words.read()
    told[module] += f"status {{status}}" if (status := os.wait()[1]) else ""
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def complaints() -> dict[str, str]:
    """Of each module as the first of weft that a process imports; the process is a copy of one that has all others."""
    command = [sys.executable, "-c", ALONE, *MODULES]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tree.ROOT, env={**os.environ, **ONE_THREAD})
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


@pytest.mark.timeout(300)  # all of them at the first
@pytest.mark.parametrize("module", MODULES)
def test_imports_alone(module: str, complaints: dict[str, str]) -> None:
    assert complaints[module] == ""


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
