"""Links as a client's heart keeps them: what waits for an outcome, and who waits for a delivery.

Owns the tickets of messages on their way out and the bell of messages that came in. Any thread may send, settle and
ask; outcomes and deliveries are told on the thread that has read them, the program's or the connection's.
It must never know whether the program is asynchronous: tickets do.
Rule: a message counts against its link's window from `send` to its outcome, through any number of connections.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft._kernel import Delivery, EncodedMessages
from weft.model.errors import DeadlineExceeded, LocalProtocolError, Refused, Undelivered, WeftError

if TYPE_CHECKING:
    from weft.client.core import Core

WINDOW = 4_096
"""Messages of one link on their way before `send` waits: enough for a fast network and a slow disk."""

SELECTOR = "apache.org:selector-filter:string"
"""The filter that asks for a condition on headers."""
STREAM_OFFSET = "rabbitmq:stream-offset-spec"
"""The filter that says where in a stream a receiver begins."""


class Link:
    """What both directions have in common."""

    is_closing = False

    def __init__(self, core: Core, address: str | None) -> None:
        self.core = core
        self.address = address
        self.number = -1
        self.error: WeftError | None = None
        self.filters: Sequence[str] = ()
        self._attached: list[Any] = []
        self.is_ready = False
        """Is it attached now, by both sides?"""
        self._ended: list[Any] = []

    def when_attached(self, ticket: Any) -> None:
        """Have a ticket done once the link is attached, with the peer's address for it."""
        with self.core.lock:
            if self.error is None and not self.is_ready:
                self._attached.append(ticket)
                return
        if self.error is not None:
            ticket.fail(self.error)
        else:
            ticket.done(self.address)

    def on_attached(self, address: str | None, filters: Sequence[str]) -> None:
        """The peer has attached the link, for the first time or again."""
        with self.core.lock:
            self.address = address or self.address
            self.filters = filters
            self.is_ready = True
            waiting, self._attached = self._attached, []
        for ticket in waiting:
            ticket.done(self.address)

    def on_lost(self) -> None:
        """The connection is gone; the link comes back with the next."""
        self.is_ready = False

    def on_end(self, error: WeftError) -> None:
        """The link is gone for good."""
        with self.core.lock:
            self.error = self.error or error
            waiting, self._attached = self._attached, []
            ended, self._ended = self._ended, []
        for ticket in waiting:
            ticket.fail(error)
        for ticket in ended:
            ticket.done()

    def expire(self, now: float, reason: WeftError | None) -> None:
        """Fail what has passed its deadline."""
        with self.core.lock:
            late = [ticket for ticket in self._attached if ticket.deadline <= now]
            if late:
                self._attached = [ticket for ticket in self._attached if ticket.deadline > now]
            unanswered = [ticket for ticket in self._ended if ticket.deadline <= now]
            if unanswered:
                self._ended = [ticket for ticket in self._ended if ticket.deadline > now]
        for ticket in late:
            ticket.fail(too_late(f"{self.address} was not attached in time", reason))
        for ticket in unanswered:
            ticket.done()  # nobody waits for a goodbye that does not come

    def close(self, ticket: Any = None, *, closed: bool = True) -> None:
        """Detach; the ticket is done when the peer has answered or is gone."""
        with self.core.lock:
            is_over = self.error is not None or self.is_closing
            self.is_closing = True
            if ticket is not None and not is_over:
                self._ended.append(ticket)
        if is_over:
            if ticket is not None:
                ticket.done()
            return
        with contextlib.suppress(LocalProtocolError):  # it has just ended by itself
            self.core.machine.detach(self.number, closed=closed)
        self.core.look()


