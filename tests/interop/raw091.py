"""A bare AMQP 0-9-1 peer: frames in, frames out, no opinion.

Owns a socket and nothing else, so that tests can send what a well-behaved library refuses to send and see the very
frame that comes back. Methods are pika's own `spec` objects, used as a codec only; bytes built by hand go through
`send`. It never answers by itself except where a test asks it to. The rules it lets tests probe are in AMQP 0-9-1
sections 2.2 (connection), 2.3 (framing) and 4.2 (wire format).
"""

from __future__ import annotations

import socket
import struct
from typing import Any, TypeVar

from pika import amqp_object, frame, spec

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
TIMEOUT_S = 10.0
CAPABILITIES = {
    "authentication_failure_close": True,
    "consumer_cancel_notify": True,
    "basic.nack": True,
    "connection.blocked": True,
}

M = TypeVar("M", bound=amqp_object.Method)


class RawConnection:
    """One socket, its unread bytes, and the few steps every test needs."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), TIMEOUT_S)
        self._unread = b""

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def call(self, channel: int, method: amqp_object.Method) -> None:
        self.send(frame.Method(channel, method).marshal())

    def publish(
        self, channel: int, method: spec.Basic.Publish, body: bytes, properties: spec.BasicProperties | None = None
    ) -> None:
        self.call(channel, method)
        self.send(frame.Header(channel, len(body), properties or spec.BasicProperties()).marshal())
        if body:
            self.send(frame.Body(channel, body).marshal())

    def read(self) -> Any:
        """The next frame, or None when the peer has closed the socket."""
        while True:
            used, value = frame.decode_frame(self._unread) if self._unread else (0, None)
            if value is not None:
                self._unread = self._unread[used:]
                return value
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._unread += data

    def read_bytes(self, size: int) -> bytes:
        """Exactly `size` bytes, or fewer when the peer closes."""
        while len(self._unread) < size:
            data = self.socket.recv(65536)
            if not data:
                break
            self._unread += data
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def expect(self, kind: type[M], channel: int | None = None) -> M:
        """The next method, which must be of this kind; heartbeats in between do not count."""
        while True:
            value = self.read()
            assert value is not None, f"socket closed, expected {kind.__name__}"
            if isinstance(value, frame.Heartbeat):
                continue
            assert isinstance(value, frame.Method), value
            assert isinstance(value.method, kind), value.method
            assert channel is None or value.channel_number == channel
            return value.method

    def start(self) -> spec.Connection.Start:
        self.send(PROTOCOL_HEADER)
        return self.expect(spec.Connection.Start, 0)

    def login(self, *, user: str = "guest", password: str = "guest", properties: dict[str, Any] | None = None) -> None:
        response = f"\0{user}\0{password}"
        client = {"capabilities": CAPABILITIES} if properties is None else properties
        self.call(
            0, spec.Connection.StartOk(client_properties=client, mechanism="PLAIN", response=response, locale="en_US")
        )

    def open(
        self, *, vhost: str = "/", channel_max: int = 2047, frame_bytes_max: int = 131072, heartbeat_s: int = 0
    ) -> RawConnection:
        """The whole handshake, as the specification draws it."""
        self.start()
        self.login()
        self.expect(spec.Connection.Tune, 0)
        self.call(0, spec.Connection.TuneOk(channel_max=channel_max, frame_max=frame_bytes_max, heartbeat=heartbeat_s))
        self.call(0, spec.Connection.Open(virtual_host=vhost))
        self.expect(spec.Connection.OpenOk, 0)
        return self

    def open_channel(self, number: int = 1) -> int:
        self.call(number, spec.Channel.Open())
        self.expect(spec.Channel.OpenOk, number)
        return number

    def closed_connection(self) -> spec.Connection.Close:
        """The broker must close the connection: answer as the specification asks, and see the socket end."""
        close = self.expect(spec.Connection.Close, 0)
        self.call(0, spec.Connection.CloseOk())
        while self.read() is not None:
            pass
        return close

    def closed_channel(self, number: int = 1) -> spec.Channel.Close:
        close = self.expect(spec.Channel.Close, number)
        self.call(number, spec.Channel.CloseOk())
        return close


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """A frame of any kind, right or wrong."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method_payload(class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return struct.pack(">HH", class_id, method_id) + arguments
