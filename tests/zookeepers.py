"""Start a real ZooKeeper as a child process, for tests that need one.

Owns the life of one server: its port, folder, readiness and end. Debian's jars are used as they are, without its
service. It must never leave a process behind or write outside the folder it was given.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

JARS = Path("/usr/share/java")
LIBRARIES = ("zookeeper", "slf4j-simple", "metrics-core", "snappy-java")
"""Debian's jar names the rest itself."""
START_TIMEOUT_S = 30.0
CONFIG = """\
tickTime=500
dataDir={folder}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=srvr
maxClientCnxns=0
"""


def installed() -> bool:
    return shutil.which("java") is not None and (JARS / "zookeeper.jar").exists()


class ZooKeeperServer:
    """One server; it can die and come back on the same port and folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])
        self._config = folder / "zoo.cfg"
        self._config.write_text(CONFIG.format(folder=folder / "data", port=self.port))
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        paths = [str(JARS / f"{name}.jar") for name in LIBRARIES if (JARS / f"{name}.jar").exists()]
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ":".join(paths)]
        with (self._folder / "errors").open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._config)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "errors").read_text()
            assert time.monotonic() < deadline, "ZooKeeper does not answer"
            time.sleep(0.05)  # it says nothing when it is ready

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.sendall(b"srvr")
                return b"Mode:" in probe.makefile("rb").read()
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
