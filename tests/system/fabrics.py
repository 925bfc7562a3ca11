"""Several nodes as processes: started, linked, paused, killed and started again on the same ports.

Owns the processes of one fabric and their folders. Tests name nodes; commands of the slides run as they stand, with
real ports in place of the names. It must never leave a process behind or wait for a guess.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pika
from pika.exceptions import AMQPError

import peers

WAIT_S = 20.0
TOOLS = {"qpid-config": "weft.cli.qpid_config", "qpid-route": "weft.cli.qpid_route"}


class Fabric:
    """Nodes by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, peers.Peer] = {}
        self._ports: dict[str, int] = {}
        self._options: dict[str, tuple[str, ...]] = {}
        self._clients: list[pika.BlockingConnection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.kill()
        for client in self._clients:
            with contextlib.suppress(AMQPError):  # it reads the end of its socket; what it says about it is no news
                while client.is_open:
                    client.process_data_events(time_limit=1)

    def add(self, name: str, *options: str, env: Mapping[str, str] | None = None) -> peers.Peer:
        """`env` may name other sources, so that the node is of another version."""
        self._options[name] = options
        self._ports.setdefault(name, peers.free_port())
        node = self.nodes[name] = peers.start_weft(
            self.folder / name, "--name", name, "--listen", f"127.0.0.1:{self._ports[name]}", *options, env=env
        )
        return node

    def kill(self, name: str) -> None:
        self.nodes[name].kill()

    def stop(self, name: str) -> None:
        assert self.nodes[name].stop() == 0

    def restart(self, name: str, *, env: Mapping[str, str] | None = None) -> None:
        self.add(name, *self._options[name], env=env)

    def pause(self, name: str) -> None:
        os.kill(self.nodes[name].pid, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        os.kill(self.nodes[name].pid, signal.SIGCONT)

    def port(self, name: str) -> int:
        return self._ports[name]

    def url(self, name: str) -> str:
        return f"amqp://127.0.0.1:{self._ports[name]}"

    def channel(self, name: str, *, confirms: bool = False) -> Any:
        parameters = pika.ConnectionParameters("127.0.0.1", self._ports[name], heartbeat=0)
        connection = pika.BlockingConnection(parameters)
        self._clients.append(connection)
        channel = connection.channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    def command(self, line: str, *, code: int = 0) -> str:
        """Run a command of the slides; names in braces become ports."""
        words = shlex.split(re.sub(r"\{(\w+)\}", lambda name: str(self._ports[name[1]]), line))
        run = [sys.executable, "-m", "weft"]
        if words[0] in TOOLS:
            run = [sys.executable, "-c", f"import sys, {TOOLS[words[0]]} as tool; sys.exit(tool.main())"]
        ran = subprocess.run([*run, *words[1:]], capture_output=True, text=True, timeout=60)
        assert ran.returncode == code, f"{line}: {ran.returncode}\n{ran.stdout}{ran.stderr}\n{self.said()}"
        return ran.stdout + ran.stderr

    def said(self) -> str:
        """What all nodes have printed."""
        return "".join(f"--- {name}\n{node.output.text()}" for name, node in self.nodes.items())

    def rows(self, name: str, what: str) -> list[dict[str, Any]]:
        """`weft link|route|queue list` of a node."""
        rows: list[dict[str, Any]] = json.loads(self.command(f"weft {what} --url {self.url(name)} --json list"))
        return rows

    def until_flowing(self, name: str, count: int = 1) -> None:
        until(lambda: [row["state"] for row in self.rows(name, "route")].count("flowing") >= count)


def until(what: Callable[[], object], wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not what():
        assert time.monotonic() < deadline, "this did not become true in time"
        time.sleep(0.02)