class Outlet(Link):
    """Messages on their way to one address."""

    def __init__(self, core: Core, address: str | None, window: int = WINDOW) -> None:
        super().__init__(core, address)
        self.window = window
        self.is_shared = False
        """Does each message say where it goes?"""
        self._pending: dict[int, Any] = {}
        self._queued: deque[Any] = deque()

    def send(
        self,
        bodies: Sequence[Any],
        properties: dict[str, Any] | None,
        ticket: Any,
        *,
        settled: bool = False,
        as_value: bool = False,
        txn: bytes | None = None,
        now: bool = False,
        batchable: bool = False,
    ) -> None:
        """Send a batch; the ticket is done when every message is accepted, and fails with the first that is not.

        With `batchable` nobody waits for that, so the node may tell it later, with something else.
        """
        core = self.core
        with core.lock:
            if self.error is not None:
                raise self.error
            sign = None if core.signer is None else core.signer.footer
            first = core.machine.send(self.number, bodies, properties, settled, as_value, True, txn, sign, batchable)
            if len(bodies) == 1 and not settled:
                self._pending[first] = ticket
            elif not settled:
                self._pending.update(dict.fromkeys(range(first, first + len(bodies)), ticket))
        core.kick(now=now)
        if settled:
            ticket.done()

    def send_encoded(self, messages: EncodedMessages, count_max: int, ticket: Any) -> int:
        """Send the next of some encoded messages, as many as the window has room for; how many that were."""
        core = self.core
        if core.signer is not None:
            raise LocalProtocolError("rows are not signed: send them with a client that has no signer")
        with core.lock:
            if self.error is not None:
                raise self.error
            count = min(count_max, len(messages), self.window - len(self._pending))
            if count <= 0:
                return 0
            first = core.machine.send_encoded(self.number, messages, count)
            self._pending.update(dict.fromkeys(range(first, first + count), ticket))
        core.kick()
        return count

    def control(self, ask: Callable[[int], int], ticket: Any) -> None:
        """Ask the coordinator behind this link; the ticket is done with its answer."""
        with self.core.lock:
            if self.error is not None:
                raise self.error
            self._pending[ask(self.number)] = ticket
        self.core.kick()

    @property
    def is_busy(self) -> bool:
        """Can it not be used as it is: gone, shared by many addresses, or full?"""
        return self.error is not None or self.is_shared or len(self._pending) >= self.window

    @property
    def is_full(self) -> bool:
        """Is the window used up?"""
        return len(self._pending) >= self.window

    def when_free(self, ticket: Any) -> None:
        """Have a ticket done when the window has room."""
        with self.core.lock:
            if self.is_full and self.error is None:
                self._queued.append(ticket)
                return
        ticket.done()

    def on_outcome(self, first: int, last: int, outcome: str, detail: Any) -> None:
        """Messages first to last have ended; the lock is held."""
        pop = self._pending.pop
        for number in range(first, last + 1):
            ticket = pop(number, None)
            if ticket is None:
                continue
            if outcome == "accepted":
                ticket.left -= 1
                if ticket.left <= 0:
                    ticket.done(outcome)
            elif outcome == "declared":
                ticket.done(detail)
            else:
                ticket.fail(_undelivered(self.address, outcome, detail))
        queued = self._queued
        room = self.window - len(self._pending)
        while queued and room > 0:
            queued.popleft().done()
            room -= 1

    def on_end(self, error: WeftError) -> None:
        super().on_end(error)
        with self.core.lock:
            pending, self._pending = self._pending, {}
            queued, self._queued = self._queued, deque()
        for ticket in {id(ticket): ticket for ticket in pending.values()}.values():
            ticket.fail(error)
        for ticket in queued:
            ticket.fail(error)

    def expire(self, now: float, reason: WeftError | None) -> None:
        super().expire(now, reason)
        with self.core.lock:
            late = [(number, ticket) for number, ticket in self._pending.items() if ticket.deadline <= now]
            for number, _ticket in late:
                del self._pending[number]
                self.core.machine.forget(self.number, number)
            queued = [ticket for ticket in self._queued if ticket.deadline <= now]
            if queued:
                self._queued = deque(ticket for ticket in self._queued if ticket.deadline > now)
        for _number, ticket in late:
            ticket.fail(too_late(f"no answer about a message to {self.address} came in time", reason))
        for ticket in queued:
            ticket.fail(too_late(f"the window of {self.address} stayed full", reason))


