"""Publishing: returns, confirms, extra routing keys, user ids, properties, sizes.

Owns what a publisher is told and what arrives unchanged. pika is the client, with a bare connection where the order
of frames or the very bytes matter. What a queue does with a message afterwards is not its business. Rules: AMQP 0-9-1
section 1.8.3.6, RabbitMQ's pages on confirms and sender-selected distribution.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import struct
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika import frame, spec
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import Connect
from .raw091 import RawConnection, raw_frame
from .support import Consumer, channel_error, publish, receive, take_all, wait_until

Name = Callable[..., str]


@pytest.fixture
def queue(channel: BlockingChannel, name: Name) -> str:
    return str(channel.queue_declare(name("queue"), exclusive=True).method.queue)


def raw_queue(raw: RawConnection, **arguments: Any) -> str:
    raw.call(1, spec.Queue.Declare(queue="", exclusive=True, arguments=arguments))
    return raw.expect(spec.Queue.DeclareOk).queue


def test_unroutable_mandatory_message_is_returned(channel: BlockingChannel, name: Name) -> None:
    returned: list[tuple[Any, pika.BasicProperties, bytes]] = []
    channel.add_on_return_callback(lambda _channel, *what: returned.append(what))
    key = name("nowhere")
    properties = pika.BasicProperties(message_id="m1", headers={"a": 1})
    channel.basic_publish("amq.direct", key, b"payload", properties, mandatory=True)
    wait_until(channel.connection, lambda: bool(returned))
    method, properties, body = returned[0]
    assert (method.reply_code, method.reply_text, method.exchange, method.routing_key) == (
        312,
        "NO_ROUTE",
        "amq.direct",
        key,
    )
    assert (properties.message_id, properties.headers, body) == ("m1", {"a": 1}, b"payload")


def test_routable_mandatory_message_is_not_returned(channel: BlockingChannel, queue: str) -> None:
    returned: list[bytes] = []
    channel.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    channel.basic_publish("", queue, b"arrives", mandatory=True)
    channel.basic_publish("", queue + ".missing", b"dropped", mandatory=False)
    assert take_all(channel, queue) == [b"arrives"]
    assert returned == []


def test_confirms_count_from_one(raw: RawConnection) -> None:
    queue = raw_queue(raw)
    raw.call(1, spec.Confirm.Select())
    raw.expect(spec.Confirm.SelectOk)
    for _ in range(50):
        raw.publish(1, spec.Basic.Publish(exchange="", routing_key=queue), b"x")
    confirmed: set[int] = set()
    while len(confirmed) < 50:
        ack = raw.expect(spec.Basic.Ack)
        confirmed |= set(range(1, ack.delivery_tag + 1)) if ack.multiple else {ack.delivery_tag}
    assert confirmed == set(range(1, 51))


def test_return_comes_before_its_confirm(raw: RawConnection) -> None:
    raw.call(1, spec.Confirm.Select())
    raw.expect(spec.Confirm.SelectOk)
    raw.publish(1, spec.Basic.Publish(exchange="", routing_key="publish.nowhere", mandatory=True), b"back")
    assert raw.expect(spec.Basic.Return).reply_code == 312
    assert isinstance(raw.read(), frame.Header)
    assert raw.read().fragment == b"back"
    assert raw.expect(spec.Basic.Ack).delivery_tag == 1


def test_unroutable_message_is_confirmed(channel: BlockingChannel, name: Name) -> None:
    channel.confirm_delivery()
    channel.basic_publish("amq.direct", name("nowhere"), b"dropped")  # raises if not confirmed
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("amq.direct", name("nowhere"), b"returned", mandatory=True)
    assert [each.body for each in caught.value.messages] == [b"returned"]


def test_persistent_messages_are_confirmed(channel: BlockingChannel, name: Name) -> None:
    queue = name("durable")
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(20):
        publish(channel, queue, str(number).encode(), delivery_mode=2)
    got = receive(channel, queue, 20)
    assert [each.body for each in got] == [str(number).encode() for number in range(20)]
    assert {each.properties.delivery_mode for each in got} == {2}
    channel.queue_delete(queue)


def test_full_queue_that_rejects_gives_nack(channel: BlockingChannel, name: Name) -> None:
    queue = name("full")
    channel.queue_declare(queue, exclusive=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    publish(channel, queue, b"1", b"2")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, queue, b"3")
    assert take_all(channel, queue) == [b"1", b"2"]
    publish(channel, queue, b"4")  # there is room again


def test_confirm_select_twice_is_fine(raw: RawConnection) -> None:
    queue = raw_queue(raw)
    for _ in range(2):
        raw.call(1, spec.Confirm.Select())
        raw.expect(spec.Confirm.SelectOk)
    raw.publish(1, spec.Basic.Publish(exchange="", routing_key=queue), b"x")
    assert raw.expect(spec.Basic.Ack).delivery_tag == 1


def test_cc_and_bcc_add_routing_keys(channel: BlockingChannel, name: Name) -> None:
    queues = [channel.queue_declare(name(each), exclusive=True).method.queue for each in ("to", "cc1", "cc2", "bcc")]
    headers = {"CC": queues[1:3], "BCC": queues[3:], "kept": 1}
    publish(channel, queues[0], b"x", headers=headers)
    for queue in queues:
        delivery = receive(channel, queue, 1)[0]
        assert delivery.properties.headers == {"CC": queues[1:3], "kept": 1}  # BCC is nobody else's business
        assert delivery.method.routing_key == queues[0]


def test_cc_gives_each_queue_one_copy(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"once", headers={"CC": [queue, queue], "BCC": [queue]})
    assert take_all(channel, queue) == [b"once"]


def test_cc_through_a_topic_exchange(channel: BlockingChannel, queue: str) -> None:
    channel.queue_bind(queue, "amq.topic", f"*.{queue}")
    channel.basic_publish("amq.topic", "unmatched", b"x", pika.BasicProperties(headers={"CC": [f"a.{queue}"]}))
    assert take_all(channel, queue) == [b"x"]


def test_true_user_id_is_accepted_and_kept(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, b"x", user_id="guest")
    assert receive(channel, queue, 1)[0].properties.user_id == "guest"


def test_false_user_id_is_refused(channel: BlockingChannel, queue: str) -> None:
    with channel_error(406, "user_id property set to 'root' but authenticated user was 'guest'"):
        publish(channel, queue, b"x", user_id="root")
        channel.queue_declare("", exclusive=True)


def test_every_property_arrives_unchanged(channel: BlockingChannel, queue: str) -> None:
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"k": "v"},
        delivery_mode=2,
        priority=7,
        correlation_id="c-1",
        reply_to="somewhere",
        expiration="60000",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="kind",
        user_id="guest",
        app_id="app",
        cluster_id="cluster",
    )
    channel.basic_publish("", queue, b"x", sent)
    assert receive(channel, queue, 1)[0].properties == sent


def test_absent_properties_stay_absent(channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish("", queue, b"x")
    got = receive(channel, queue, 1)[0].properties
    assert got == pika.BasicProperties()


def test_header_values_of_every_kind_pika_knows(channel: BlockingChannel, queue: str) -> None:
    headers = {
        "text": "grüße",
        "empty": "",
        "bytes": b"\x00\xff",
        "true": True,
        "false": False,
        "small": -7,
        "large": 2**40,
        "decimal": decimal.Decimal("-12.34"),
        "time": datetime.datetime(2024, 2, 29, 12, 0, 1, tzinfo=datetime.UTC),
        "none": None,
        "list": [1, "two", [3, {"four": 4}], None],
        "table": {"nested": {"deeper": [True]}},
    }
    publish(channel, queue, b"x", headers=headers)
    assert receive(channel, queue, 1)[0].properties.headers == headers


FIELDS: dict[str, bytes] = {
    "bool": b"t\x01",
    "int8": b"b" + struct.pack(">b", -8),
    "uint8": b"B" + struct.pack(">B", 200),
    "int16": b"s" + struct.pack(">h", -300),
    "uint16": b"u" + struct.pack(">H", 60000),
    "int32": b"I" + struct.pack(">i", -70000),
    "uint32": b"i" + struct.pack(">I", 4_000_000_000),
    "int64": b"l" + struct.pack(">q", -(2**40)),
    "float": b"f" + struct.pack(">f", 1.5),
    "double": b"d" + struct.pack(">d", -2.25),
    "decimal": b"D" + struct.pack(">Bi", 2, 1234),
    "text": b"S" + struct.pack(">I", 3) + b"abc",
    "bytes": b"x" + struct.pack(">I", 3) + b"\x00\x01\xff",
    "time": b"T" + struct.pack(">Q", 1_700_000_000),
    "void": b"V",
    "list": b"A" + struct.pack(">I", 7) + b"t\x00" + b"I" + struct.pack(">i", 1),
    "table": b"F" + struct.pack(">I", 4) + b"\x01at\x01",
}


@pytest.mark.parametrize("kind", FIELDS)
def test_header_field_type_keeps_its_bytes(raw: RawConnection, kind: str) -> None:
    queue = raw_queue(raw)
    table = b"\x05field" + FIELDS[kind]
    header = struct.pack(">HHQH", 60, 0, 0, 0x2000) + struct.pack(">I", len(table)) + table
    raw.call(1, spec.Basic.Publish(exchange="", routing_key=queue))
    raw.send(raw_frame(2, 1, header))
    raw.call(1, spec.Basic.Get(queue=queue, no_ack=True))
    raw.expect(spec.Basic.GetOk)
    assert raw.read_bytes(7 + len(header) + 1) == raw_frame(2, 1, header)


FRAME_BYTES_MAX = 131072
BODY_BYTES_MAX = FRAME_BYTES_MAX - 8
SIZES = [
    0,
    1,
    4088,
    BODY_BYTES_MAX - 1,
    BODY_BYTES_MAX,
    BODY_BYTES_MAX + 1,
    2 * BODY_BYTES_MAX,
    FRAME_BYTES_MAX + 1,
    5_000_000,
]


def pattern(size: int) -> bytes:
    """Bytes that would show a lost, doubled or moved block."""
    return b"".join(struct.pack(">I", number) for number in range(size // 4 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
def test_bodies_of_any_size(channel: BlockingChannel, queue: str, size: int) -> None:
    body = pattern(size)
    publish(channel, queue, body, b"after")
    got = receive(channel, queue, 2)
    assert got[0].body == body
    assert got[1].body == b"after"


@pytest.mark.parametrize("size", [0, 4087, 4088, 4089, 100_000])
def test_small_frames_carry_large_bodies(connect: Connect, name: Name, size: int) -> None:
    channel = connect(frame_max=4096).channel()
    queue = channel.queue_declare(name(), exclusive=True).method.queue
    publish(channel, queue, pattern(size))
    assert receive(channel, queue, 1)[0].body == pattern(size)


def test_between_connections_of_different_frame_size(connect: Connect, channel: BlockingChannel, name: Name) -> None:
    queue = name("shared")
    channel.queue_declare(queue, auto_delete=True)
    small = connect(frame_max=4096).channel()
    consumer = Consumer(small, queue, auto_ack=True)
    publish(channel, queue, pattern(300_000))
    assert consumer.wait(1)[0].body == pattern(300_000)


def test_thirty_megabytes(channel: BlockingChannel, queue: str) -> None:
    body = pattern(30_000_000)
    publish(channel, queue, body)
    got = receive(channel, queue, 1)[0].body
    assert hashlib.sha256(got).digest() == hashlib.sha256(body).digest()


def test_frames_of_two_channels_may_interleave(raw: RawConnection) -> None:
    queue = raw_queue(raw)
    raw.open_channel(2)
    bodies = {1: b"a" * 10, 2: b"b" * 10}
    for channel in bodies:
        raw.call(channel, spec.Basic.Publish(exchange="", routing_key=queue))
    for channel, body in bodies.items():
        raw.send(frame.Header(channel, len(body), spec.BasicProperties()).marshal())
    for start in range(0, 10, 5):
        for channel, body in bodies.items():
            raw.send(frame.Body(channel, body[start : start + 5]).marshal())
    got = set()
    raw.call(1, spec.Basic.Consume(queue=queue, no_ack=True))
    raw.expect(spec.Basic.ConsumeOk)
    for _ in bodies:
        raw.expect(spec.Basic.Deliver)
        raw.read()
        got.add(raw.read().fragment)
    assert got == set(bodies.values())
