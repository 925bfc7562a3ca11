"""Streams, by the clients people have: pika for AMQP 0-9-1, Qpid Proton for AMQP 1.0.

Owns what a reader sees: where it begins, what it gets, what its acknowledgements do, and what a stream refuses.
Messages are written with confirms, so that everything written can be read. Each test has a stream of its own and
deletes it. It must not look into the node. Rules: RabbitMQ's documentation of streams; docs/guides/streams.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Data, Delivery, Described, symbol, timestamp, ulong

from .proton10 import Client10, data
from .support import Consumer, channel_error, connection_error, depth, publish, wait_until

pytestmark = pytest.mark.weft_only
Name = Callable[..., str]
Connect = Callable[..., pika.BlockingConnection]
Stream = Callable[..., str]
OFFSET = "x-stream-offset"


@pytest.fixture
def stream(connect: Connect, name: Name) -> Iterator[Stream]:
    """A function that makes a stream; keywords are arguments of its declaration."""
    channel, made = connect().channel(), []

    def make(**arguments: Any) -> str:
        named = {key.replace("_", "-"): value for key, value in arguments.items()} | {"x-queue-type": "stream"}
        made.append(str(channel.queue_declare(name("stream"), durable=True, arguments=named).method.queue))
        return made[-1]

    yield make
    for queue in made:
        channel.queue_delete(queue)


@pytest.fixture
def writer(connect: Connect) -> BlockingChannel:
    channel = connect().channel()
    channel.confirm_delivery()
    return channel


class Reading(Consumer):
    """A reader that acknowledges what it gets."""

    def __init__(self, channel: BlockingChannel, queue: str, *, prefetch: int = 100, **arguments: Any) -> None:
        channel.basic_qos(prefetch_count=prefetch)
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        super().__init__(channel, queue, arguments=named)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        super()._on_message(channel, method, properties, body)
        channel.basic_ack(method.delivery_tag)

    @property
    def offsets(self) -> list[int]:
        return [int(delivery.properties.headers[OFFSET]) for delivery in self.deliveries]


def read(channel: BlockingChannel, queue: str, count: int, **arguments: Any) -> Reading:
    """A reader that has got this many and left."""
    reading = Reading(channel, queue, **arguments)
    reading.wait(count)
    reading.cancel()
    return reading


# --- 0-9-1: reading ---


def test_everyone_reads_everything(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    bodies = [b"%d" % number for number in range(300)]
    publish(writer, queue, *bodies)
    for _ in range(3):
        reading = read(channel, queue, 300, x_stream_offset="first", prefetch=7)
        assert reading.bodies == bodies
        assert reading.offsets == list(range(300))
        assert not any(delivery.method.redelivered for delivery in reading.deliveries)
    assert depth(channel, queue) == 300


@pytest.mark.parametrize(
    ("start", "first"), [("first", 0), (0, 0), (7, 7), ("last", 9), ("1h", 0), ("1Y", 0), (datetime.now(UTC), 0)]
)
def test_where_a_reader_begins(
    channel: BlockingChannel, writer: BlockingChannel, stream: Stream, start: Any, first: int
) -> None:
    queue = stream()
    publish(writer, queue, *[b"%d" % number for number in range(10)])
    assert read(channel, queue, 10 - first, x_stream_offset=start).offsets == list(range(first, 10))


def test_next_is_what_comes_from_now_on(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    publish(writer, queue, b"before")
    named, plain = Reading(channel, queue, x_stream_offset="next"), Reading(channel, queue)
    later = Reading(channel, queue, x_stream_offset=3)
    publish(writer, queue, b"1", b"2", b"3")
    assert [delivery.body for delivery in named.wait(3)] == [b"1", b"2", b"3"]
    assert [delivery.body for delivery in plain.wait(3)] == [b"1", b"2", b"3"]
    assert [delivery.body for delivery in later.wait(1)] == [b"3"], "it waited for its offset"


def test_a_point_in_time(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    publish(writer, queue, *[b"old"] * 50)
    born = int(datetime.now(UTC).timestamp())
    wait_until(channel.connection, lambda: datetime.now(UTC).timestamp() >= born + 1)
    publish(writer, queue, *[b"new"] * 3)
    between = datetime.fromtimestamp(born + 1, UTC)
    assert read(channel, queue, 3, x_stream_offset=between).offsets == [50, 51, 52]
    far = Reading(channel, queue, x_stream_offset=datetime(2200, 1, 1, tzinfo=UTC))
    publish(writer, queue, b"last")
    assert [delivery.body for delivery in far.wait(1)] == [b"last"]


def test_acknowledging_is_credit(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    publish(writer, queue, *[b"%d" % number for number in range(10)])
    channel.basic_qos(prefetch_count=4)
    reader = Consumer(channel, queue, arguments={OFFSET: "first"})
    reader.wait(4)
    channel.queue_declare(queue, passive=True)
    assert len(reader.deliveries) == 4
    channel.basic_nack(reader.deliveries[0].method.delivery_tag, requeue=True)
    channel.basic_reject(reader.deliveries[1].method.delivery_tag, requeue=False)
    channel.basic_ack(reader.deliveries[3].method.delivery_tag, multiple=True)
    assert [delivery.body for delivery in reader.wait(8)] == [b"%d" % number for number in range(8)]


def test_any_delivery_of_a_run_can_be_settled(
    channel: BlockingChannel, writer: BlockingChannel, stream: Stream
) -> None:
    """One from the middle, many, one given back, and in a transaction that is rolled back first."""
    queue = stream()
    publish(writer, queue, *[b"%d" % number for number in range(40)])
    channel.basic_qos(prefetch_count=10)
    consumer = Consumer(channel, queue, arguments={OFFSET: "first"})
    consumer.wait(10)
    channel.basic_ack(5)
    channel.basic_nack(7)
    consumer.wait(12)
    channel.basic_ack(8, multiple=True)
    consumer.wait(18)
    channel.tx_select()
    channel.basic_ack(12, multiple=True)
    channel.tx_rollback()
    channel.basic_ack(11)
    channel.basic_ack(0, multiple=True)
    channel.tx_commit()
    consumer.wait(28)
    channel.basic_cancel(consumer.tag)
    channel.basic_ack(28, multiple=True)
    channel.tx_commit()
    assert consumer.bodies == [b"%d" % number for number in range(len(consumer.bodies))]
    with channel_error(406):
        channel.basic_ack(28)
        channel.tx_commit()


def test_runs_of_messages_that_are_not_alike(
    channel: BlockingChannel, writer: BlockingChannel, stream: Stream, client10: Client10
) -> None:
    """Keys, properties, sizes and protocols that change from one message to the next, and back."""
    queue = stream()
    wanted: list[tuple[bytes, str | None, Any]] = []
    for number in range(60):
        body, kind = b"x" * (number % 4 // 2), ["a", "b", None][number % 3]
        headers = {"n": number % 2} if number % 5 else {OFFSET: 99}
        properties = pika.BasicProperties(type=kind, headers=headers, timestamp=7 if number % 7 else None)
        writer.basic_publish("", queue, body, properties)
        wanted.append((body, kind, number % 2 if number % 5 else None))
    assert client10.send(client10.sender(f"/queues/{queue}"), data(b"by link")) == Delivery.ACCEPTED
    reading = read(channel, queue, 61, x_stream_offset="first")
    seen = [(one.body, one.properties.type, one.properties.headers.get("n")) for one in reading.deliveries]
    assert seen[:60] == wanted
    assert seen[60][0] == b"by link"
    assert reading.offsets == list(range(61))


def test_headers_and_keys_stay(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    channel.queue_bind(queue, "amq.topic", "a.#")
    own = {"colour": "red", OFFSET: 99}
    properties = pika.BasicProperties(content_type="text/plain", headers=own, message_id="m", delivery_mode=1)
    writer.basic_publish("amq.topic", "a.b", b"body", properties)
    (delivery,) = read(channel, queue, 1, x_stream_offset="first").deliveries
    assert (delivery.method.exchange, delivery.method.routing_key) == ("amq.topic", "a.b")
    assert delivery.properties.headers == {"colour": "red", OFFSET: 0}
    assert (delivery.properties.content_type, delivery.properties.message_id) == ("text/plain", "m")


def test_large_messages(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    bodies = [bytes([number]) * 300_000 for number in range(12)]
    publish(writer, queue, *bodies)
    assert read(channel, queue, 12, x_stream_offset="first", prefetch=2).bodies == bodies


def test_filters(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    for number, value in enumerate(["red", None, "blue", "red", "green", None]):
        headers = {"x-stream-filter-value": value} if value else {}
        publish(writer, queue, b"%d" % number, headers=headers)
    first: dict[str, Any] = {"x_stream_offset": "first"}
    assert read(channel, queue, 2, **first, x_stream_filter="red").offsets == [0, 3]
    assert read(channel, queue, 3, **first, x_stream_filter=["red", "blue"]).offsets == [0, 2, 3]
    both = read(channel, queue, 3, **first, x_stream_filter="blue", x_stream_match_unfiltered=True)
    assert both.offsets == [1, 2, 5]


# --- 0-9-1: retention ---


def test_only_so_many_are_kept(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream(x_max_length=160)
    publish(writer, queue, *[b"%d" % number for number in range(1000)])
    kept = depth(channel, queue)
    assert 140 <= kept <= 170
    offsets = read(channel, queue, kept, x_stream_offset="first").offsets
    assert offsets == list(range(1000 - kept, 1000)), "the newest, without a gap"
    assert read(channel, queue, kept, x_stream_offset=5).offsets == offsets, "what is gone is passed over"


def test_only_so_many_bytes_are_kept(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream(x_max_length_bytes=16_000)
    publish(writer, queue, *[bytes(100)] * 500)
    assert 140 <= depth(channel, queue) <= 170


def test_only_what_is_young_is_kept(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream(x_max_age="1s")
    publish(writer, queue, *[b"%d" % number for number in range(50)])
    wait_until(channel.connection, lambda: depth(channel, queue) == 1)
    assert read(channel, queue, 1, x_stream_offset="first").offsets == [49], "the last one stays"


# --- 0-9-1: names ---


def test_a_named_reader_goes_on_where_it_was(connect: Connect, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    publish(writer, queue, *[b"%d" % number for number in range(10)])
    named: dict[str, Any] = {"x_stream_consumer_name": "one", "x_stream_offset": "first"}
    channel = connect().channel()
    channel.basic_qos(prefetch_count=5)
    reader = Consumer(channel, queue, arguments={key.replace("_", "-"): value for key, value in named.items()})
    tags = [delivery.method.delivery_tag for delivery in reader.wait(5)]
    for at in (0, 1, 2, 4):
        channel.basic_ack(tags[at])
    channel.connection.close()
    channel = connect().channel()
    assert read(channel, queue, 7, **named).offsets == list(range(3, 10)), "3 was not acknowledged"
    channel.connection.close()
    publish(writer, queue, b"new")
    channel = connect().channel()
    assert read(channel, queue, 1, **named).offsets == [10]
    assert read(channel, queue, 11, x_stream_consumer_name="two", x_stream_offset="first").offsets[0] == 0


# --- 0-9-1: what is refused ---


def test_a_reader_needs_a_prefetch(channel: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    text = f"PRECONDITION_FAILED - consumer prefetch count is not set for stream queue '{queue}' in vhost '/'"
    with channel_error(406, text):
        Consumer(channel, queue)


def test_a_reader_acknowledges(channel: BlockingChannel, stream: Stream) -> None:
    channel.basic_qos(prefetch_count=1)
    with connection_error(540, "NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queue"):
        Consumer(channel, stream(), auto_ack=True)


@pytest.mark.parametrize("wrong", ["soon", "7", "-1h", -1, True, ["first"]])
def test_a_place_that_is_none(channel: BlockingChannel, stream: Stream, wrong: Any) -> None:
    with channel_error(406, "invalid arg 'x-stream-offset'"):
        Reading(channel, stream(), x_stream_offset=wrong)


def test_nothing_is_taken_from_a_stream(connect: Connect, stream: Stream) -> None:
    queue = stream()
    channel = connect().channel()
    with connection_error(540, f"NOT_IMPLEMENTED - basic.get not supported by stream queues queue '{queue}'"):
        channel.basic_get(queue)
    channel = connect().channel()
    with connection_error(540, "NOT_IMPLEMENTED - queue.purge not supported by stream queues"):
        channel.queue_purge(queue)


def test_a_reader_is_told_when_its_stream_goes(connect: Connect, channel: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    reader = Reading(channel, queue)
    connect().channel().queue_delete(queue)
    wait_until(channel.connection, lambda: reader.cancelled_by_broker)


# --- 1.0 ---


def reader10(
    client: Client10, queue: str, filters: dict[str, Any], *, credit: int = 100, name: str = "", **properties: Any
) -> Any:
    """A receiver from a stream with these filters and link properties."""

    def prepare(link: Any) -> None:
        if filters:
            link.source.filter.put_dict({symbol(key): Described(symbol(key), value) for key, value in filters.items()})
        if properties:
            link.properties = {symbol(key.replace("_", "-")): value for key, value in properties.items()}

    return client.receiver(f"/queues/{queue}", credit=credit, prepare=prepare, name=name)


def offsets10(client: Client10, link: Any, count: int) -> list[int]:
    """The offsets of the next messages, each accepted."""
    offsets = []
    for _ in range(count):
        delivery, message = client.receive(link)
        client.settle(delivery, Delivery.ACCEPTED)
        offsets.append(int(message.annotations[OFFSET]))
    return offsets


def applied(link: Any) -> set[str]:
    """The filters of the broker's answer."""
    found: Data = link.remote_source.filter
    found.rewind()
    return set(map(str, found.get_dict())) if found.next() else set()


