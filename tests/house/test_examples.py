"""Every example runs to its end."""

import os
import subprocess
import sys

import pytest

from house import tree

EXAMPLES = [path for path in tree.files(".py", under=("examples",)) if path.name != "tasks.py"]
OPTIONS = {"demo.py": ["--no-benchmarks"]}


@pytest.mark.parametrize("path", EXAMPLES, ids=tree.name)
def test_example(path: os.PathLike[str]) -> None:
    name = os.path.basename(path)
    ran = subprocess.run(
        [sys.executable, str(path), *OPTIONS.get(name, [])], capture_output=True, text=True, timeout=55, cwd=tree.ROOT
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout
