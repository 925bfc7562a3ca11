"""Apache Qpid JMS, the Java client of AMQP 1.0, against the broker under test.

Owns the build of a small Maven project (into the build folder, once per change of its sources) and one Java process
per scenario. The scenarios themselves are Java, in `jms/`; each gets an empty queue and prints "ok" or a stack trace.
Skipped only where Java or Maven is not installed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

import peers

from .support import shared_queue

HERE = Path(__file__).parent / "jms"
BUILD = Path(__file__).parents[2] / "build" / "interop-jms"
SOURCE = HERE / "src" / "main" / "java" / "interop" / "Scenarios.java"
SCENARIOS = re.findall(r'Map\.entry\("(\w+)"', SOURCE.read_text())

pytestmark = [
    pytest.mark.weft_only,
    pytest.mark.peers,
    pytest.mark.timeout(300),  # the first build fetches the library
    pytest.mark.skipif(
        shutil.which("mvn") is None,
        reason="Java and Maven are not installed (apt-get install maven openjdk-17-jdk-headless)",
    ),
]


@pytest.fixture(scope="session")
def built() -> str:
    """The class path of the scenarios; built once per change of the project."""
    wanted = hashlib.sha256((HERE / "pom.xml").read_bytes() + SOURCE.read_bytes()).hexdigest()[:16]
    stamp = BUILD / f"built-{wanted}"
    with peers.fetching():
        if not stamp.exists():
            _build(stamp)
    return f"{BUILD / 'target' / 'classes'}:{BUILD / 'target' / 'dependency'}/*"


def _build(stamp: Path) -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(HERE, BUILD)
    maven = ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    done = subprocess.run(maven, cwd=BUILD, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    stamp.touch()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_qpid_jms(broker: Any, channel: BlockingChannel, name: Callable[..., str], built: str, scenario: str) -> None:
    run(built, broker, scenario, shared_queue(channel, name()))


def run(built: str, broker: Any, scenario: str, queue: str, *options: str) -> None:
    command = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", built, "interop.Scenarios"]
    done = subprocess.run(
        [*command, broker.host, str(broker.port), scenario, queue, *options], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stdout + done.stderr


def test_passwords_are_proven(built: str, tmp_path: Path) -> None:
    """Where it is offered, the client takes SCRAM by itself, and would try nothing else."""
    config = tmp_path / "weft.toml"
    config.write_text("[settings]\nscram = true\n")
    node = peers.start_weft(tmp_path / "data", "--config", str(config))
    try:
        run(built, node, "send_and_receive", "proven")
    finally:
        node.stop()
