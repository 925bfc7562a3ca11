"""An AMQP 1.0 peer made of Qpid Proton's engine and a socket, one step at a time.

Owns the loop between the two: bytes in, bytes out, until a condition holds. Proton's own objects (Connection,
Session, Link, Delivery) go out unwrapped, so a test controls credit, settlement and sessions exactly and sees exactly
what the broker did. It must never answer for the test: no automatic credit, no automatic settlement. Rules: AMQP 1.0
parts 2 and 3; Proton's engine documentation.
"""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from proton import Collector, Connection, Delivery, Endpoint, Link, Message, Session, Transport

WAIT_S = 30.0
SETTLED, UNSETTLED, MIXED = Link.SND_SETTLED, Link.SND_UNSETTLED, Link.SND_MIXED
TRANSACTIONAL_STATE = 0x34


def data(body: bytes, **properties: Any) -> Message:
    """A message whose body is one data section; without `inferred` Proton would wrap the bytes in a value section."""
    return Message(body=body, inferred=True, **properties)


class Client10:
    """One connection. Every method that waits handles whatever arrives meanwhile."""

    def __init__(
        self,
        broker: Any,
        *,
        user: str | None = "guest",
        password: str = "guest",
        mechanisms: str = "PLAIN",
        container: str = "",
        hostname: str | None = None,
        frame_bytes_max: int = 0,
        idle_timeout_ms: int = 0,
        wait_open: bool = True,
    ) -> None:
        self.socket = socket.create_connection((broker.host, broker.port), WAIT_S)
        self.socket.setblocking(False)
        self.connection, self.transport, self.events = Connection(), Transport(), Collector()
        self.connection.collect(self.events)
        self.connection.container = container or f"client-{id(self)}-{time.monotonic_ns()}"
        self.connection.hostname = hostname or broker.host
        if user is not None:
            self.connection.user, self.connection.password = user, password
        if frame_bytes_max:
            self.transport.max_frame_size = frame_bytes_max
        if idle_timeout_ms:
            self.transport.idle_timeout = idle_timeout_ms / 1000
        sasl = self.transport.sasl()
        sasl.allow_insecure_mechs = True
        sasl.allowed_mechs(mechanisms)
        self.transport.bind(self.connection)
        self.connection.open()
        self._names = itertools.count(1)
        self.ended = False
        if wait_open:
            try:
                self.wait(lambda: bool(self.connection.state & Endpoint.REMOTE_ACTIVE))
            except BaseException:
                self.socket.close()
                raise

    def __enter__(self) -> Client10:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended and self.connection.state & Endpoint.LOCAL_ACTIVE:
            self.connection.close()
            self.wait(lambda: self.ended or bool(self.connection.state & Endpoint.REMOTE_CLOSED))
        self.socket.close()
        self.transport.unbind()

    def cut(self) -> None:
        """The wire breaks: no detach, no end, no close."""
        self.socket.close()
        self.ended = True

    # --- the loop ---

    def step(self, timeout_s: float) -> None:
        """Send what is to be sent; wait for bytes at most this long; let the engine have them."""
        self._write()
        if self.ended or not select.select([self.socket], [], [], timeout_s)[0]:
            self._discard_events()
            return
        try:
            data = self.socket.recv(max(self.transport.capacity(), 1))
        except ConnectionResetError:
            data = b""
        if data:
            self.transport.push(data)
        else:
            self.ended = True
            self.transport.close_tail()
        self._discard_events()
        self._write()

    def _write(self) -> None:
        while not self.ended and (pending := self.transport.pending()) > 0:
            try:
                self.transport.pop(self.socket.send(self.transport.peek(pending)))
            except BlockingIOError:
                readable, _, _ = select.select([self.socket], [self.socket], [], WAIT_S)
                if readable:
                    return
            except (ConnectionResetError, BrokenPipeError):
                self.ended = True

    def _discard_events(self) -> None:
        while self.events.peek() is not None:
            self.events.pop()

    def wait(self, met: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not met():
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"the expected event did not come; connection {self.connection.remote_condition}"
            assert not self.ended, f"the broker hung up; {self.connection.remote_condition} {self.transport.condition}"
            self.step(min(left_s, 0.2))

    def round_trip(self) -> None:
        """Open and end a session: whatever the broker sent before has arrived."""
        session = self.session()
        session.close()
        self.wait(lambda: bool(session.state & Endpoint.REMOTE_CLOSED))

    # --- sessions and links ---

    def session(self) -> Session:
        session = self.connection.session()
        session.open()
        self.wait(lambda: bool(session.state & Endpoint.REMOTE_ACTIVE))
        return session

    def sender(
        self,
        address: str | None,
        *,
        session: Session | None = None,
        mode: int = MIXED,
        prepare: Any = None,
        name: str = "",
    ) -> Any:
        """A sending link, attached and with whatever credit the broker gave."""
        link = (session or self.session()).sender(name or f"sender-{next(self._names)}")
        link.target.address = address
        link.snd_settle_mode = mode
        if prepare:
            prepare(link)
        return self._attached(link)

    def receiver(
        self,
        address: str | None,
        *,
        credit: int = 0,
        session: Session | None = None,
        mode: int = MIXED,
        prepare: Any = None,
        name: str = "",
    ) -> Any:
        link = (session or self.session()).receiver(name or f"receiver-{next(self._names)}")
        link.source.address = address
        link.snd_settle_mode = mode
        if prepare:
            prepare(link)
        self._attached(link)
        if credit:
            link.flow(credit)
        return link

    def _attached(self, link: Any) -> Any:
        link.open()
        answered = Endpoint.REMOTE_ACTIVE | Endpoint.REMOTE_CLOSED
        self.wait(lambda: bool(link.state & answered or link.session.state & Endpoint.REMOTE_CLOSED))
        assert not link.session.state & Endpoint.REMOTE_CLOSED, link.session.remote_condition
        return link

    def close_link(self, link: Any) -> None:
        link.close()
        self.wait(lambda: bool(link.state & Endpoint.REMOTE_CLOSED))
        link.free()

    def refused(self, link: Any) -> Any:
        """The broker must end this link: its reason."""
        self.wait(lambda: bool(link.state & Endpoint.REMOTE_CLOSED))
        return link.remote_condition

    # --- messages ---

    def start_send(
        self, link: Any, message: Message | bytes, *, settled: bool = False, transaction: Any = None
    ) -> Delivery:
        """Hand a message to the link; waits for credit, not for the outcome."""
        self.wait(lambda: link.credit > 0)
        delivery = link.delivery(f"tag-{next(self._names)}")
        if transaction is not None:
            delivery.local.data = [transaction]
            delivery.update(TRANSACTIONAL_STATE)
        link.send(message if isinstance(message, bytes) else message.encode())
        link.advance()
        if settled:
            delivery.settle()
        self.step(0)
        return delivery

    def send(self, link: Any, message: Message | bytes) -> Any:
        """Send and wait for the broker's outcome."""
        delivery = self.start_send(link, message)
        self.wait(lambda: delivery.settled)
        outcome = delivery.remote_state
        delivery.settle()
        return outcome

    def complete(self, link: Any) -> bool:
        return link.current is not None and link.current.readable and not link.current.partial

    def receive_raw(self, link: Any) -> tuple[Delivery, bytes]:
        """The next whole delivery and its bytes. Nothing is settled unless the sender already did."""
        data = b""
        while True:
            self.wait(lambda: link.current is not None and link.current.readable)
            delivery = link.current
            if delivery.pending:
                data += link.recv(delivery.pending) or b""
            if not delivery.partial:
                link.advance()
                return delivery, data
            self.step(0.2)

    def receive(self, link: Any) -> tuple[Delivery, Message]:
        delivery, data = self.receive_raw(link)
        message = Message()
        message.decode(data)
        if isinstance(message.body, memoryview):
            message.body = bytes(message.body)
        return delivery, message

    def take(self, link: Any, count: int) -> list[Any]:
        """The bodies of the next messages, each accepted."""
        bodies = []
        for _ in range(count):
            delivery, message = self.receive(link)
            self.settle(delivery, Delivery.ACCEPTED)
            bodies.append(message.body)
        return bodies

    def settle(self, delivery: Delivery, outcome: Any) -> None:
        delivery.update(outcome)
        delivery.settle()
        self.step(0)

    def empty(self, link: Any) -> bool:
        """Drain the link: true when the broker had nothing more to give."""
        link.drain(1)
        self.wait(lambda: self.complete(link) or link.credit == 0)
        return not self.complete(link)
