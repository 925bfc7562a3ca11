"""Every type of both protocols goes through a queue unchanged, and across where the mapping says so.

Owns raw encodings of all 0-9-1 field types, made here byte by byte, and values of all AMQP 1.0 types, encoded by
Proton. Within a protocol the bytes that come out are the bytes that went in. Across, the table of types in
docs/reference/mapping.md is checked in both directions at once, by pairs of the same value in both encodings.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Described,
    Message,
    byte,
    char,
    decimal32,
    decimal64,
    decimal128,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)

from property.node import Node
from property.peer091 import Peer091
from property.peer10 import Peer10, decode

HAS_HEADERS = 0x2000


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    low = -(1 << bits - 1) if signed else 0
    return st.integers(low, low + (1 << bits) - 1)


def pairs(tag: bytes, form: str, made: Any, numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[bytes, Any]]:
    return numbers.map(lambda number: (tag + struct.pack(">" + form, number), made(number)))


def long_string(tag: bytes, data: bytes) -> bytes:
    return tag + struct.pack(">I", len(data)) + data


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
binaries = st.binary(max_size=60)
floats = st.floats(width=32, allow_nan=False)
SHARED = st.one_of(
    st.booleans().map(lambda yes: (b"t" + bytes([yes]), yes)),
    pairs(b"b", "b", byte, integers(8, signed=True)),
    pairs(b"B", "B", ubyte, integers(8, signed=False)),
    pairs(b"s", "h", short, integers(16, signed=True)),
    pairs(b"u", "H", ushort, integers(16, signed=False)),
    pairs(b"I", "i", int32, integers(32, signed=True)),
    pairs(b"i", "I", uint, integers(32, signed=False)),
    pairs(b"l", "q", int, integers(64, signed=True)),
    pairs(b"f", "f", float32, floats),
    pairs(b"d", "d", float, st.floats(allow_nan=False)),
    pairs(b"T", "Q", lambda seconds: timestamp(seconds * 1000), st.integers(0, 1 << 40)),
    texts.map(lambda text: (long_string(b"S", text.encode()), text)),
    binaries.map(lambda data: (long_string(b"x", data), data)),
    st.just((b"V", None)),
)
"""The same value as 0-9-1 and as 1.0 write it: what the mapping carries both ways."""

names = st.text("abcXYZ-é", min_size=1, max_size=10).filter(lambda name: not name.startswith("x-"))


def _array(items: list[int]) -> Any:
    made: Any = Array
    return made(UNDESCRIBED, Data.INT, *items)


def table(rows: dict[str, bytes]) -> bytes:
    return b"".join(bytes([len(name.encode())]) + name.encode() + value for name, value in rows.items())


decimals_091 = st.tuples(st.integers(0, 255), integers(32, signed=True)).map(
    lambda two: b"D" + struct.pack(">Bi", *two)
)
fields_091 = st.recursive(
    st.one_of(SHARED.map(lambda pair: pair[0]), decimals_091, binaries.map(lambda data: long_string(b"S", data))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: long_string(b"A", b"".join(items))),
        st.dictionaries(names, inner, max_size=4).map(lambda rows: long_string(b"F", table(rows))),
    ),
    max_leaves=12,
)

values_10 = st.recursive(
    st.one_of(
        SHARED.map(lambda pair: pair[1]),
        integers(64, signed=False).map(ulong),
        integers(64, signed=True).map(timestamp),
        st.characters(exclude_categories=["Cs"]).map(char),
        st.text("abc:-", max_size=20).map(symbol),
        st.uuids(),
        integers(32, signed=False).map(decimal32),
        integers(64, signed=False).map(decimal64),
        st.binary(min_size=16, max_size=16).map(decimal128),
        st.lists(integers(32, signed=True), max_size=5).map(_array),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(names, inner, max_size=4),
        inner.map(lambda value: Described(symbol("weft:test"), value)),
    ),
    max_leaves=12,
)


def encode_10(value: Any) -> bytes:
    data = Data()
    data.put_object(value)
    return bytes(data.encode())


def publish_headers(peer: Peer091, channel: int, fields: bytes) -> None:
    """Publish an empty message with this table of headers, byte for byte."""
    method = frame.marshal(commands.Basic.Publish(routing_key="q"), channel)
    head = struct.pack(">HHQHI", 60, 0, 0, HAS_HEADERS, len(fields)) + fields
    peer.send_bytes(method + struct.pack(">BHI", 2, channel, len(head)) + head + b"\xce")


def got_headers(peer: Peer091, channel: int) -> bytes:
    """The bytes that answer a get: method and header frame as they are."""
    peer.node.receive(peer.conn, frame.marshal(commands.Basic.Get(queue="q", no_ack=True), channel))
    return bytes(peer.node.output.pop(peer.conn))


@given(rows=st.dictionaries(names, fields_091, max_size=6))
def test_fields_of_091_come_out_as_they_went_in(rows: dict[str, bytes]) -> None:
    fields = table(rows)
    with Node() as node:
        peer = Peer091(node)
        channel = peer.open_channel()
        peer.declare_queue(channel, "q")
        publish_headers(peer, channel, fields)
        assert struct.pack(">HI", HAS_HEADERS, len(fields)) + fields + b"\xce" in got_headers(peer, channel)


@given(value=values_10)
def test_values_of_10_come_out_as_they_went_in(value: Any) -> None:
    body = encode_10(Described(ulong(0x77), value))
    with Node() as node:
        peer = Peer10(node)
        session = peer.session()
        sender, receiver = peer.sender(session, "s", "q"), peer.receiver(session, "r", "q")
        peer.flow(receiver, 1)
        peer.send(sender, body)
        [(_, data)] = peer.take(receiver)
        assert data.endswith(body)


@given(rows=st.dictionaries(names, SHARED, min_size=1, max_size=6))
def test_shared_types_cross_from_091_to_10(rows: dict[str, tuple[bytes, Any]]) -> None:
    with Node() as node:
        peer, other = Peer091(node), Peer10(node)
        channel = peer.open_channel()
        peer.declare_queue(channel, "q")
        publish_headers(peer, channel, table({name: raw for name, (raw, _) in rows.items()}))
        receiver = other.receiver(other.session(), "r", "q")
        other.flow(receiver, 1)
        [(_, data)] = other.take(receiver)
        message = decode(data)
        got = message.properties
        assert {name: plain(got[name]) for name in got} == {name: plain(value) for name, (_, value) in rows.items()}


@given(rows=st.dictionaries(names, SHARED, min_size=1, max_size=6))
def test_shared_types_cross_from_10_to_091(rows: dict[str, tuple[bytes, Any]]) -> None:
    with Node() as node:
        peer, other = Peer091(node), Peer10(node)
        channel = peer.open_channel()
        peer.declare_queue(channel, "q")
        message = Message(b"", inferred=True, properties={name: value for name, (_, value) in rows.items()})
        other.send(other.sender(other.session(), "s", "q"), message.encode())
        answer = got_headers(peer, channel)
        for name, (raw, _) in rows.items():
            assert table({name: raw}) in answer, name


def plain(value: Any) -> tuple[str, Any]:
    """A value with its type, which Python's equality would overlook."""
    if isinstance(value, memoryview | bytes):
        return "binary", bytes(value)
    return type(value).__name__, value


@given(uuid=st.uuids(), number=integers(64, signed=False))
def test_identifiers_cross_as_text_and_back(uuid: UUID, number: int) -> None:
    with Node() as node:
        peer, other = Peer091(node), Peer10(node)
        channel = peer.open_channel()
        peer.declare_queue(channel, "q")
        sender = other.sender(other.session(), "s", "q")
        other.send(sender, Message(b"", inferred=True, id=uuid, correlation_id=ulong(number)).encode())
        content = peer.get(channel, "q")
        assert content is not None
        assert content.properties.message_id == f"urn:uuid:{uuid}"
        assert content.properties.correlation_id == str(number)
        peer.publish(channel, "", "q", b"", message_id=content.properties.message_id)
        receiver = other.receiver(other.session(), "r", "q")
        other.flow(receiver, 1)
        [(_, data)] = other.take(receiver)
        assert decode(data).id == uuid
