"""Qpid Proton's client for C++ against the broker under test.

Owns the compilation of one program, `cpp/hello.cpp`, and its run. Skipped only where a compiler or the library is not
installed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .support import shared_queue

SOURCE = Path(__file__).parent / "cpp" / "hello.cpp"

pytestmark = [
    pytest.mark.weft_only,
    pytest.mark.peers,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler is installed (apt-get install g++)"),
]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cpp") / "hello"
    command = ["c++", "-std=c++17", str(SOURCE), "-o", str(made), "-lqpid-proton-cpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "proton/connection.hpp: No such file" in done.stderr:
        pytest.skip("Proton's headers for C++ are not installed (apt-get install libqpid-proton-cpp12-dev)")
    assert done.returncode == 0, done.stderr
    return made


def test_proton_cpp(broker: Any, channel: BlockingChannel, name: Callable[..., str], program: Path) -> None:
    queue = shared_queue(channel, name())
    command = [str(program), f"amqp://{broker.host}:{broker.port}", queue]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stdout + done.stderr
