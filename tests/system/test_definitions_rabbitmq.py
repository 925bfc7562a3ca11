"""Definitions of a real RabbitMQ, taken over by weft and given back: nothing is lost on the way there and back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pika
import pytest

import peers
import weft
from rabbit import RabbitMQ, ask
from weft.config import parse

pytestmark = [
    pytest.mark.slow,
    pytest.mark.peers,
    pytest.mark.timeout(240),
]
TIMEOUT_S = 60
OBJECTS = (
    ("PUT", "/api/vhosts/blue", {}),
    ("PUT", "/api/users/ann", {"password": "sesame", "tags": "policymaker,management"}),
    ("PUT", "/api/permissions/blue/ann", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "/api/permissions/blue/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "/api/topic-permissions/blue/ann", {"exchange": "news", "write": "^{username}\\.", "read": "^eu"}),
    ("PUT", "/api/vhost-limits/blue/max-queues", {"value": 50}),
    ("PUT", "/api/user-limits/ann/max-connections", {"value": 5}),
    ("PUT", "/api/global-parameters/motto", {"value": {"festina": ["lente", 1, True]}}),
    (
        "PUT",
        "/api/policies/blue/short",
        {
            "pattern": "^work",
            "apply-to": "queues",
            "priority": 3,
            "definition": {"max-length": 2, "dead-letter-exchange": "dead", "queue-mode": "lazy"},
        },
    ),
    (
        "PUT",
        "/api/operator-policies/blue/cap",
        {"pattern": ".*", "apply-to": "queues", "priority": 0, "definition": {"max-length": 4, "expires": 3600000}},
    ),
    (
        "PUT",
        "/api/exchanges/blue/news",
        {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "dead"}},
    ),
    ("PUT", "/api/exchanges/blue/dead", {"type": "fanout", "durable": True}),
    ("PUT", "/api/queues/blue/work", {"durable": True, "arguments": {"x-message-ttl": 60000}}),
    ("PUT", "/api/queues/blue/letters", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
    ("POST", "/api/bindings/blue/e/news/q/work", {"routing_key": "#", "arguments": {}}),
    ("POST", "/api/bindings/blue/e/dead/q/letters", {"routing_key": "", "arguments": {}}),
)


class Site:
    """The management API of a broker."""

    def __init__(self, base: str, amqp_port: int) -> None:
        self.amqp_port = amqp_port
        self._base = base

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return ask(self._base, method, path, body)

    def definitions(self) -> dict[str, Any]:
        """Everything that is defined but what is the broker's own, in one order."""
        document = self.ask("GET", "/api/definitions")
        kinds = ("users", "vhosts", "permissions", "topic_permissions", "parameters", "policies", "queues", "exchanges")
        told = {kind: document[kind] for kind in (*kinds, "bindings")}
        told["vhosts"] = [{"name": vhost["name"]} for vhost in told["vhosts"]]
        told["global_parameters"] = [row for row in document["global_parameters"] if row["name"] == "motto"]
        return {kind: sorted(rows, key=lambda row: json.dumps(row, sort_keys=True)) for kind, rows in told.items()}


async def test_there_and_back(rabbitmq: RabbitMQ) -> None:
    rabbit = Site(rabbitmq.management, rabbitmq.port)
    await asyncio.to_thread(_fill, rabbit)
    await asyncio.to_thread(_use, rabbit)
    before = await asyncio.to_thread(rabbit.definitions)
    document = await asyncio.to_thread(rabbit.ask, "GET", "/api/definitions")
    configuration = parse('[http]\naddress = "127.0.0.1:0"\n')
    async with weft.Node(name="here", listen="127.0.0.1:0", configuration=configuration) as node:
        site = Site(f"http://{peers.HOST}:{node.http_port}", node.ports[0])
        await asyncio.to_thread(site.ask, "POST", "/api/definitions", document)
        assert await asyncio.to_thread(site.definitions) == before
        await asyncio.to_thread(_use, site)
        row = await asyncio.to_thread(site.ask, "GET", "/api/queues/blue/work")
        assert (row["policy"], row["operator_policy"], row["messages"]) == ("short", "cap", 2)
        assert row["effective_policy_definition"]["max-length"] == 2
        document = await asyncio.to_thread(site.ask, "GET", "/api/definitions")
    for path in ("/api/vhosts/blue", "/api/users/ann", "/api/global-parameters/motto"):
        await asyncio.to_thread(rabbit.ask, "DELETE", path)
    await asyncio.to_thread(rabbit.ask, "POST", "/api/definitions", document)
    assert await asyncio.to_thread(rabbit.definitions) == before


def _fill(site: Site) -> None:
    for method, path, body in OBJECTS:
        site.ask(method, path, body)


def _use(site: Site) -> None:
    """The password opens, the policy trims, the permission on topics holds: at RabbitMQ as at weft."""
    url = f"amqp://ann:sesame@{peers.HOST}:{site.amqp_port}/blue"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(3):
        channel.basic_publish("news", "ann.x", f"{number}".encode())
    dead = next(channel.consume("letters", auto_ack=True, inactivity_timeout=TIMEOUT_S))
    assert dead[2] == b"0"
    channel.cancel()
    assert channel.queue_declare("work", passive=True).method.message_count == 2
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"topic 'bob.x'"):
        channel.basic_publish("news", "bob.x", b"")
    connection.close()
