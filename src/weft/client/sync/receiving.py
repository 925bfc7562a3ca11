# Made by tools/unasync.py from the module of the same name one folder up: edit that, never this.
"""Receiving: messages one at a time, in an `for`, each with its decision.

Owns a receiver's life and the messages it has taken from the connection and not yet handed over. Credit follows the
program: what it has not settled counts against the window. It must never decode a body: `Message` does, when asked.
Rule: with `accept="auto"` a message is accepted when the next one is asked for, so what fails in between comes again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Self

from weft._kernel import Delivery
from weft.client.links import Inlet
from weft.client.message import Message
from weft.client.threads import Ticket
from weft.model.errors import DeadlineExceeded, LocalProtocolError

if TYPE_CHECKING:
    from weft.client.once import Once

LOG = logging.getLogger("weft.client")
READY_S = 30.0
DRAIN_S = 30.0
CLOSE_S = 5.0
TAKE_MAX = 256
"""Deliveries taken from the connection at once."""


class Receiver:
    """An iterator of messages; leave it with `with`, or simply drop it."""

    def __init__(
        self, inlet: Inlet, *, auto: bool, timeout_s: float | None = None, credit: int = 0, once: bool = False
    ) -> None:
        self._inlet = inlet
        self.credit = credit
        self._auto = auto
        self._timeout_s = timeout_s
        self._taken: list[Delivery] = []
        self._last: Message | None = None
        self._generation = inlet.generation
        self._is_waiting = False
        self._once: Once | None = None
        self._message: Callable[[Delivery, Inlet], Message | None] = Message
        if once:
            from weft.client.once import Once

            self._once = Once()
            self._message = self._once.admit
        self.refused = 0
        """Messages that were rejected because their signature is missing or wrong."""

    @property
    def repeated(self) -> int:
        """Messages that came again after they were accepted, and were not handed over again: with `once` alone."""
        return 0 if self._once is None else self._once.repeated

    @property
    def address(self) -> str | None:
        """Where the messages come from; for a temporary address, as the node named it."""
        return self._inlet.address

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if self._auto and self._last is not None:
            self._last.accept()
            self._last = None
        if self._generation != self._inlet.generation:
            # The connection they came by is lost, so the node sends them again: no need to see them twice.
            self._generation = self._inlet.generation
            self._taken = []
        message = self._message(self._next_taken(), self._inlet)
        while message is None or (problem := message.problem) is not None:
            if message is not None:
                LOG.warning("a message from %s was refused: it %s", self.address, problem)
                message.reject(f"the message {problem}")
                self.refused += 1
            message = self._message(self._next_taken(), self._inlet)
        if self._auto:
            self._last = message
        if self._inlet.is_stream and message.offset is not None:
            self._inlet.resume_at = message.offset + 1
        return message

    def _next_taken(self) -> Delivery:
        taken = self._taken
        while not taken:
            fresh = self._inlet.take(TAKE_MAX)
            if fresh:
                # The connection may be another than when the wait began: these are of the one there is now.
                self._generation = self._inlet.generation
                fresh.reverse()
                self._taken = taken = fresh
            else:
                self._wait()
        return taken.pop()

    def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None if there is none within the time."""
        self._timeout_s, before = timeout_s, self._timeout_s
        try:
            return self.__next__()
        except DeadlineExceeded:
            return None
        finally:
            self._timeout_s = before

    def _wait(self) -> None:
        if self._is_waiting:
            raise LocalProtocolError("somebody waits for this receiver's next message already: each needs its own")
        timeout_s = self._timeout_s
        ticket = Ticket(float("inf") if timeout_s is None else monotonic() + timeout_s)
        self._is_waiting = True
        try:
            self._inlet.when_filled(ticket)
            ticket.wait()
        finally:
            self._is_waiting = False

    def ready(self, timeout_s: float = READY_S) -> Self:
        """Wait until the node has attached it; Refused if it does not, DeadlineExceeded if there is no node."""
        ticket = Ticket(monotonic() + timeout_s)
        self._inlet.when_attached(ticket)
        ticket.wait()
        return self

    def set_window(self, window: int) -> None:
        """Change how many messages may be under way and unsettled."""
        self.credit = window
        self._inlet.core.machine.set_window(self._inlet.number, window)
        self._inlet.core.kick()

    def grant(self, count: int) -> None:
        """Give credit by hand, on a receiver with window 0."""
        self._inlet.core.machine.grant(self._inlet.number, count)
        self._inlet.core.kick()

    def drain(self) -> None:
        """Have the node send what it has, up to the credit, and give the rest of it back."""
        ticket = Ticket(monotonic() + DRAIN_S)
        self._inlet.drain(ticket)
        ticket.wait()

    def close(self, *, detach: bool = False) -> None:
        """Stop receiving; messages without a decision go back. `detach` keeps a durable subscription."""
        if self._auto and self._last is not None:
            self._last.accept()
            self._last = None
        ticket = Ticket(monotonic() + CLOSE_S)
        self._inlet.close(ticket, closed=not detach)
        ticket.wait()

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, kind: object, *_exc: object) -> None:
        if kind is not None:
            self._last = None
        self.close()

    def __del__(self) -> None:
        # The collector may call this anywhere, so it must not take a lock here.
        self._inlet.core.later(self._inlet.close)

    def digest(self, *, count: int = 100, interval_s: float = 1.0) -> Digests:
        """The same messages in lists, as a mailing list's digest: of at most `count`, at most `interval_s` old."""
        return Digests(self, count, interval_s)


class Digests:
    """An iterator of lists of messages; a list is accepted when the next one is asked for."""

    def __init__(self, receiver: Receiver, count: int, interval_s: float) -> None:
        if count > receiver.credit:
            receiver.set_window(count * 2)
        self._receiver = receiver
        self._count = count
        self._interval_s = interval_s
        self._accepts, receiver._auto = receiver._auto, False
        self._last: list[Message] = []

    def __iter__(self) -> Iterator[list[Message]]:
        return self

    def __next__(self) -> list[Message]:
        if self._accepts:
            for message in self._last:
                message.accept()
        batch = [self._receiver.__next__()]
        end = monotonic() + self._interval_s
        while len(batch) < self._count and (left_s := end - monotonic()) > 0:
            more = self._receiver.next(left_s)
            if more is None:
                break
            batch.append(more)
        self._last = batch
        return batch
