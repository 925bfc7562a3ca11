"""Start the brokers that are measured, and end them.

Owns a pool of running brokers: weft, and beside it RabbitMQ and Proton's example broker where they are installed. A
measure asks for one by name, shared or fresh, free or pinned to one core, and gets where it listens and its process
id. Nothing here runs a load or judges a figure. How each is started stands in tests/peers.py, which the tests use
too; everything listens on loopback, lives in a temporary folder and is ended by its process id.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
import peers

PROTON_SOURCE = Path("/usr/share/proton/examples/c/broker.c")
TITLES = {
    "weft": "weft",
    "rabbitmq": "RabbitMQ",
    "proton": "Proton's broker",
    "relay": "plain relay",
    "bare": "the floor",
    "parquet": "Parquet",
    "kafka": "Kafka",
    "tuples": "tuples",
    "free": "free rows",
    "aio_pika": "aio-pika",
    "pika": "pika",
    "qpid_proton": "python-qpid-proton",
}
CORE = max(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Broker:
    """A running broker as a load generator sees it."""

    name: str
    port: int
    pid: int
    ready_s: float
    user: str = "guest"

    @property
    def options(self) -> list[str]:
        return [f"port={self.port}", f"pid={self.pid}", f"user={self.user}"]

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        kilobytes = next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]
        return int(kilobytes) / 1000


class Pool:
    """Brokers started once and shared, until the pool is closed."""

    def __init__(self, proton_broker: Path | None) -> None:
        self._stack = ExitStack()
        self._running: dict[tuple[str, bool], Broker] = {}
        self._proton_broker = proton_broker

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def installed(self, name: str) -> bool:
        if name == "rabbitmq":
            return peers.rabbitmq_installed()
        return name == "weft" or self._proton_broker is not None

    def shared(self, name: str, *, one_core: bool = False) -> Broker:
        key = (name, one_core)
        if key not in self._running:
            self._running[key] = self._stack.enter_context(self.fresh(name, one_core=one_core))
        return self._running[key]

    @contextmanager
    def fresh(self, name: str, *, one_core: bool = False) -> Iterator[Broker]:
        with (
            tempfile.TemporaryDirectory(prefix=f"bench-{name}-", ignore_cleanup_errors=True) as folder,
            ExitStack() as stack,
        ):
            with pinned(one_core):
                started = time.monotonic()
                if name == "proton":
                    assert self._proton_broker is not None
                    port, pid = stack.enter_context(_proton(self._proton_broker))
                else:
                    start = peers.start_weft if name == "weft" else peers.start_rabbitmq
                    peer = start(Path(folder))
                    stack.callback(peer.stop)
                    port, pid = peer.port, peer.pid
            yield Broker(name, port, pid, time.monotonic() - started, user="" if name == "proton" else "guest")


@contextmanager
def pinned(one_core: bool) -> Iterator[None]:
    """Processes started inside inherit one core, so that no wake-up between cores blurs what is measured."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CORE} if one_core else before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def build_proton_broker(folder: Path) -> Path | None:
    """Compile Proton's example broker, if its source is here (Debian: libqpid-proton11-dev-examples)."""
    binary = folder / "proton-broker"
    if not PROTON_SOURCE.exists():
        return None
    if not binary.exists():
        command = ["cc", "-O2", str(PROTON_SOURCE), "-o", str(binary), "-lqpid-proton", "-lpthread"]
        subprocess.run(command, check=True, capture_output=True)
    return binary


@contextmanager
def _proton(binary: Path) -> Iterator[tuple[int, int]]:
    process = subprocess.Popen(
        [str(binary), peers.HOST, "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("listening on "):
                yield int(line.split()[-1]), process.pid
                return
        raise peers.PeerError("Proton's example broker did not start")
    finally:
        process.terminate()
        process.wait()
