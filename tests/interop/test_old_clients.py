"""A client of 2010: no client properties, no capabilities, AMQPLAIN, only the methods the specification had then.

Owns its own encoder, built from the specification alone, so that an error shared by the broker and a modern library
cannot hide (R027, R037). Bytes go out on a plain socket and come back as (channel, class, method, arguments). It must
use no AMQP library. Rules: AMQP 0-9-1 sections 2.2 and 4.2; the answer to a wrong protocol header is in 4.2.2.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, CONTENT, BODY = 1, 2, 3
START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK, CLOSE, CLOSE_OK = (
    (10, number) for number in (10, 11, 30, 31, 40, 41, 50, 51)
)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
QUEUE_DECLARE, QUEUE_DECLARE_OK, QUEUE_BIND, QUEUE_BIND_OK, QUEUE_DELETE, QUEUE_DELETE_OK = (
    (50, number) for number in (10, 11, 20, 21, 40, 41)
)
QOS, QOS_OK, CONSUME, CONSUME_OK, CANCEL, CANCEL_OK, PUBLISH, DELIVER, GET, GET_OK, GET_EMPTY, ACK = (
    (60, number) for number in (10, 11, 20, 21, 30, 31, 40, 60, 70, 71, 72, 80)
)

Name = Callable[..., str]


def short(text: str) -> bytes:
    return struct.pack(">B", len(text)) + text.encode()


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


class OldClient:
    """A socket and the few lines a client needed then."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), 10)
        self.stream = self.socket.makefile("rb")

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    @staticmethod
    def frame(kind: int, channel: int, payload: bytes) -> bytes:
        return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"

    def method(self, channel: int, which: tuple[int, int], arguments: bytes = b"") -> bytes:
        return self.frame(METHOD, channel, struct.pack(">HH", *which) + arguments)

    def call(self, channel: int, which: tuple[int, int], arguments: bytes = b"") -> None:
        self.socket.sendall(self.method(channel, which, arguments))

    def read(self) -> tuple[int, int, bytes]:
        kind, channel, size = struct.unpack(">BHI", self.stream.read(7))
        payload = self.stream.read(size)
        assert self.stream.read(1) == b"\xce"
        return kind, channel, payload

    def rest(self) -> bytes:
        """What still comes until the peer hangs up, politely or not."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := self.stream.read(1):
                data += chunk
        return data

    def expect(self, which: tuple[int, int]) -> bytes:
        kind, _, payload = self.read()
        assert kind == METHOD
        assert struct.unpack(">HH", payload[:4]) == which, payload
        return payload[4:]

    def content(self) -> bytes:
        kind, _, header = self.read()
        assert kind == CONTENT
        left = struct.unpack(">HHQ", header[:12])[2]
        body = b""
        while len(body) < left:
            kind, _, payload = self.read()
            assert kind == BODY
            body += payload
        return body

    def greeting(self, password: str = "guest") -> bytes:
        login = short("LOGIN") + b"S" + long(b"guest") + short("PASSWORD") + b"S" + long(password.encode())
        return self.method(0, START_OK, long(b"") + short("AMQPLAIN") + long(login) + short("en_US"))

    def open(self) -> None:
        self.socket.sendall(HEADER)
        assert b"AMQPLAIN" in self.expect(START)
        self.socket.sendall(self.greeting())
        channel_max, frame_bytes_max, _heartbeat = struct.unpack(">HIH", self.expect(TUNE))
        self.call(0, TUNE_OK, struct.pack(">HIH", channel_max, frame_bytes_max, 0))
        self.call(0, OPEN, short("/") + short("") + b"\x00")
        self.expect(OPEN_OK)
        self.call(1, CHANNEL_OPEN, short(""))
        self.expect(CHANNEL_OPEN_OK)

    def publish(self, exchange: str, key: str, body: bytes) -> None:
        self.call(1, PUBLISH, b"\0\0" + short(exchange) + short(key) + b"\0")
        self.socket.sendall(
            self.frame(CONTENT, 1, struct.pack(">HHQH", 60, 0, len(body), 0)) + self.frame(BODY, 1, body)
        )

    def declare(self, queue: str, bits: int = 0b0100) -> None:
        self.call(1, QUEUE_DECLARE, b"\0\0" + short(queue) + bytes([bits]) + long(b""))
        assert self.expect(QUEUE_DECLARE_OK).startswith(short(queue))


@pytest.fixture
def client(broker: Any) -> Iterator[OldClient]:
    with contextlib.closing(OldClient(broker.host, broker.port)) as client:
        yield client


def test_a_day_in_the_life_of_an_old_client(client: OldClient, name: Name) -> None:
    exchange, queue = name("exchange"), name("queue")
    client.open()
    client.call(1, EXCHANGE_DECLARE, b"\0\0" + short(exchange) + short("topic") + b"\x04" + long(b""))  # auto-delete
    client.expect(EXCHANGE_DECLARE_OK)
    client.declare(queue)
    client.call(1, QUEUE_BIND, b"\0\0" + short(queue) + short(exchange) + short("news.*") + b"\0" + long(b""))
    client.expect(QUEUE_BIND_OK)
    client.call(1, QOS, struct.pack(">IHB", 0, 1, 0))
    client.expect(QOS_OK)
    client.call(1, CONSUME, b"\0\0" + short(queue) + short("old") + b"\0" + long(b""))
    assert client.expect(CONSUME_OK) == short("old")
    for body in (b"first", b"second"):
        client.publish(exchange, "news.today", body)
    for tag, body in ((1, b"first"), (2, b"second")):
        delivery = client.expect(DELIVER)
        assert delivery == short("old") + struct.pack(">QB", tag, 0) + short(exchange) + short("news.today")
        assert client.content() == body
        client.call(1, ACK, struct.pack(">QB", tag, 0))
    client.call(1, CANCEL, short("old") + b"\0")
    assert client.expect(CANCEL_OK) == short("old")
    client.call(1, GET, b"\0\0" + short(queue) + b"\x01")
    client.expect(GET_EMPTY)
    client.call(0, CLOSE, struct.pack(">H", 200) + short("") + struct.pack(">HH", 0, 0))
    client.expect(CLOSE_OK)


def test_no_wait_requests_are_not_answered(client: OldClient, name: Name) -> None:
    queue = name()
    client.open()
    client.call(1, QUEUE_DECLARE, b"\0\0" + short(queue) + b"\x14" + long(b""))  # exclusive, no-wait
    client.publish("", queue, b"in")
    client.call(1, GET, b"\0\0" + short(queue) + b"\x01")
    client.expect(GET_OK)  # the first answer of all
    assert client.content() == b"in"


def test_failed_login_only_hangs_up(client: OldClient) -> None:
    client.socket.sendall(HEADER)
    client.expect(START)
    client.socket.sendall(client.greeting(password="wrong"))
    assert client.rest() == b""  # a client without the capability would not know what to do with a close


def test_no_cancel_is_sent_to_a_client_that_did_not_ask(
    client: OldClient, channel: BlockingChannel, name: Name
) -> None:
    queue = name()
    client.open()
    client.declare(queue, bits=0)
    client.call(1, CONSUME, b"\0\0" + short(queue) + short("old") + b"\0" + long(b""))
    client.expect(CONSUME_OK)
    channel.queue_delete(queue)
    client.declare(queue + ".next")
    client.call(1, GET, b"\0\0" + short(queue + ".next") + b"\x01")
    client.expect(GET_EMPTY)  # nothing came in between


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HT",
        b"AMQP\x01\x01\x00\x0a",
        b"AMQP\x00\x00\x09\x02",
        b"AMQP\x09\x00\x00\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
    ids=["http", "amqp-0-10", "amqp-0-9-2", "amqp-9-0-0", "tls"],
)
def test_wrong_protocol_header_is_answered_with_the_right_one(client: OldClient, header: bytes) -> None:
    client.socket.sendall(header)
    assert client.rest() == HEADER


def test_handshake_byte_by_byte(client: OldClient) -> None:
    for byte in HEADER:
        client.socket.sendall(bytes([byte]))
    client.expect(START)
    for byte in client.greeting():
        client.socket.sendall(bytes([byte]))
    client.expect(TUNE)


def test_everything_in_one_packet(client: OldClient, name: Name) -> None:
    queue = name()
    client.socket.sendall(
        HEADER
        + client.greeting()
        + client.method(0, TUNE_OK, struct.pack(">HIH", 100, 131072, 0))
        + client.method(0, OPEN, short("/") + short("") + b"\x00")
        + client.method(1, CHANNEL_OPEN, short(""))
        + client.method(1, QUEUE_DECLARE, b"\0\0" + short(queue) + b"\x04" + long(b""))
    )
    for which in (START, TUNE, OPEN_OK, CHANNEL_OPEN_OK, QUEUE_DECLARE_OK):
        client.expect(which)


def test_large_body_in_the_smallest_frames(client: OldClient, name: Name) -> None:
    queue, body = name(), bytes(range(256)) * 40
    client.open()
    client.declare(queue)
    client.call(1, PUBLISH, b"\0\0" + short("") + short(queue) + b"\0")
    client.socket.sendall(client.frame(CONTENT, 1, struct.pack(">HHQH", 60, 0, len(body), 0)))
    for start in range(0, len(body), 7):
        client.socket.sendall(client.frame(BODY, 1, body[start : start + 7]))
    client.call(1, GET, b"\0\0" + short(queue) + b"\x01")
    client.expect(GET_OK)
    assert client.content() == body
