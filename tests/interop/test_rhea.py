"""Clients of Node.js against the broker under test: rhea over AMQP 1.0, and amqplib over 0-9-1.

Owns the installation of the libraries (into the build folder, from the lock file) and one run of Node.js per scenario.
The scenarios themselves are JavaScript, in `node`; each prints "ok" or the reason. Skipped only where Node.js is not
installed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

import peers
import weft
from weft.config import parse

from .support import shared_queue

HERE = Path(__file__).parent / "node"
BUILD = Path(__file__).parents[2] / "build" / "interop-node"
SCENARIOS = re.findall(r"^  async (\w+)\(", (HERE / "scenarios.js").read_text(), re.MULTILINE)

pytestmark = [
    pytest.mark.peers,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js is not installed (apt-get install nodejs npm)"),
]


@pytest.fixture(scope="session")
def installed() -> Path:
    """The folder with the libraries in it; filled once per lock file."""
    lock = (HERE / "package-lock.json").read_bytes()
    stamp = BUILD / f"installed-{hashlib.sha256(lock).hexdigest()[:16]}"
    with peers.fetching():
        if not stamp.exists():
            _install(stamp)
    for file in ("scenarios.js", "websocket.js", "amqplib.js"):
        shutil.copy(HERE / file, BUILD)
    return BUILD


def _install(stamp: Path) -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    for file in ("package.json", "package-lock.json"):
        shutil.copy(HERE / file, BUILD)
    done = subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=BUILD, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stamp.touch()


@pytest.mark.weft_only
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rhea(broker: Any, channel: BlockingChannel, name: Callable[..., str], installed: Path, scenario: str) -> None:
    queue = shared_queue(channel, name())
    command = ["node", str(installed / "scenarios.js"), broker.host, str(broker.port), scenario, queue]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stdout + done.stderr


def test_amqplib(broker: Any, name: Callable[..., str], installed: Path) -> None:
    command = ["node", str(installed / "amqplib.js"), broker.url, name()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stdout + done.stderr


@pytest.mark.weft_only
async def test_rhea_over_websocket(installed: Path) -> None:
    configuration = parse('[http]\naddress = "127.0.0.1:0"')
    async with weft.Node(name="web", configuration=configuration) as node:
        url = f"ws://127.0.0.1:{node.http_port}/amqp"
        process = await asyncio.create_subprocess_exec(
            "node", str(installed / "websocket.js"), url, "from-the-browser", stdout=PIPE, stderr=PIPE
        )
        stdout, stderr = await process.communicate()
    assert (process.returncode, stdout.strip()) == (0, b"ok"), stderr.decode()
