"""One reply address for a whole process, and the requests that wait at it.

Owns the receiving link of the replies and the table of what waits, by correlation. Replies come in on whichever
thread reads, in any order, late or twice, and go to the ticket that waits; a stray one is accepted and counted.
It must never make an address per request: making one costs more than the request.
Rule: the address has the client's own name, so it is the same after a reconnect, at this node or at another; the node
keeps replies for `KEEP_S` while nobody is connected. What was lost with a node all the same is asked for (`again`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from time import monotonic, time
from typing import Any

from weft._kernel import Delivery
from weft.client.again import WORD_HEADER, Again, question_topic
from weft.client.answers import REQUEST
from weft.client.core import Core
from weft.client.dialect import Dialect
from weft.client.links import Inlet, Outlet, too_late
from weft.client.message import Message
from weft.model.errors import ServiceError, Unavailable, Untrusted, WeftError

KEEP_S = 300
"""How long a node keeps the replies of a client that is gone: longer than any reconnect, shorter than a lifetime."""
WINDOW = 1_000
TTL_S_MAX = 4_000_000.0
"""A deadline further away does not fit into a message, and has it wait for ever."""
SURE_S = 5.0
"""How long after a reconnect requests count as those from before it: bindings take their time through a fabric."""
ERROR_HEADER = "weft-error"
"""The header of a reply that is an error: the name of the exception."""


class Asked:
    """A request that waits for its reply, with what it takes to ask it anew."""

    __slots__ = ("address", "connection", "data", "is_begun", "later", "properties", "ticket")

    def __init__(self, ticket: Any, address: str, data: Any, properties: dict[str, Any], connection: int) -> None:
        self.ticket = ticket
        self.address = address
        self.data = data
        self.properties = properties
        self.connection = connection
        """The connection by which it was asked, counted from the first."""
        self.is_begun = False
        """Has an instance said that it serves it?"""
        self.later: tuple[str, ...] = ()
        """The ids under which it was asked anew."""

    @property
    def topic(self) -> str:
        """Where the instances that may know it are asked."""
        return question_topic(self.address)

    @property
    def is_unknown(self) -> bool:
        """May it be asked anew, if nobody knows it? One whose id the program chose is the program's to ask again."""
        return not self.is_begun and "message_id" not in self.properties