SPEC = "rabbitmq:stream-offset-spec"


@pytest.mark.parametrize(
    ("start", "first"),
    [("first", 0), (ulong(7), 7), (7, 7), ("last", 9), ("1h", 0), (timestamp(1000), 0), (symbol("first"), 0)],
)
@pytest.mark.parametrize("key", [SPEC, OFFSET])
def test_where_a_receiver_begins(
    client10: Client10, writer: BlockingChannel, stream: Stream, key: str, start: Any, first: int
) -> None:
    queue = stream()
    publish(writer, queue, *[b"%d" % number for number in range(10)])
    link = reader10(client10, queue, {key: start})
    assert applied(link) == {key}
    assert offsets10(client10, link, 10 - first) == list(range(first, 10))
    assert client10.empty(link)


def test_written_and_read_by_links(client10: Client10, stream: Stream) -> None:
    queue = stream()
    sender = client10.sender(f"/queues/{queue}")
    for number in range(20):
        message = data(b"%d" % number, annotations={symbol("x-stream-filter-value"): "odd" if number % 2 else "even"})
        assert client10.send(sender, message) == Delivery.ACCEPTED
    assert offsets10(client10, reader10(client10, queue, {SPEC: "first"}, credit=30), 20) == list(range(20))
    marks = {SPEC: "first", "rabbitmq:stream-filter": ["odd"], "rabbitmq:stream-match-unfiltered": False}
    link = reader10(client10, queue, marks)
    assert applied(link) == set(marks)
    assert offsets10(client10, link, 10) == list(range(1, 20, 2))
    assert client10.empty(link)


