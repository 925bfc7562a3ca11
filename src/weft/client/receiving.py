"""Receiving: messages one at a time, in an `async for`, each with its decision.

Owns a receiver's life and the messages it has taken from the connection and not yet handed over. Credit follows the
program: what it has not settled counts against the window. It must never decode a body: `Message` does, when asked.
Rule: with `accept="auto"` a message is accepted when the next one is asked for, so what fails in between comes again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic
from typing import Self

from weft._kernel import Delivery
from weft.client.links import Inlet
from weft.client.message import Message
from weft.client.tickets import Ticket
from weft.model.errors import DeadlineExceeded

TAKE_MAX = 256
"""Deliveries taken from the connection at once."""


class Receiver:
    """An asynchronous iterator of messages; leave it with `async with`, or simply drop it."""

    def __init__(self, inlet: Inlet, *, auto: bool, timeout_s: float | None = None) -> None:
        self._inlet = inlet
        self._auto = auto
        self._timeout_s = timeout_s
        self._taken: list[Delivery] = []
        self._last: Message | None = None

    @property
    def address(self) -> str | None:
        """Where the messages come from; for a temporary address, as the node named it."""
        return self._inlet.address

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        if self._auto and self._last is not None:
            self._last.accept()
            self._last = None
        taken = self._taken
        while not taken:
            fresh = self._inlet.take(TAKE_MAX)
            if fresh:
                fresh.reverse()
                self._taken = taken = fresh
            else:
                await self._wait()
        message = Message(taken.pop(), self._inlet)
        if self._auto:
            self._last = message
        return message

    async def next(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None if there is none within the time."""
        self._timeout_s, before = timeout_s, self._timeout_s
        try:
            return await self.__anext__()
        except DeadlineExceeded:
            return None
        finally:
            self._timeout_s = before

    async def _wait(self) -> None:
        timeout_s = self._timeout_s
        ticket = Ticket(float("inf") if timeout_s is None else monotonic() + timeout_s)
        self._inlet.when_filled(ticket)
        await ticket.wait()

    async def ready(self) -> Self:
        """Wait until the node has attached it; Refused if it does not."""
        ticket = Ticket()
        self._inlet.when_attached(ticket)
        await ticket.wait()
        return self

    def set_window(self, window: int) -> None:
        """Change how many messages may be under way and unsettled."""
        self._inlet.core.machine.set_window(self._inlet.number, window)
        self._inlet.core.kick()

    def grant(self, count: int) -> None:
        """Give credit by hand, on a receiver with window 0."""
        self._inlet.core.machine.grant(self._inlet.number, count)
        self._inlet.core.kick()

    async def drain(self) -> None:
        """Have the node send what it has, up to the credit, and give the rest of it back."""
        ticket = Ticket()
        self._inlet.drain(ticket)
        await ticket.wait()

    async def close(self, *, detach: bool = False) -> None:
        """Stop receiving; messages without a decision go back. `detach` keeps a durable subscription."""
        if self._auto and self._last is not None:
            self._last.accept()
            self._last = None
        ticket = Ticket(monotonic() + 5)
        self._inlet.close(ticket, closed=not detach)
        await ticket.wait()

    async def __aenter__(self) -> Self:
        return await self.ready()

    async def __aexit__(self, kind: object, *_exc: object) -> None:
        if kind is not None:
            self._last = None
        await self.close()

    def __del__(self) -> None:
        self._inlet.close()
