"""A small AMQP 1.0 client without a socket, on Proton's engine.

Owns one connection to a `Node`: Proton makes and reads the frames, this class carries the bytes. After each `sync` all
that the node had to say has been read. Deliveries are kept per receiver in the order they came.
It must never grant credit or settle by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cproton import pn_data_clear, pn_disposition_data
from proton import (
    Collector,
    Connection,
    Data,
    Delivery,
    Described,
    Link,
    Message,
    Session,
    Terminus,
    Transport,
    symbol,
    ulong,
)

from property.node import Node

TRANSACTIONAL = 0x34
FLOW = b"\x00\x53\x13"


class Peer10:
    """A connection, open after its making, without SASL."""

    def __init__(self, node: Node, *, frame_bytes_max: int | None = None) -> None:
        self.node = node
        self.conn = node.open()
        self.connection = Connection()
        self.connection.container = f"peer-{self.conn}"
        self.transport = Transport()
        if frame_bytes_max is not None:
            self.transport.max_frame_size = frame_bytes_max
        self.transport.bind(self.connection)
        self.collector = Collector()
        self.connection.collect(self.collector)
        self.received: dict[str, list[tuple[Delivery, bytes]]] = {}
        self.acquiring: dict[str, bytes] = {}
        """The transaction that a receiver's last flow has named, by its name."""
        self._partial: dict[str, bytes] = {}
        self._tags = 0
        self._flow_properties: Any = None
        self.connection.open()
        self.sync()
        assert self.connection.remote_condition is None, self.connection.remote_condition

    def sync(self) -> None:
        """Carry bytes both ways until neither side has any."""
        while True:
            sent = self._carry()
            data = bytes(self.node.output.pop(self.conn, b""))
            while data:
                room = self.transport.capacity()
                assert room > 0, self.transport.condition
                self.transport.push(data[:room])
                data = data[room:]
                self._read_events()
            if not sent and not data and self.conn not in self.node.output and self.transport.pending() <= 0:
                return

    def _carry(self) -> bool:
        pending = self.transport.pending()
        if pending <= 0:
            return False
        data = self.transport.peek(pending) or b""
        self.transport.pop(len(data))
        if self._flow_properties is not None:
            data = with_properties(data, self._flow_properties)
        self.node.receive(self.conn, data)
        return True

    def _read_events(self) -> None:
        while (event := self.collector.peek()) is not None:
            delivery = event.delivery
            if delivery is not None and delivery.readable and delivery.link.is_receiver:
                self._read_delivery(delivery)
            self.collector.pop()

    def _read_delivery(self, delivery: Delivery) -> None:
        link = delivery.link
        data = self._partial.pop(link.name, b"") + (link.recv(delivery.pending) or b"" if delivery.pending else b"")
        if delivery.partial:
            self._partial[link.name] = data
            return
        link.advance()
        self.received.setdefault(link.name, []).append((delivery, data))

    # links

    def session(self) -> Session:
        session = self.connection.session()
        session.open()
        self.sync()
        return session

    def sender(self, session: Session, name: str, address: str = "") -> Link:
        """Without an address each message says its own."""
        link = session.sender(name)
        link.target.address = address
        return self._attach(link)

    def receiver(self, session: Session, name: str, address: str) -> Link:
        link = session.receiver(name)
        link.source.address = address
        link.source.type = Terminus.SOURCE
        return self._attach(link)

    def _attach(self, link: Link) -> Link:
        link.open()
        self.sync()
        assert link.remote_condition is None, link.remote_condition
        return link

    def coordinator(self, name: str) -> Link:
        """A control link on a session of its own."""
        link = self.session().sender(name)
        link.target.type = Terminus.COORDINATOR
        return self._attach(link)

    def send(self, link: Link, data: bytes, transaction: bytes | None = None) -> Delivery:
        """Send an encoded message; its outcome is in the delivery's remote state."""
        self._tags += 1
        delivery = link.delivery(str(self._tags))
        if transaction is not None:
            delivery.local.data = [transaction]
            delivery.update(TRANSACTIONAL)
        link.send(data)
        link.advance()
        self.sync()
        return delivery

    def flow(self, link: Link, credit: int, transaction: bytes | None = None) -> None:
        """Give credit; with a transaction, what comes by it is acquired in that. Proton has no word for this, so its
        flow gets one on the way.
        """
        self.acquiring.pop(link.name, None)
        if transaction is not None:
            self.acquiring[link.name] = transaction
            self._flow_properties = {symbol("txn-id"): transaction}
        link.flow(credit)
        self.sync()
        self._flow_properties = None

    def decide_in(self, transaction: bytes, delivery: Delivery, outcome: Any) -> None:
        """An outcome that belongs to a transaction. Proton would append it to one that was told before."""
        pn_data_clear(pn_disposition_data(delivery.local._impl))
        delivery.local.data = [transaction, Described(ulong(int(outcome)), [])]
        delivery.update(TRANSACTIONAL)

    def settle(self, delivery: Delivery, state: Any) -> None:
        delivery.update(state)
        delivery.settle()
        self.sync()

    def take(self, link: Link) -> Iterator[tuple[Delivery, bytes]]:
        """What a receiver has got since the last time."""
        self.sync()
        return iter(self.received.pop(link.name, []))


def with_properties(data: bytes, properties: Any) -> bytes:
    """The same frames; those that are flows carry these properties."""
    out, at = b"", 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        head, body = data[at : at + 8], data[at + 8 : at + size]
        at += size
        if body.startswith(FLOW):
            fields = _object(body).value
            encoder = Data()
            encoder.put_object(Described(ulong(0x13), [*fields, *[None] * (10 - len(fields)), properties]))
            body = bytes(encoder.encode())
        out += (8 + len(body)).to_bytes(4) + head[4:] + body
    return out


def _object(encoded: bytes) -> Any:
    data = Data()
    data.decode(encoded)
    data.rewind()
    data.next()
    return data.get_object()


def decode(data: bytes) -> Any:
    """A message; its binaries are views into it."""
    message = Message()
    message.decode(data)
    return message
