"""What was published is what a data folder shows as columns, whoever sent it and whatever state the node is in.

Real nodes, real clients of both protocols; the folder is read by this process while the node has it open, after it was
killed, and while it moves and removes segments. Rule: docs/reference/columns.md.
"""

from __future__ import annotations

import decimal
import json
import threading
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pika
import proton
import pyarrow as pa
import pytest

from weft._kernel import LogReader
from weft.log import open_log

from .living import PERSISTENT, LivingNode

NAMES = (  # noqa: SIM905
    "stream shard offset enqueue_time origin exchange routing_key message_id correlation_id reply_to content_type"
    " content_encoding type app_id user_id creation_time priority ttl_ms durable redelivered headers trace body_bytes"
    " body"
).split()


WHEN = 1_700_000_000
HEADERS = {
    "text": "grüße ✓",
    "yes": True,
    "no": False,
    "small": -5,
    "large": 2**40,
    "none": None,
    "price": decimal.Decimal("3.14"),
    "time": datetime.fromtimestamp(WHEN, UTC).replace(tzinfo=None),
    "bytes": b"\xff\x00",
    "list": [1, "two", [True, None]],
    "table": {"a": {"b": 'c"\n'}},
    "x-weft-trace": ["edge-1", "core-2"],
}
PROPERTIES = pika.BasicProperties(
    content_type="application/json",
    content_encoding="utf-8",
    headers=HEADERS,
    delivery_mode=2,
    priority=7,
    correlation_id="corr",
    reply_to="answers",
    expiration="600000",
    message_id="id-1",
    timestamp=WHEN,
    type="order",
    user_id="guest",
    app_id="shop",
)
HEADERS_SHOWN = {
    "text": "grüße ✓",
    "yes": "true",
    "no": "false",
    "small": "-5",
    "large": str(2**40),
    "none": None,
    "price": "3.14",
    "time": "2023-11-14T22:13:20Z",
    "bytes": "ff00",
}
PROPERTIES_SHOWN = {
    "stream": "q",
    "shard": 3,
    "offset": 0,
    "origin": "edge-1",
    "exchange": "ex.grüße",
    "routing_key": "a.ключ",
    "message_id": "id-1",
    "correlation_id": "corr",
    "reply_to": "answers",
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "type": "order",
    "app_id": "shop",
    "user_id": "guest",
    "creation_time": datetime.fromtimestamp(WHEN, UTC),
    "priority": 7,
    "ttl_ms": 600000,
    "durable": True,
    "redelivered": False,
    "trace": ["edge-1", "core-2", "here"],
    "body_bytes": 6,
    "body": b"\x00body\xff",
}
MESSAGE10 = proton.Message(
    id="id-1",
    correlation_id=2**63,
    user_id=b"guest",
    subject="topic",
    reply_to="/queues/answers",
    content_type="text/plain",
    content_encoding="gzip",
    creation_time=1_700_000_000.125,
    group_id="shop",
    priority=9,
    ttl=60.0,
    durable=True,
    annotations={
        proton.symbol("x-opt-weft-trace"): ["edge-1", "core-2"],
        proton.symbol("x-opt-weft-id"): "edge-1:7",
        proton.symbol("x-basic-type"): "order",
        proton.symbol("x-other"): 5,
        proton.symbol("unseen"): 6,
    },
    properties={
        "text": "grüße",
        "ulong": proton.ulong(2**64 - 1),
        "time": proton.timestamp(1_700_000_000_125),
        "uuid": uuid.UUID(int=1),
        "null": None,
        "bytes": b"\x01\xff",
        "char": proton.char("ß"),
        "real": 0.25,
    },
    body=b"data",
)
HEADERS10_SHOWN = {
    "x-weft-id": "edge-1:7",
    "x-other": "5",
    "text": "grüße",
    "ulong": str(2**64 - 1),
    "time": "2023-11-14T22:13:20.125Z",
    "null": None,
    "bytes": "01ff",
    "char": "ß",
    "real": "0.25",
    "uuid": "00000000-0000-0000-0000-000000000001",
}
PROPERTIES10_SHOWN = {
    "offset": 0,
    "origin": "edge-1",
    "message_id": "id-1",
    "correlation_id": str(2**63),
    "reply_to": "/queues/answers",
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "type": "order",
    "app_id": "shop",
    "user_id": "guest",
    "creation_time": datetime.fromtimestamp(1_700_000_000.125, UTC),
    "priority": 9,
    "ttl_ms": 60000,
    "durable": True,
    "trace": ["edge-1", "core-2", "here"],
    "body_bytes": 4,
    "body": b"data",
}


