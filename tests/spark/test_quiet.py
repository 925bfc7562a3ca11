"""What Spark's Python processes say when their JVM is gone: nothing; of everything else, all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ENDING = "from weft._spark_daemon import hush; hush(); raise {}"
CAUGHT = """
import traceback
from weft._spark_daemon import hush
hush()
try: raise {}
except OSError: traceback.print_exc()
"""


@pytest.mark.parametrize("code", [ENDING, CAUGHT])
@pytest.mark.parametrize(
    ("error", "runtime", "is_told"),
    [
        ("BrokenPipeError()", "PYTHON_WORKER", False),
        ("ConnectionResetError()", "PYTHON_WORKER", False),
        ("FileNotFoundError()", "PYTHON_WORKER", True),
        ("BrokenPipeError()", "", True),
    ],
)
def test_a_jvm_that_hung_up_is_no_news(code: str, error: str, runtime: str, is_told: bool) -> None:
    env = {**os.environ, "SPARK_PYTHON_RUNTIME": runtime}
    ran = subprocess.run(
        [sys.executable, "-c", code.format(error)], capture_output=True, text=True, env=env, timeout=60
    )
    assert ("Traceback" in ran.stderr) is is_told, ran.stderr


LOOKED_UP = """
import io, sys
from pyspark.sql.worker.lookup_data_sources import _main
_main(io.BytesIO(), io.BytesIO())
assert "weft.spark" not in sys.modules
raise BrokenPipeError
"""


def test_nor_is_it_to_the_process_that_looks_for_sources() -> None:
    env = {**os.environ, "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER"}
    ran = subprocess.run([sys.executable, "-c", LOOKED_UP], capture_output=True, text=True, env=env, timeout=60)
    assert (ran.returncode, ran.stderr) == (1, "")