def test_a_selector_leaves_out(client10: Client10, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream()
    for number in range(10):
        publish(writer, queue, b"%d" % number, headers={"number": number})
    filters = {SPEC: "first", "apache.org:selector-filter:string": "number >= 6"}
    link = reader10(client10, queue, filters)
    assert offsets10(client10, link, 4) == [6, 7, 8, 9]
    assert client10.empty(link)


def test_a_named_receiver_goes_on_where_it_was(
    connect10: Callable[..., Client10], writer: BlockingChannel, stream: Stream
) -> None:
    queue = stream()
    publish(writer, queue, *[b"%d" % number for number in range(10)])
    client = connect10()
    link = reader10(client, queue, {SPEC: "first"}, x_stream_consumer_name="one")
    assert offsets10(client, link, 4) == [0, 1, 2, 3]
    client.round_trip()
    client.cut()
    client = connect10()
    link = reader10(client, queue, {SPEC: "first"}, x_stream_consumer_name="one")
    assert offsets10(client, link, 6) == [4, 5, 6, 7, 8, 9]


def test_a_receiver_with_a_bad_place_is_refused(client10: Client10, stream: Stream) -> None:
    link = reader10(client10, stream(), {SPEC: "soon"}, credit=0)
    assert client10.refused(link).name == "amqp:invalid-field"


# --- taps ---


def test_a_tapped_exchange(connect: Connect, writer: BlockingChannel, stream: Stream, name: Name) -> None:
    queue, exchange, channel = stream(), name("exchange"), connect().channel()
    channel.exchange_declare(exchange, "topic", arguments={"x-tap": queue})
    taken = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(taken, exchange, "a.*")
    channel.queue_bind(taken, exchange, "*.b")
    writer.basic_publish(exchange, "a.b", b"twice bound")
    with pytest.raises(pika.exceptions.UnroutableError):
        writer.basic_publish(exchange, "nowhere", b"unroutable", mandatory=True)
    writer.basic_publish("", queue, b"by itself")
    reading = read(channel, queue, 3, x_stream_offset="first")
    assert reading.bodies == [b"twice bound", b"unroutable", b"by itself"]
    keys = [(delivery.method.exchange, delivery.method.routing_key) for delivery in reading.deliveries]
    assert keys == [(exchange, "a.b"), (exchange, "nowhere"), ("", queue)]
    assert depth(channel, taken) == 1, "the flow is as it was"
    channel.exchange_delete(exchange)


def test_a_tapped_queue(connect: Connect, writer: BlockingChannel, stream: Stream, name: Name) -> None:
    queue, channel = stream(), connect().channel()
    taken = channel.queue_declare(name("queue"), exclusive=False, auto_delete=True, arguments={"x-tap": queue})
    for body in (b"1", b"2"):
        channel.basic_publish("", taken.method.queue, body)
    got = Consumer(channel, taken.method.queue, auto_ack=True)
    got.wait(2)
    assert read(channel, queue, 2, x_stream_offset="first").bodies == [b"1", b"2"]


@pytest.mark.parametrize("wrong", ["queue", "missing", 5])
def test_only_a_stream_can_be_tapped_into(channel: BlockingChannel, name: Name, wrong: Any) -> None:
    target: Any = name("target") if isinstance(wrong, str) else wrong
    if wrong == "queue":
        channel.queue_declare(target, exclusive=True)
    with channel_error(404 if wrong == "missing" else 406):
        channel.exchange_declare(name("exchange"), "fanout", arguments={"x-tap": target})


# --- streams in parts ---


def test_each_key_has_its_part(channel: BlockingChannel, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream(x_partitions=3)
    keys = [f"key-{number % 20}" for number in range(200)]
    for number, key in enumerate(keys):
        writer.basic_publish(queue, key, b"%d" % number)
    assert depth(channel, queue) == 200
    whole = read(channel, queue, 200, x_stream_offset="first", prefetch=50)
    assert sorted(whole.bodies) == sorted(b"%d" % number for number in range(200))
    parts: dict[int, list[tuple[int, str]]] = {0: [], 1: [], 2: []}
    for delivery in whole.deliveries:
        headers = delivery.properties.headers
        parts[headers["x-stream-partition"]].append((headers[OFFSET], delivery.method.routing_key))
    homes: dict[str, set[int]] = {}
    for part, found in parts.items():
        assert [offset for offset, _ in found] == list(range(len(found))), "each part in order, without a gap"
        assert len(found) > 20
        for _, key in found:
            homes.setdefault(key, set()).add(part)
    assert all(len(of_key) == 1 for of_key in homes.values())
    alone = read(channel, f"{queue}-1", len(parts[1]), x_stream_offset="first")
    assert [delivery.method.routing_key for delivery in alone.deliveries] == [key for _, key in parts[1]]


def test_a_reader_of_all_parts_follows_and_goes_on(connect: Connect, writer: BlockingChannel, stream: Stream) -> None:
    queue = stream(x_partitions=4)
    channel = connect().channel()
    named: dict[str, Any] = {"x_stream_consumer_name": "all", "x_stream_offset": "next"}
    reading = Reading(channel, queue, **named)
    publish(writer, queue, *[b"%d" % number for number in range(40)])
    assert sorted(int(delivery.body) for delivery in reading.wait(40)) == list(range(40))
    channel.connection.close()
    for number in range(40, 60):
        publish(writer, queue, b"%d" % number, message_id=f"id-{number}")
    reading = Reading(connect().channel(), queue, **named)
    assert sorted(int(delivery.body) for delivery in reading.wait(20)) == list(range(40, 60))


def test_parts_come_and_go_with_the_whole(connect: Connect, name: Name, stream: Stream) -> None:
    queue, channel = stream(x_partitions=2), connect().channel()
    with channel_error(406, "is a part of"):
        channel.queue_delete(f"{queue}-0")
    channel = connect().channel()
    with channel_error(406, "x-partitions"):
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream", "x-partitions": 3})
    channel = connect().channel()
    channel.queue_delete(queue)
    for gone in (queue, f"{queue}-0", f"{queue}-1"):
        with channel_error(404):
            connect().channel().queue_declare(gone, passive=True)
    with channel_error(404):
        connect().channel().exchange_declare(queue, passive=True)


def test_parts_by_links(client10: Client10, stream: Stream) -> None:
    queue = stream(x_partitions=2)
    sender = client10.sender(f"/exchanges/{queue}/one-key")
    for number in range(5):
        assert client10.send(sender, data(b"%d" % number)) == Delivery.ACCEPTED
    link = reader10(client10, queue, {SPEC: "first"})
    messages = [client10.receive(link)[1] for _ in range(5)]
    assert [message.body for message in messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert len({message.annotations["x-stream-partition"] for message in messages}) == 1
    assert client10.empty(link)
