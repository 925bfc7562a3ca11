"""A bare AMQP 1.0 peer: performatives in, performatives out, no opinion.

Owns a socket and nothing else, so that tests can send what a well-behaved library refuses to send, and hold back what
a library would send by itself. Values are encoded by Proton's `Data`, used as a codec only; frames are put together
here. It never answers by itself. The rules it lets tests probe are in AMQP 1.0 part 2.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, NamedTuple

from proton import Data, Described, ubyte, uint, ulong

TIMEOUT_S = 10.0
HEADER = b"AMQP\x00\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ACCEPTED = Described(ulong(0x24), [])


class Performative(NamedTuple):
    """One frame from the broker: what it is, its fields (those at the end may be missing), the bytes after it."""

    channel: int
    code: int
    fields: list[Any]
    payload: bytes

    def field(self, number: int) -> Any:
        return self.fields[number] if number < len(self.fields) else None


def encode(value: Any) -> bytes:
    data = Data()
    data.put_object(value)
    return bytes(data.encode())


def decode(data: Data) -> Any:
    """The value `data` stands at. Proton's own reading cannot have binary keys in maps, which unsettled maps have."""
    kind = data.type()
    if kind == Data.BINARY:
        return bytes(data.get_binary())
    if kind not in (Data.DESCRIBED, Data.LIST, Data.MAP):
        return data.get_object()
    data.enter()
    values = []
    while data.next():
        values.append(decode(data))
    data.exit()
    if kind == Data.DESCRIBED:
        return Described(*values)
    return values if kind == Data.LIST else dict(zip(values[::2], values[1::2], strict=True))


def frame(channel: int, body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, kind, channel) + body


def message(body: bytes) -> bytes:
    return encode(Described(ulong(0x75), body))


def condition(performative: Performative) -> str:
    """The error a detach, end or close carries."""
    error = performative.field(2 if performative.code == DETACH else 0)
    return str(error.value[0]) if error is not None else ""


class Raw10:
    """One socket, its unread bytes, and the few steps every test needs."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), TIMEOUT_S)
        self._unread = b""

    def __enter__(self) -> Raw10:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def perform(self, code: int, *fields: Any, channel: int = 0, payload: bytes = b"") -> None:
        self.send(frame(channel, encode(Described(ulong(code), list(fields))) + payload))

    def read_bytes(self, size: int) -> bytes:
        """Exactly `size` bytes, or fewer when the peer hangs up."""
        while len(self._unread) < size:
            with contextlib.suppress(ConnectionResetError):
                data = self.socket.recv(65536)
                if data:
                    self._unread += data
                    continue
            break
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def read(self) -> Performative | None:
        """The next performative, or None when the peer has hung up; empty frames do not count."""
        while True:
            head = self.read_bytes(8)
            if len(head) < 8:
                return None
            size, offset, _kind, channel = struct.unpack(">IBBH", head)
            body = self.read_bytes(size - 8)[4 * offset - 8 :]
            if not body:
                continue
            data = Data()
            used = data.decode(body)
            data.rewind()
            data.next()
            described = decode(data)
            return Performative(channel, int(described.descriptor), list(described.value), body[used:])

    def expect(self, code: int) -> Performative:
        """The next performative, which must be of this kind; flows in between do not count."""
        while True:
            got = self.read()
            assert got is not None, f"hung up, expected {code:#x}"
            if got.code == FLOW != code:
                continue
            assert got.code == code, got
            return got

    def open(self, **options: Any) -> Raw10:
        """Without SASL, as a peer on the same machine may."""
        self.send(HEADER)
        assert self.read_bytes(8) == HEADER
        self.perform(OPEN, options.get("container", "raw"), "localhost", uint(options.get("frame_bytes_max", 65536)))
        self.expect(OPEN)
        return self

    def begin(self, channel: int = 0, *, window: int = 1000) -> None:
        self.perform(BEGIN, None, uint(0), uint(window), uint(1000), channel=channel)
        self.expect(BEGIN)

    def attach(self, name: str, handle: int, address: str, *, sends: bool, **options: Any) -> Performative:
        """Attach as the sender or the receiver; `second` settles second, `unsettled` resumes."""
        source = Described(ulong(0x28), [None if sends else address])
        target = Described(ulong(0x29), [address if sends else None])
        fields = [name, uint(handle), not sends, ubyte(0), ubyte(1 if options.get("second") else 0), source, target]
        unsettled = options.get("unsettled") or None
        count = uint(0) if sends else None
        self.perform(ATTACH, *fields, unsettled, False, count, channel=options.get("channel", 0))
        return self.expect(ATTACH)

    def transfer(self, handle: int, number: int, payload: bytes, **options: Any) -> None:
        tag, settled, more = (
            options.get("tag", b"%d" % number),
            options.get("settled", False),
            options.get("more", False),
        )
        channel = options.get("channel", 0)
        self.perform(
            TRANSFER, uint(handle), uint(number), tag, uint(0), settled, more, channel=channel, payload=payload
        )

    def credit(self, handle: int, credit: int, *, window: int = 1000, next_id: int = 0, delivered: int = 0) -> None:
        session = [uint(next_id), uint(window), uint(0), uint(1000)]
        self.perform(FLOW, *session, uint(handle), uint(delivered), uint(credit))

    def detach(self, handle: int, *, closed: bool) -> None:
        self.perform(DETACH, uint(handle), closed)
        self.expect(DETACH)