def table(log: LogReader, *place: int | None, columns: list[str] | None = None, **options: Any) -> pa.Table:
    stream = log.read(*(place or (0,)), columns=columns, **options)  # type: ignore[misc,arg-type]
    return pa.RecordBatchReader.from_stream(stream).read_all()


def rows(log: LogReader, *place: int | None, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return table(log, *place, columns=columns).to_pylist()


def wait_for(log: LogReader, end: int) -> None:
    deadline = time.monotonic() + 20
    while log.offsets()[1] < end:
        assert time.monotonic() < deadline, log.offsets()
        time.sleep(0.01)


def test_every_property_and_header_of_0_9_1(node: LivingNode) -> None:
    channel = node.channel(confirms=True)
    channel.exchange_declare("ex.grüße", "topic", durable=True)
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "ex.grüße", "#")
    before_us = time.time_ns() // 1000 - 1
    channel.basic_publish("ex.grüße", "a.ключ", b"\x00body\xff", PROPERTIES)
    channel.basic_publish("", "q", b"", PERSISTENT)
    log = open_log(node.folder, "/", "q", shard=3, origin="here")
    first, second = rows(log)
    assert list(first) == NAMES
    arrived = first.pop("enqueue_time")
    assert before_us <= arrived.timestamp() * 1e6 <= time.time_ns() / 1000
    shown = dict(first.pop("headers"))
    assert json.loads(shown.pop("list")) == [1, "two", [True, None]]
    assert json.loads(shown.pop("table")) == {"a": {"b": 'c"\n'}}
    assert shown == HEADERS_SHOWN
    assert first == PROPERTIES_SHOWN
    absent = ("message_id", "correlation_id", "reply_to", "content_type", "content_encoding", "type", "app_id")
    absent = (*absent, "user_id", "creation_time", "ttl_ms", "headers", "trace")
    assert {name: second[name] for name in absent} == dict.fromkeys(absent)
    assert (second["offset"], second["origin"], second["body"], second["routing_key"]) == (1, "here", b"", "q")


def test_every_property_and_kind_of_body_of_1_0(node: LivingNode) -> None:
    node.channel().queue_declare("q", durable=True)
    client = node.client10()
    sender = client.sender("/queues/q")
    bodies: list[Any] = [b"data", "text ✓", {"a": 1}, [1, 2], None]
    client.send(sender, MESSAGE10)
    for body in bodies[1:]:
        client.send(sender, proton.Message(body=body, durable=True))
    log = open_log(node.folder, "/", "q", origin="here")
    wait_for(log, len(bodies))
    first, *rest = rows(log)
    shown = dict(first.pop("headers"))
    assert shown == HEADERS10_SHOWN
    assert {name: first[name] for name in PROPERTIES10_SHOWN} == PROPERTIES10_SHOWN
    assert [row["body"] for row in rest[:1]] == ["text ✓".encode()]
    assert all(row["body_bytes"] == len(row["body"]) for row in rest)
    assert rest[0]["headers"] is None
    assert rest[0]["origin"] == "here"