class Replies(Inlet):
    """The replies of one client."""

    def __init__(self, core: Core, dialect: Dialect, outlet: Callable[..., Outlet]) -> None:
        """`outlet` gives the link to an address or a topic."""
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
        self.has_asked_services = False
        """Was anybody but the node asked?"""
        self.on_message = self._on_replies
        self._waiting: dict[str, Asked] = {}
        self._ids = itertools.count()
        # Nobody else's request has such an id: services know by it what they have served.
        self._token = f"{REQUEST}{os.urandom(8).hex()}."
        self._outlet = outlet
        self._again = Again(self, outlet)
        self._sure_at = 0.0
        self.number = core.machine.attach_receiver("replies", address, **options)
        core.add(self)

    def expect(self, ticket: Any, address: str, data: Any, properties: dict[str, Any], timeout_s: float) -> str:
        """A request is about to be sent: the correlation under which its reply is known."""
        correlation = f"{self._token}{next(self._ids):x}"
        properties["reply_to"] = self.address
        properties["correlation_id"] = correlation
        if timeout_s < TTL_S_MAX:
            properties["ttl_ms"] = max(1, int(timeout_s * 1000))
            properties["expires_at"] = time() + timeout_s
        if address.startswith("$"):
            self.unsigned.add(correlation)
        else:
            self.has_asked_services = True
        # Until the fabric knows where the client is now, a reply may be lost on its way to where it was.
        is_sure = self._sure_at <= (now := monotonic())
        self._waiting[correlation] = Asked(ticket, address, data, properties, self.core.connections - (not is_sure))
        if not is_sure:
            self._again.go_on(now)
        return correlation

    def forget(self, correlation: str) -> None:
        """Nobody waits for this reply any more."""
        asked = self._waiting.pop(correlation, None)
        self.unsigned.discard(correlation)
        if asked is not None:
            self._forget_later(asked)

    def _forget_later(self, asked: Asked) -> None:
        for key in asked.later:
            self._waiting.pop(key, None)

    # what was lost with a connection

    def on_attached(self, address: str | None, filters: Any) -> None:
        super().on_attached(address, filters)
        if self.core.connections > 1:
            self._sure_at = monotonic() + SURE_S
        if self._waiting:
            self._again.start(monotonic())

    def on_lost(self) -> None:
        super().on_lost()
        self._again.stop()

    def outstanding(self) -> list[tuple[str, Asked]]:
        """Requests that were asked by a connection that is gone."""
        now = self.core.connections
        waiting = list(self._waiting.items())
        return [(key, asked) for key, asked in waiting if asked.connection < now and key not in self.unsigned]

    def ask_anew(self, asked: Asked) -> None:
        """Ask a request that nobody knows once more, under another id."""
        properties = dict(asked.properties)
        outlet = self._outlet(asked.address, properties, is_topic=False)
        if outlet.is_full or asked.connection == self.core.connections:
            return
        left_s = asked.ticket.deadline - monotonic()
        key = self.expect(asked.ticket, asked.address, asked.data, properties, left_s)
        self._waiting[key] = asked
        asked.later += (key,)
        asked.connection = self.core.connections
        outlet.send((asked.data,), properties, Anew(asked), batchable=True)

    def _on_word(self, delivery: Delivery, topic: str) -> None:
        """An instance says what it knows of the requests it was asked about."""
        begun, gone = self._again.on_word(delivery, topic, monotonic())
        for key in begun:
            if (asked := self._waiting.get(key)) is not None:
                asked.is_begun = True
        for key in gone:
            if (asked := self._waiting.get(key)) is not None:
                self.forget(key)
                asked.ticket.fail(Unavailable(f"{asked.address} has answered, and the reply was lost on its way"))

    def _on_replies(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            return
        for delivery in deliveries:
            try:
                correlation, headers = delivery.correlation_id, delivery.headers
                signer = None if correlation in self.unsigned else self.core.signer
                problem = None if signer is None else signer.problem(delivery)
            except ValueError:  # a message that is none
                self.strays += 1
                continue
            asked = self._waiting.pop(correlation, None) if isinstance(correlation, str) else None
            if asked is None:
                if problem is None and WORD_HEADER in headers:
                    self._on_word(delivery, str(headers[WORD_HEADER]))
                else:
                    self.strays += 1
                continue
            if asked.later:
                self._forget_later(asked)
            if problem is not None:
                asked.ticket.fail(Untrusted(f"the reply {problem}"))
            elif ERROR_HEADER not in headers:
                asked.ticket.done(Message(delivery, self, is_open=False))
            else:
                asked.ticket.fail(ServiceError(_text(delivery), str(headers[ERROR_HEADER])))
        # Last, so that what the program sends upon a reply can leave with it.
        self.core.machine.settle(self.number, deliveries[0].number, deliveries[-1].number)
        self.core.kick()

    def on_end(self, error: WeftError) -> None:
        super().on_end(error)
        waiting, self._waiting = self._waiting, {}
        for asked in waiting.values():
            asked.ticket.fail(error)

    def expire(self, now: float, reason: WeftError | None) -> None:
        super().expire(now, reason)
        late = [(key, asked) for key, asked in list(self._waiting.items()) if asked.ticket.deadline <= now]
        for key, asked in late:
            if self._waiting.pop(key, None) is not None:
                asked.ticket.fail(too_late("no reply came in time", reason))
        self._again.tick(now)


def _text(delivery: Delivery) -> str:
    """A body as text, whatever it is: this runs on the connection's own loop, where nothing may fail."""
    try:
        body = delivery.body
    except ValueError:
        return ""
    return body.decode(errors="replace") if isinstance(body, bytes) else str(body)


class Anew:
    """The ticket of a request's message when it is asked anew: if the node does not take it, it is asked once more."""

    __slots__ = ("_asked", "deadline", "left")

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.deadline = asked.ticket.deadline
        self.left = 1

    def done(self, value: Any = None) -> None:
        """The node has the request."""

    def fail(self, _error: BaseException) -> None:
        """The node does not take the request, for now."""
        self._asked.connection = 0


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
