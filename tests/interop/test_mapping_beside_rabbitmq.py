"""One message in the other protocol, here and in RabbitMQ 3.10 with its AMQP 1.0 plug-in: what agrees, what does not.

Owns the list of differences that docs/reference/mapping.md names; with WEFT_TEST_BROKER=rabbitmq the same tests say
what RabbitMQ does, so that neither column is hearsay. weft follows RabbitMQ 4, which replaced the plug-in's mapping.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery

from conftest import WHICH

from .proton10 import Client10, data
from .support import receive, shared_queue

IS_WEFT = WHICH == "weft"
ADDRESS = "" if IS_WEFT else "/amq/queue/"
SECONDS = 1_700_000_000


def test_from_0_9_1_to_1_0(client10: Client10, channel: BlockingChannel, name: Callable[..., str]) -> None:
    queue = shared_queue(channel, name())
    properties = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"number": 42, "x-own": "mine"},
        delivery_mode=2,
        priority=7,
        correlation_id="c-1",
        reply_to="answers",
        message_id="urn:uuid:00000000-0000-0000-0000-000000000005",
        timestamp=SECONDS,
        type="kind",
        user_id="guest",
        app_id="app",
    )
    channel.basic_publish("", queue, b"body", properties)
    delivery, got = client10.receive(client10.receiver(ADDRESS + queue, credit=1))
    client10.settle(delivery, Delivery.ACCEPTED)
    assert (got.body, got.durable, got.priority, got.correlation_id) == (b"body", True, 7, "c-1")
    assert (got.content_type, got.content_encoding) == ("text/plain", "gzip")
    urn = "urn:uuid:00000000-0000-0000-0000-000000000005"
    annotations = {str(key): value for key, value in (got.annotations or {}).items() if key != "x-opt-weft-id"}
    differs: dict[str, tuple[Any, Any, Any]] = {
        # what came, what weft makes of it, what RabbitMQ 3.10 does
        "headers": (got.properties, {"number": 42}, None),
        "annotations": (annotations, {"x-own": "mine", "x-basic-type": "kind"}, {}),
        "message-id": (str(got.id), urn.removeprefix("urn:uuid:"), urn),
        "reply-to": (got.reply_to, "answers", "/queue/answers"),
        "creation-time": (got.creation_time, SECONDS, SECONDS / 1_000),
        "user-id": (bytes(got.user_id), b"guest", b""),
        "group-id": (got.group_id, "app", None),
        "subject": (got.subject, None, queue),
    }
    check(differs)


def test_from_1_0_to_0_9_1(client10: Client10, channel: BlockingChannel, name: Callable[..., str]) -> None:
    queue = shared_queue(channel, name())
    message = data(
        b"body",
        durable=True,
        priority=7,
        ttl=60.0,
        id="m-1",
        user_id=b"guest",
        reply_to="answers",
        correlation_id="c-1",
        content_type="text/plain",
        content_encoding="gzip",
        creation_time=float(SECONDS),
        group_id="group",
        properties={"yes": True},
    )
    assert client10.send(client10.sender(ADDRESS + queue), message) == Delivery.ACCEPTED
    (got,) = receive(channel, queue, 1)
    properties = got.properties
    assert (got.body, properties.delivery_mode, properties.priority) == (b"body", 2, 7)
    assert (properties.expiration, properties.user_id, properties.reply_to) == ("60000", "guest", "answers")
    assert (properties.message_id, properties.correlation_id) == ("m-1", "c-1")
    assert (properties.content_type, properties.content_encoding) == ("text/plain", "gzip")
    wrapped = {"x-amqp-1.0-properties", "x-amqp-1.0-app-properties"}
    differs: dict[str, tuple[Any, Any, Any]] = {
        "application properties": (set(properties.headers) - {"x-weft-id"}, {"yes"}, wrapped),
        "timestamp": (properties.timestamp, SECONDS, SECONDS * 1_000),
        "type": (properties.type, None, "binary"),
        "app-id": (properties.app_id, "group", None),
    }
    check(differs)


def check(differs: dict[str, tuple[Any, Any, Any]]) -> None:
    assert {what: seen for what, (seen, _, _) in differs.items()} == {
        what: ours if IS_WEFT else theirs for what, (_, ours, theirs) in differs.items()
    }
