"""A receiver that is handed each message once: an idempotency barrier right in front of the program.

Owns the ids of what the program has accepted, and knows which messages it still has in its hands. Deliveries come in;
those that the program has had already are answered in its name and go no further.
It must never judge a message without an id, and never remember what was not accepted.
Rule: an acknowledgement may be lost with a node or a connection, and then the node delivers again; only the receiver
knows that it was done (docs/guides/idempotency.md, "In front of a receiver").
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from weft._kernel import Delivery
from weft.client.links import Inlet
from weft.client.message import Message

ACCEPTED_MAX = 65_536
"""Ids that are remembered, the last ones: some seconds of a busy receiver, in a dozen megabytes."""


class OnceMessage(Message):
    """A message whose acceptance is remembered."""

    __slots__ = ("__weakref__", "_copies", "_ident", "_once")

    def __init__(self, delivery: Delivery, inlet: Inlet, once: Once, ident: Any) -> None:
        super().__init__(delivery, inlet)
        self._once = once
        self._ident = ident
        self._copies: tuple[Message, ...] = ()

    def accept(self) -> None:
        """It is done, and is not handed over again whatever becomes of this word."""
        if self._open:
            self._once.note(self._ident)
        super().accept()
        for copy in self._copies:
            copy.accept()

    def _settle(self, outcome: str, options: dict[str, Any]) -> None:
        super()._settle(outcome, options)
        for copy in self._copies:
            copy._settle(outcome, options)

    def adopt(self, delivery: Delivery) -> None:
        """It has come again while nobody has decided on it: the decision counts for both."""
        self._copies = (*self._copies, Message(delivery, self._inlet))


class Once:
    """What one receiver has accepted and what it has in its hands."""

    def __init__(self) -> None:
        self._accepted: dict[Any, None] = {}
        self._held: WeakValueDictionary[Any, OnceMessage] = WeakValueDictionary()
        self.repeated = 0
        """Messages that came again and were not handed over again."""

    def note(self, ident: Any) -> None:
        """A message was accepted."""
        if ident is not None:
            self._accepted[ident] = None
            if len(self._accepted) > ACCEPTED_MAX:
                del self._accepted[next(iter(self._accepted))]

    def admit(self, delivery: Delivery, inlet: Inlet) -> OnceMessage | None:
        """The message, unless the program has had it."""
        ident = _ident(delivery)
        message = OnceMessage(delivery, inlet, self, ident)
        if ident is None:
            return message
        held = self._held.get(ident)
        if ident in self._accepted:
            message.accept()
        elif held is not None and not held.is_settled:
            held.adopt(delivery)
        else:
            self._held[ident] = message
            return message
        self.repeated += 1
        return None


def _ident(delivery: Delivery) -> Any:
    """What names the message; None if nothing does."""
    try:
        return delivery.message_id
    except ValueError:  # a message that is none: the program has to see it, to reject it
        return None
