"""One reply address for a whole process, and the requests that wait at it.

Owns the receiving link of the replies and the table of what waits, by correlation. Replies come in on whichever
thread reads, in any order, late or twice, and go to the ticket that waits; a stray one is accepted and counted.
It must never make an address per request: making one costs more than the request.
Rule: the address has the client's own name, so it is the same after a reconnect, at this node or at another; the node
keeps replies for `KEEP_S` while nobody is connected.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from weft._kernel import Delivery
from weft.client.core import Core
from weft.client.dialect import Dialect
from weft.client.links import Inlet, too_late
from weft.client.message import Message
from weft.model.errors import ServiceError, Untrusted, WeftError

KEEP_S = 300
"""How long a node keeps the replies of a client that is gone: longer than any reconnect, shorter than a lifetime."""
WINDOW = 1_000
ERROR_HEADER = "weft-error"
"""The header of a reply that is an error: the name of the exception."""


class Replies(Inlet):
    """The replies of one client."""

    def __init__(self, core: Core, dialect: Dialect) -> None:
        options: dict[str, Any] = {"window": WINDOW}
        address: str | None = None
        if dialect.reply_topics:
            address, _ = dialect.subscribing(f"weft.reply.{core.container}")
        else:
            options["dynamic"] = True
        if dialect.keeps_replies:
            options["timeout_s"] = KEEP_S
        super().__init__(core, address)
        self.strays = 0
        self.unsigned: set[str] = set()
        """Requests that the node itself answers, which signs nothing."""
        self.on_message = self._on_replies
        self._waiting: dict[str, Any] = {}
        self._ids = itertools.count()
        # A client of the same name, before this one, may get late replies: they must not be taken for ours.
        self._token = os.urandom(4).hex()
        self.number = core.machine.attach_receiver("replies", address, **options)
        core.add(self)

    def expect(self, ticket: Any) -> str:
        """A request is about to be sent: the correlation under which its reply is known."""
        correlation = f"{self._token}{next(self._ids):x}"
        self._waiting[correlation] = ticket
        return correlation

    def forget(self, correlation: str) -> None:
        """Nobody waits for this reply any more."""
        self._waiting.pop(correlation, None)
        self.unsigned.discard(correlation)

    def _on_replies(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            return
        for delivery in deliveries:
            try:
                correlation, kind = delivery.correlation_id, delivery.headers.get(ERROR_HEADER)
                signer = None if correlation in self.unsigned else self.core.signer
                problem = None if signer is None else signer.problem(delivery)
            except ValueError:  # a message that is none
                self.strays += 1
                continue
            ticket = self._waiting.pop(correlation, None) if isinstance(correlation, str) else None
            if ticket is None:
                self.strays += 1
            elif problem is not None:
                ticket.fail(Untrusted(f"the reply {problem}"))
            elif kind is None:
                ticket.done(Message(delivery, self, is_open=False))
            else:
                ticket.fail(ServiceError(_text(delivery), str(kind)))
        # Last, so that what the program sends upon a reply can leave with it.
        self.core.machine.settle(self.number, deliveries[0].number, deliveries[-1].number)
        self.core.kick()

    def on_end(self, error: WeftError) -> None:
        super().on_end(error)
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting.values():
            ticket.fail(error)

    def expire(self, now: float, reason: WeftError | None) -> None:
        super().expire(now, reason)
        late = [(key, ticket) for key, ticket in list(self._waiting.items()) if ticket.deadline <= now]
        for key, ticket in late:
            if self._waiting.pop(key, None) is not None:
                ticket.fail(too_late("no reply came in time", reason))


def _text(delivery: Delivery) -> str:
    """A body as text, whatever it is: this runs on the connection's own loop, where nothing may fail."""
    try:
        body = delivery.body
    except ValueError:
        return ""
    return body.decode(errors="replace") if isinstance(body, bytes) else str(body)


class Asking:
    """The ticket of a request's own message: only its failure matters, since the reply says that it arrived."""

    __slots__ = ("_correlation", "_replies", "_ticket", "deadline", "left")

    def __init__(self, replies: Replies, correlation: str, ticket: Any) -> None:
        self._replies = replies
        self._correlation = correlation
        self._ticket = ticket
        self.deadline = ticket.deadline
        self.left = 1

    def done(self, value: Any = None) -> None:
        """The node has the request."""

    def fail(self, error: BaseException) -> None:
        """The node does not take the request."""
        self._replies.forget(self._correlation)
        self._ticket.fail(error)
