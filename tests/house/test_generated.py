"""Generated files are what their schema makes."""

import subprocess
import sys

import pytest

from house import tree


@pytest.mark.parametrize("tool", ["codegen.py", "config_schema.py", "management_schema.py", "http_reference.py"])
def test_generated_files_match_their_schema(tool: str) -> None:
    check = subprocess.run(
        [sys.executable, str(tree.ROOT / "tools" / tool), "--check"], capture_output=True, text=True, cwd=tree.ROOT
    )
    assert check.returncode == 0, check.stdout + check.stderr
