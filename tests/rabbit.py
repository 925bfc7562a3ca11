"""A real RabbitMQ with its management, AMQP 1.0 and STOMP, for all tests that need one: a start takes several seconds.

Owns the broker's life and what is in it: `reset` leaves it as a new one is. In goes a folder, out come ports and what
its HTTP API answers. It must never know what a test does with it; how RabbitMQ itself is started is in `peers`.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import peers

TIMEOUT_S = 60.0
PLUGINS = ("rabbitmq_amqp1_0", "rabbitmq_management", "rabbitmq_stomp")
ADVANCED = """[
  {{rabbitmq_management, [{{tcp_config, [{{port, {http}}}, {{ip, "{host}"}}]}}]}},
  {{rabbitmq_stomp, [{{tcp_listeners, [{{"{host}", {stomp}}}]}}]}}
]."""


def ask(site: str, method: str, path: str, body: object = None) -> Any:
    """What a broker answers to its user guest over HTTP; it must not refuse."""
    data = None if body is None else json.dumps(body).encode()
    login = base64.b64encode(b"guest:guest").decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    request = urllib.request.Request(site + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        pytest.fail(f"{method} {path}: {error.code} {error.read().decode()}")
    return json.loads(text) if text else None


class RabbitMQ:
    """One broker."""

    host = peers.HOST

    def __init__(self, folder: Path) -> None:
        http, self.stomp_port = peers.free_port(), peers.free_port()
        self.management = f"http://{self.host}:{http}"
        advanced = ADVANCED.format(http=http, stomp=self.stomp_port, host=self.host)
        self._peer = peers.start_rabbitmq(folder, PLUGINS, advanced)
        self.port, self.url = self._peer.port, self._peer.url

    def reset(self) -> None:
        """Forget everything but the user guest and an empty virtual host.

        The host itself stays: after its end RabbitMQ goes on closing connections to what has its name, for a while.
        """
        for kind, own in (("vhosts", "/"), ("users", "guest")):
            for row in ask(self.management, "GET", f"/api/{kind}"):
                if row["name"] != own:
                    ask(self.management, "DELETE", f"/api/{kind}/{quote(row['name'], safe='')}")
        for kind in ("queues", "exchanges"):
            for row in ask(self.management, "GET", f"/api/{kind}/%2F"):
                if kind == "queues" or not (row["name"] == "" or row["name"].startswith("amq.")):  # RabbitMQ's own
                    ask(self.management, "DELETE", f"/api/{kind}/%2F/{quote(row['name'], safe='')}")

    def kill(self) -> None:
        """End it; to end in order would take it several seconds, and nobody needs what it has."""
        self._peer.kill()
