"""A node that may die: one data folder, one process after another on it.

Owns the folder and the process that serves it now. Tests ask for clients, kill the node or end it in peace, and start
it again on the same folder; what a new process prints is theirs to read. It must never hide a node that did not come
back or did not end well. Everything waits for an event with a limit.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

import peers
from interop.proton10 import Client10
from interop.support import Delivery

WAIT_S = 20.0
SNAPSHOT = '{"node"'
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class LivingNode:
    """A node and its data folder; `host` and `port` are those of the process that runs now."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._options = options
        self._opened: list[pika.BlockingConnection | Client10] = []
        self.peer = peers.start_weft(folder, *options)

    @property
    def host(self) -> str:
        return self.peer.host

    @property
    def port(self) -> int:
        return self.peer.port

    @property
    def said(self) -> str:
        """What the process that runs now has printed."""
        return self.peer.output.text()

    @property
    def memory_bytes(self) -> int:
        """Memory of the process that is its own, in use now."""
        status = Path(f"/proc/{self.peer.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024

    def snapshot(self) -> dict[str, Any]:
        """The node's state, as it writes it at a signal."""
        before = self.said.count(SNAPSHOT)
        self.peer.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + WAIT_S
        while self.said.count(SNAPSHOT) == before:
            assert time.monotonic() < deadline, "the node did not write its state"
            time.sleep(0.005)
        [*_, last] = (line for line in self.said.splitlines() if line.startswith(SNAPSHOT))
        state: dict[str, Any] = json.loads(last)
        return state

    def connect(self, **parameters: Any) -> pika.BlockingConnection:
        parameters.setdefault("blocked_connection_timeout", 30)
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(self.host, self.port, heartbeat=0, connection_attempts=1, **parameters)
        )
        self._opened.append(connection)
        return connection

    def channel(self, *, confirms: bool = False) -> BlockingChannel:
        """A channel on a connection of its own."""
        channel = self.connect().channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    def client10(self) -> Client10:
        client = Client10(self)
        self._opened.append(client)
        return client

    def kill(self) -> None:
        """End the process without warning; its clients are cut off."""
        self.peer.kill()
        for client in self._opened:
            _cut(client)
        self._opened.clear()

    def kill_under(self, jobs: Mapping[str, Callable[[], None]], life_s: float) -> None:
        """Kill the process while threads work with it; what goes wrong for them before that is the node's mistake."""
        dying = threading.Event()
        workers = [_Worker(name, work, dying) for name, work in jobs.items()]
        for worker in workers:
            worker.start()
        workers[0].join(life_s)
        dying.set()
        self.peer.kill()
        for worker in workers:
            worker.join(WAIT_S)
            assert not worker.is_alive(), f"{worker.name} did not notice that the node died"
            assert worker.mistake is None, f"{worker.name}: {worker.mistake!r}"
        self.kill()

    def stop(self) -> None:
        """End the process in peace."""
        self._close_clients()
        assert self.peer.stop() == 0, self.said

    def start(self, *more: str) -> None:
        self.peer = peers.start_weft(self.folder, *self._options, *more)

    def restart(self, *, kill: bool) -> None:
        """One process ends, by force or in peace, and the next takes the folder over."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def _close_clients(self) -> None:
        for client in self._opened:
            if isinstance(client, Client10):
                client.__exit__()
            elif client.is_open:
                client.close()
        self._opened.clear()

    def end(self) -> None:
        """After the test: nothing is left running, whatever state a test that failed left it in."""
        self.kill()


class _Worker(threading.Thread):
    """Works until the node dies."""

    def __init__(self, name: str, work: Callable[[], None], dying: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._dying = work, dying
        self.mistake: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            if not self._dying.is_set():
                self.mistake = error


def _cut(client: pika.BlockingConnection | Client10) -> None:
    if isinstance(client, Client10):
        client.cut()
        return
    if client.is_open:
        # It reads the end of its socket; what it says about it is no news.
        with contextlib.suppress(AMQPError):
            while client.is_open:
                client.process_data_events(time_limit=1)


def publish_stored(node: LivingNode, queue: str, bodies: Sequence[bytes], **properties: Any) -> None:
    """Publish persistent messages; on return all are on disk, because the last one is confirmed behind the others."""
    properties.setdefault("delivery_mode", 2)
    channel = node.connect().channel()
    for body in bodies[:-1]:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))
    channel.confirm_delivery()
    channel.basic_publish("", queue, bodies[-1], pika.BasicProperties(**properties))
    channel.close()


def get_all(channel: BlockingChannel, queue: str) -> list[Delivery]:
    """Everything that is in the queue, oldest first, taken for good."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(Delivery(*got))
    return found