def test_narrow_ranges_and_large_bodies(node: LivingNode) -> None:
    channel = node.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    sizes = [0, 1, 65_535, 65_536, 65_537, 300_000, 3_000_000]
    for size in sizes:
        channel.basic_publish("", "q", bytes(range(256)) * (size // 256) + bytes(size % 256), PERSISTENT)
    log = open_log(node.folder, "/", "q")
    assert log.offsets() == (0, len(sizes))
    assert log.extent() == (0, len(sizes), len(sizes), sum(sizes))
    narrow = table(log, columns=["body_bytes", "offset"])
    assert narrow.column_names == ["body_bytes", "offset"]
    assert narrow.column("body_bytes").to_pylist() == sizes
    for batch_rows in (1, 2, 100):
        whole = table(log, columns=["body"], batch_rows=batch_rows, batch_bytes=100_000)
        bodies = [body.as_py() for body in whole.column("body")]
        assert [len(body) for body in bodies] == sizes
        assert bodies[-1][:300_000] == bodies[-2][:299_776] + bodies[-1][299_776:300_000]
    assert table(log, 2, 5, columns=["offset"]).column("offset").to_pylist() == [2, 3, 4]
    assert table(log, 5, 2).num_rows == 0
    assert table(log, 100).num_rows == 0
    assert table(log, columns=[]).num_rows == len(sizes)
    stream = log.read()
    pa.RecordBatchReader.from_stream(stream)
    with pytest.raises(ValueError, match="taken before"):
        pa.RecordBatchReader.from_stream(stream)
    with pytest.raises(ValueError, match='no column "bdy": there are stream, shard'):
        log.read(columns=["bdy"])


def test_times_are_found(node: LivingNode) -> None:
    channel = node.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    for _ in range(50):
        channel.basic_publish("", "q", b"x", PERSISTENT)
    log = open_log(node.folder, "/", "q")
    times = [int(row["enqueue_time"].timestamp() * 1e6) for row in rows(log, columns=["enqueue_time"])]
    assert log.times() == (times[0], times[-1])
    for moment in (0, times[0], times[20], times[20] + 1, times[-1], times[-1] + 1):
        expected = next((offset for offset, at in enumerate(times) if at >= moment), 50)
        assert log.find(moment) == expected


def test_while_it_is_written_and_after_it_was_killed(node: LivingNode) -> None:
    """A reader that polls sees every message once, in order, and what was confirmed is there after a kill."""
    channel = node.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    log = open_log(node.folder, "/", "q")
    count, seen = 600, []
    confirmed = 0

    def publish() -> None:
        nonlocal confirmed
        for number in range(count):
            channel.basic_publish("", "q", str(number).encode(), PERSISTENT)
            confirmed = number + 1

    publisher = threading.Thread(target=publish)
    publisher.start()
    while len(seen) < count:
        promised = confirmed
        _, end = log.offsets()
        assert end >= promised
        seen += [row["body"] for row in rows(log, len(seen), end, columns=["body"])]
        assert seen == [str(number).encode() for number in range(len(seen))]
        assert len(seen) == end
    publisher.join()
    node.kill()
    again = open_log(node.folder, "/", "q")
    assert [row["body"] for row in rows(again, columns=["body"])] == seen
    assert log.offsets() == again.offsets() == (0, count)


def test_segments_that_go_away_while_they_are_read(node: LivingNode) -> None:
    """Messages are consumed and their segments removed under a reader: it gives what is left, in order."""
    channel = node.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    count, gone, body = 500, 450, bytes(400_000)
    for _ in range(count):
        channel.basic_publish("", "q", body, PERSISTENT)
    log = open_log(node.folder, "/", "q")
    segments = node.folder / "messages" / "segments"
    oldest = min(segments.glob("*.log"))
    reader = pa.RecordBatchReader.from_stream(log.read(columns=["offset", "body"], batch_rows=4))
    found = reader.read_next_batch().column("offset").to_pylist()
    for _ in range(gone):
        channel.basic_get("q", auto_ack=True)
    deadline = time.monotonic() + 20
    while oldest.exists():
        assert time.monotonic() < deadline, sorted(segments.iterdir())
        time.sleep(0.01)
    for batch in reader:
        assert all(value.as_py() == body for value in batch.column("body"))
        found += batch.column("offset").to_pylist()
    assert found == sorted(set(found))
    assert found[-50:] == list(range(gone, count))
    assert len(found) < count, "what had gone before it was read is left out"
    assert rows_offsets_from(log, 0) == list(range(gone, count))
    with pytest.raises(pa.ArrowInvalid, match=f"offsets 0 to {gone - 1} are not kept any more"):
        table(log, columns=["offset"], whole=True)


def test_a_damaged_segment_is_named(node: LivingNode) -> None:
    channel = node.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    for number in range(20):
        channel.basic_publish("", "q", f"message {number:04d}".encode() * 50, PERSISTENT)
    node.stop()
    (path,) = (node.folder / "messages" / "segments").glob("*.log")
    content = bytearray(path.read_bytes())
    at = content.index(b"message 0007")
    content[at + 3] ^= 1
    path.write_bytes(content)
    log = open_log(node.folder, "/", "q")
    with pytest.raises(
        pa.ArrowInvalid, match=rf"offset 7 cannot be read: segments/{path.name} is damaged at \d+"
    ) as raised:
        table(log)
    assert "read on from 8" in str(raised.value)
    assert rows_offsets_from(log, 8) == list(range(8, 20))
    path.write_bytes(content[: len(content) // 2])
    log = open_log(node.folder, "/", "q")
    offsets = rows_offsets_from(log, 8)
    assert offsets == list(range(8, 8 + len(offsets)))
    assert 0 < len(offsets) < 12


def rows_offsets_from(log: LogReader, start: int) -> list[int]:
    return [row["offset"] for row in rows(log, start, columns=["offset"])]


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    from weft.model.errors import Unavailable

    with pytest.raises(Unavailable, match="there is no node's data in"):
        open_log(tmp_path, "/", "q")
    with pytest.raises(Unavailable, match="there is no store in"):
        LogReader(tmp_path, 1)
