"""One message, two protocols: what an AMQP 0-9-1 client sees of an AMQP 1.0 message and the other way round.

Owns the mapping table between the two, and the promise that a 1.0 message read by a 1.0 client is the same, byte for
byte, as it was sent (R137). pika is one side, Qpid Proton the other. It knows nothing of queues beyond their names.
Rules: AMQP 1.0 part 3.2, RabbitMQ's page on converting between the protocols, and R091 for the cluster id.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Message, symbol, ulong

from .proton10 import SETTLED, Client10, data
from .sections import BODIES, bare_message, encode
from .support import Delivery as Delivery091
from .support import receive, shared_queue

pytestmark = pytest.mark.weft_only
Name = Callable[..., str]


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    return shared_queue(channel, name("queue"))


def to_091(client: Client10, channel: BlockingChannel, queue: str, message: Message) -> Delivery091:
    assert client.send(client.sender(queue), message) == Delivery.ACCEPTED
    return receive(channel, queue, 1)[0]


def to_10(client: Client10, channel: BlockingChannel, queue: str, body: bytes = b"x", **properties: Any) -> Message:
    channel.basic_publish("", queue, body, pika.BasicProperties(**properties))
    delivery, message = client.receive(client.receiver(queue, credit=1))
    client.settle(delivery, Delivery.ACCEPTED)
    return message


def annotations(message: Message) -> dict[str, Any]:
    return {str(key): value for key, value in (message.annotations or {}).items()}


# --- 1.0 to 0-9-1 ---


def test_properties_to_091(client10: Client10, channel: BlockingChannel, queue: str) -> None:
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
        creation_time=1_700_000_000.0,
        subject="key",
        properties={"text": "grün", "number": 42, "yes": True},
    )
    got = to_091(client10, channel, queue, message)
    properties = got.properties
    assert got.body == b"body"
    assert (properties.delivery_mode, properties.priority, properties.expiration) == (2, 7, "60000")
    assert (properties.message_id, properties.correlation_id, properties.user_id) == ("m-1", "c-1", "guest")
    assert (properties.content_type, properties.content_encoding, properties.reply_to) == (
        "text/plain",
        "gzip",
        "answers",
    )
    assert properties.timestamp == 1_700_000_000
    headers = {key: value for key, value in properties.headers.items() if not key.startswith("x-")}
    assert headers == {"text": "grün", "number": 42, "yes": True}


def test_bare_message_without_properties_to_091(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    got = to_091(client10, channel, queue, data(b"body"))
    assert got.body == b"body"
    assert (got.properties.message_id, got.properties.correlation_id, got.properties.expiration) == (None, None, None)


@pytest.mark.parametrize(
    ("identity", "text"),
    [("text", "text"), (ulong(18), "18"), (uuid.UUID(int=5), str(uuid.UUID(int=5)))],
    ids=["string", "ulong", "uuid"],
)
def test_message_ids_of_every_kind(
    client10: Client10, channel: BlockingChannel, queue: str, identity: Any, text: str
) -> None:
    got = to_091(client10, channel, queue, data(b"", id=identity, correlation_id=identity))
    assert text in (got.properties.message_id or "")
    assert text in (got.properties.correlation_id or "")


def test_value_body_to_091_is_kept_encoded(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    """Only a data section is a plain 0-9-1 body; anything else arrives as its encoding, and says so in its type."""
    got = to_091(client10, channel, queue, Message(body={"a": 1}))
    assert got.body.startswith(b"\x00\x53\x77")
    assert got.properties.type == "amqp-1.0" or got.properties.content_type == "amqp-1.0"


# --- 0-9-1 to 1.0 ---


def test_properties_to_10(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    message = to_10(
        client10,
        channel,
        queue,
        b"body",
        content_type="text/plain",
        content_encoding="gzip",
        delivery_mode=2,
        priority=7,
        correlation_id="c-1",
        reply_to="answers",
        expiration="60000",
        message_id="m-1",
        timestamp=1_700_000_000,
        user_id="guest",
        headers={"text": "grün", "number": 42, "yes": True, "none": None},
    )
    assert message.body == b"body"
    assert (message.durable, message.priority) == (True, 7)
    assert 50.0 < message.ttl <= 60.0  # what is left of it
    assert (message.id, message.correlation_id, bytes(message.user_id)) == ("m-1", "c-1", b"guest")
    assert (message.content_type, message.content_encoding) == ("text/plain", "gzip")
    assert message.reply_to in ("answers", "/queues/answers")
    assert message.creation_time == 1_700_000_000.0
    assert {key: message.properties[key] for key in ("text", "number", "yes")} == {
        "text": "grün",
        "number": 42,
        "yes": True,
    }


def test_exchange_and_key_are_annotated(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind(queue, "amq.topic", f"{queue}.#")
    channel.basic_publish("amq.topic", f"{queue}.a.b", b"x")
    _, message = client10.receive(client10.receiver(queue, credit=1))
    found = annotations(message)
    assert (found["x-exchange"], found["x-routing-key"]) == ("amq.topic", f"{queue}.a.b")


def test_transient_message_is_not_durable(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    assert to_10(client10, channel, queue, delivery_mode=1).durable is False
    assert to_10(client10, channel, queue).durable is False


def test_redelivery_is_seen_in_both(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish("", queue, b"x")
    held = receive(channel, queue, 1, auto_ack=False)[0]
    channel.basic_nack(held.method.delivery_tag, requeue=True)
    receiver = client10.receiver(queue, credit=1)
    delivery, message = client10.receive(receiver)
    assert message.first_acquirer is False
    delivery.local.failed = True
    client10.settle(delivery, Delivery.MODIFIED)
    client10.close_link(receiver)
    assert receive(channel, queue, 1)[0].method.redelivered is True


def test_what_10_has_no_field_for_survives_a_look_by_10(
    client10: Client10, channel: BlockingChannel, queue: str
) -> None:
    sent = pika.BasicProperties(
        type="kind", app_id="app", cluster_id="seen-by", headers={"nested": {"list": [1, "two"]}}
    )
    channel.basic_publish("", queue, b"x", sent)
    receiver = client10.receiver(queue, credit=1)
    client10.settle(client10.receive(receiver)[0], Delivery.RELEASED)
    client10.close_link(receiver)
    assert receive(channel, queue, 1)[0].properties == sent


# --- 1.0 to 1.0 ---


@pytest.mark.parametrize("mode", [SETTLED, 0], ids=["settled", "unsettled"])
@pytest.mark.parametrize("kind", BODIES)
def test_bare_message_is_untouched(client10: Client10, queue: str, kind: str, mode: int) -> None:
    client10.start_send(client10.sender(queue), BODIES[kind], settled=mode == SETTLED)
    _, got = client10.receive_raw(client10.receiver(queue, credit=1))
    assert got.endswith(BODIES[kind])
    before = got[: len(got) - len(BODIES[kind])]
    assert b"\x00\x53\x73" not in before  # only a header and annotations may be put in front


def test_annotations_and_footer_are_passed_on(client10: Client10, queue: str) -> None:
    footer = encode((0x78, lambda d: d.put_object({symbol("x-crc"): ulong(99)})))
    marked = encode((0x72, lambda d: d.put_object({symbol("x-opt-mine"): "kept", symbol("x-opt-count"): 3})))
    client10.start_send(client10.sender(queue), marked + bare_message() + footer)
    _, got = client10.receive_raw(client10.receiver(queue, credit=1))
    assert got.endswith(bare_message() + footer)
    message = Message()
    message.decode(got)
    assert {key: annotations(message)[key] for key in ("x-opt-mine", "x-opt-count")} == {
        "x-opt-mine": "kept",
        "x-opt-count": 3,
    }


def test_header_is_passed_on(client10: Client10, queue: str) -> None:
    sent = data(b"x", durable=True, priority=8, ttl=30.0, first_acquirer=True)
    client10.send(client10.sender(queue), sent)
    _, got = client10.receive(client10.receiver(queue, credit=1))
    assert (got.durable, got.priority, got.delivery_count) == (True, 8, 0)
    assert 0 < got.ttl <= 30.0


# --- time ---


def test_expired_message_is_not_delivered(client10: Client10, channel: BlockingChannel, queue: str) -> None:
    sender = client10.sender(queue)
    client10.send(sender, data(b"short", ttl=0.05))
    client10.send(sender, data(b"long", ttl=60.0))
    channel.connection.sleep(0.1)
    assert client10.take(client10.receiver(queue, credit=2), 1) == [b"long"]


def test_delivery_time_delays(client10: Client10, queue: str) -> None:
    receiver = client10.receiver(queue, credit=2)
    sender = client10.sender(queue)
    due_ms = int(time.time() * 1000) + 400
    later = data(b"later", annotations={symbol("x-opt-delivery-time"): due_ms})
    assert client10.send(sender, later) == Delivery.ACCEPTED
    assert client10.send(sender, data(b"now")) == Delivery.ACCEPTED
    assert client10.take(receiver, 2) == [b"now", b"later"]
    assert time.time() * 1000 >= due_ms
