"""Start real brokers as child processes, for tests that need a peer.

Owns the life of one process per `Peer`: ports, folders, readiness, end. A caller gives a folder of its own and gets
back a `Peer` with host, port and pid; nothing is left running and nothing outside the folder is written. It knows how
each broker is started and when it is ready, and must never know what a test does with it. Readiness is always an
event (a line on standard output), never a delay; for the variables that move RabbitMQ see the manual page rabbitmq-
env.conf(5).
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
BUILD = Path(__file__).parents[1] / "build"
START_TIMEOUT_S = 150.0
"""Long after any broker is up, also on a machine that is busy with other things."""
STOP_TIMEOUT_S = 30.0
OUTPUT_LINES_MAX = 2000
PORTS = (10_000, 32_000)
"""Below those that Linux gives to outgoing connections (ip_local_port_range)."""
PORT_ATTEMPTS_MAX = 1000

RABBITMQ_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
RABBITMQ_CONFIG = """\
listeners.tcp.1 = {host}:{port}
loopback_users = none
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 50MB
max_message_size = 134217728
log.console = false
"""


class PeerError(RuntimeError):
    """A peer did not start, or did not end, as it should."""


@dataclass
class Peer:
    """A running broker: where it listens, and how to end it."""

    name: str
    host: str
    port: int
    process: subprocess.Popen[str]
    output: _Output
    companions: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/%2F"

    def wait_listening(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Wait until somebody listens there."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                socket.create_connection((self.host, self.port), timeout_s).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise PeerError(f"{self.name} does not listen\n{self.output.text()}") from None
                time.sleep(0.002)
            else:
                return

    def stop(self) -> int:
        """Ask the broker to end, wait until it has, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            self.process.wait()
            raise PeerError(f"{self.name} ignored SIGTERM\n{self.output.text()}") from error
        finally:
            for companion in self.companions:
                companion.terminate()
                companion.wait()

    def kill(self) -> None:
        """End the broker without any warning, as a power failure would."""
        self.process.kill()
        self.process.wait()
        for companion in self.companions:
            companion.terminate()
            companion.wait()


class _Output:
    """What a child prints: read all along, so that it never blocks on a full pipe, until the line that means ready."""

    def __init__(self, process: subprocess.Popen[str], is_ready: Callable[[str], bool]) -> None:
        self._lines: list[str] = []
        self._is_ready = is_ready
        self._ready = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if len(self._lines) < OUTPUT_LINES_MAX:
                    self._lines.append(line)
                if self._is_ready(line):
                    self._ready.set()
        self._ended.set()
        self._ready.set()

    def wait_ready(self, timeout_s: float) -> bool:
        return self._ready.wait(timeout_s) and not self._ended.is_set()

    def text(self) -> str:
        return "".join(self._lines)


@contextmanager
def fetching() -> Iterator[None]:
    """One at a time fills the build folder: tests run in several processes, and Maven's store is not made for two."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """A TCP port nobody uses now. Only for peers that cannot choose one themselves.

    It is not one that the system gives to outgoing connections: those come and go, and could have it a moment later,
    or while a peer that is to come back on it is away.
    """
    for _attempt in range(PORT_ATTEMPTS_MAX):
        port = random.randint(*PORTS)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
            return port
    raise PeerError(f"no free port found from {PORTS[0]} to {PORTS[1]}")


def start_weft(data_dir: Path, *options: str, env: Mapping[str, str] | None = None) -> Peer:
    """Start `weft up` on a port of its own choice."""
    command = [sys.executable, "-m", "weft", "up", "--listen", f"{HOST}:0", "--data-dir", str(data_dir), *options]
    process, output = start("weft", command, dict(env or {}), lambda line: line.startswith("ready"))
    listening = re.search(rf"listening on {re.escape(HOST)}:(\d+) \(amqp\)", output.text())
    if listening is None:
        process.kill()
        raise PeerError(f"weft did not say where it listens\n{output.text()}")
    return Peer("weft", HOST, int(listening.group(1)), process, output)


def start_standby(data_dir: Path, *options: str) -> Peer:
    """Start a node that waits for a folder which another one has."""
    port = free_port()
    command = [sys.executable, "-m", "weft", "up", "--standby", "--listen", f"{HOST}:{port}", "--data-dir"]
    process, output = start(
        "weft", [*command, str(data_dir), *options], {}, lambda line: line.startswith("standing by")
    )
    return Peer("weft", HOST, port, process, output)


def rabbitmq_installed() -> bool:
    return RABBITMQ_SERVER.exists() and shutil.which("epmd") is not None


def start_rabbitmq(
    folder: Path,
    plugins: tuple[str, ...] = ("rabbitmq_amqp1_0",),
    advanced: str = "[].",
    definitions: Mapping[str, object] | None = None,
) -> Peer:
    """Start Debian's RabbitMQ with its own ports, folders, cookie and name service; `advanced` is Erlang terms, and
    `definitions` what it knows from the start, in place of its usual user.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "advanced.config").write_text(advanced)
    port, names_port = free_port(), free_port()
    config = RABBITMQ_CONFIG.format(host=HOST, port=port)
    if definitions is not None:
        (folder / "definitions.json").write_text(json.dumps(definitions))
        config += f"load_definitions = {folder / 'definitions.json'}\n"
    (folder / "rabbitmq.conf").write_text(config)
    (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
    env = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names_port),
        "RABBITMQ_NODENAME": f"peer{port}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RUNNING_UNDER_SYSTEMD": "1",  # the script becomes the server instead of its parent, so the pid is the broker's
    }
    names = subprocess.Popen(["epmd", "-address", HOST, "-port", str(names_port)])
    try:
        process, output = start("rabbitmq", [str(RABBITMQ_SERVER)], env, lambda line: "completed with" in line, folder)
    except PeerError:
        names.terminate()
        names.wait()
        raise
    return Peer("rabbitmq", HOST, port, process, output, [names])


def start(
    name: str,
    command: list[str],
    env: dict[str, str],
    is_ready: Callable[[str], bool],
    folder: Path | None = None,
) -> tuple[subprocess.Popen[str], _Output]:
    """Start a command in a folder of its own, where it may leave dumps, and wait for the line that says it is ready."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **env},
        cwd=folder,
    )
    output = _Output(process, is_ready)
    if not output.wait_ready(START_TIMEOUT_S):
        process.kill()
        code = process.wait()
        raise PeerError(f"{name} did not become ready (exit code {code})\n{output.text()}")
    return process, output