class Inlet(Link):
    """Messages that came from one address."""

    def __init__(self, core: Core, address: str | None) -> None:
        super().__init__(core, address)
        self._bell: Any = None
        self._drained: list[Any] = []
        self.generation = 0
        """Grows with each lost connection, whose deliveries come again."""
        self.is_stream = False
        self.resume_at: int | None = None
        """Of a stream: the offset to go on from after a lost connection."""
        self.on_message: Callable[[list[Delivery]], None] | None = None
        """Takes deliveries as they come, on the thread that has read them, in place of whoever would ask."""

    def on_attached(self, address: str | None, filters: Sequence[str]) -> None:
        if self.is_stream and STREAM_OFFSET not in filters:
            # A queue would give its messages away for good.
            self.on_end(Refused(f"{self.address} is not a stream", 406))
            self.core.machine.detach(self.number, closed=True)
            self.core.look()
            return
        super().on_attached(address, filters)

    def take(self, count_max: int) -> list[Delivery]:
        """Deliveries that are there."""
        return self.core.machine.poll_deliveries(self.number, count_max)

    def when_filled(self, ticket: Any) -> None:
        """Have a ticket done when there may be deliveries; only one waits at a time."""
        with self.core.lock:
            if self.error is None:
                load = self.core.machine.load(self.number)
                if load is not None and load[0] == 0:
                    self._bell = ticket
                    return
        if self.error is not None:
            ticket.fail(self.error)
        else:
            ticket.done()

    def settle(self, first: int, last: int, outcome: str, options: dict[str, Any]) -> None:
        """Decide on deliveries."""
        self.core.machine.settle(self.number, first, last, outcome, **options)
        self.core.kick()

    def accept(self, number: int) -> None:
        """Accept one delivery."""
        self.core.machine.settle(self.number, number, number)
        self.core.kick()

    def on_lost(self) -> None:
        super().on_lost()
        self.generation += 1
        if self.resume_at is not None:
            self.core.machine.set_filters(self.number, {STREAM_OFFSET: self.resume_at})

    def on_filled(self) -> None:
        """Deliveries came."""
        if self.on_message is not None:
            self.on_message(self.take(1024))
            return
        with self.core.lock:
            bell, self._bell = self._bell, None
        if bell is not None:
            bell.done()

    def drain(self, ticket: Any) -> None:
        """Have the peer send what it has, up to the credit; the ticket is done when it has."""
        with self.core.lock:
            self._drained.append(ticket)
        self.core.machine.drain(self.number)
        self.core.kick()

    def on_drained(self) -> None:
        """The peer has given the credit back."""
        with self.core.lock:
            drained, self._drained = self._drained, []
        for ticket in drained:
            ticket.done()

    def on_end(self, error: WeftError) -> None:
        super().on_end(error)
        with self.core.lock:
            bell, self._bell = self._bell, None
            drained, self._drained = self._drained, []
        for ticket in [*drained, *([bell] if bell is not None else [])]:
            ticket.fail(error)

    def expire(self, now: float, reason: WeftError | None) -> None:
        super().expire(now, reason)
        with self.core.lock:
            late = [ticket for ticket in self._drained if ticket.deadline <= now]
            self._drained = [ticket for ticket in self._drained if ticket.deadline > now]
        for ticket in late:
            ticket.fail(too_late(f"{self.address} was not drained in time", reason))
        bell = self._bell
        if bell is not None and bell.deadline <= now:
            self._bell = None
            bell.fail(too_late(f"nothing came from {self.address} in time", reason))


def _undelivered(address: str | None, outcome: str, detail: Any) -> Undelivered:
    where = address or "the peer"
    condition, description = detail if outcome in ("rejected", "lost") else ("", "")
    match outcome:
        case "released":
            text = f"nobody took a message to {where}: no queue is behind the address"
        case "rejected":
            text = f"{where} rejected a message: {description or condition or 'no reason given'}"
        case "lost":
            text = f"the outcome of a message to {where} is lost: {description or condition or 'the link ended'}"
        case "modified":
            text = f"{where} could not take a message now"
        case _:
            text = f"{where} settled a message and did not say how"
    return Undelivered(text, outcome, condition)


def too_late(text: str, reason: WeftError | None) -> DeadlineExceeded:
    """Why a deadline passed; `reason` is what is wrong with the connection, if anything."""
    return DeadlineExceeded(f"{text} ({reason})" if reason is not None else text)
