"""Start a real ActiveMQ Artemis as a child process, for tests that need one.

Owns the build of a small Maven project (into the build folder, once per change of its sources; Maven keeps what it
fetched) and the life of one broker: its port, folder, readiness and end. It must never leave a process behind or write
outside the folders it was given. Where Java, Maven or Maven's repository cannot be had, tests are skipped and say so.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

import peers

PROJECT = Path(__file__).parent / "interop" / "artemis"
SOURCE = PROJECT / "src" / "main" / "java" / "peers" / "Artemis.java"
BUILD = peers.BUILD / "artemis"
FETCH_TIMEOUT_S = 240.0
JAVA = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


@functools.cache
def class_path() -> str:
    """Where Artemis and the program that starts it are; skips the test if they cannot be had."""
    if shutil.which("mvn") is None:
        pytest.skip("Java and Maven are not installed (apt-get install maven openjdk-17-jdk-headless)")
    wanted = hashlib.sha256((PROJECT / "pom.xml").read_bytes() + SOURCE.read_bytes()).hexdigest()[:16]
    stamp = BUILD / f"built-{wanted}"
    with peers.fetching():
        if not stamp.exists():
            _build(stamp)
    return f"{BUILD / 'target' / 'classes'}:{BUILD / 'target' / 'dependency'}/*"


def _build(stamp: Path) -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(PROJECT, BUILD)
    maven = ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(maven, cwd=BUILD, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"Maven did not fetch Artemis within {FETCH_TIMEOUT_S:.0f} s")
    said = done.stdout + done.stderr
    if "Could not transfer artifact" in said or "Could not resolve" in said:
        pytest.skip(f"Maven cannot fetch Artemis: {said.strip().splitlines()[0]}")
    assert done.returncode == 0, said
    stamp.touch()


class Artemis:
    """One broker; it can die and come back on the same port and folder."""

    host = peers.HOST

    def __init__(self, folder: Path) -> None:
        self._class_path = class_path()
        self._folder = folder
        self.port = peers.free_port()
        self._peer = self._start()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}"

    def _start(self) -> peers.Peer:
        command = [*JAVA, QUIET, "-cp", self._class_path, "peers.Artemis", str(self.port), str(self._folder)]
        process, output = peers.start("artemis", command, {}, lambda line: line == "ready\n")
        return peers.Peer("artemis", self.host, self.port, process, output)

    def kill(self) -> None:
        """End it without any warning, as a power failure would."""
        self._peer.kill()

    def restart(self) -> None:
        self._peer = self._start()
