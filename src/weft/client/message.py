"""A message as a program sees it: a body, properties, and the decision what becomes of it.

Owns the view of one delivery and the one decision on it. Sections are decoded when they are asked for.
It must never block: decisions are written by the connection's own thread, in ranges.
Rule: a message that nobody decided on goes back to its queue when its receiver ends or its connection is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft._kernel import Delivery
from weft.client.codecs import decode
from weft.client.links import Inlet

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID


class Message:
    """A message that was received."""

    __slots__ = ("_delivery", "_inlet", "_open")

    def __init__(self, delivery: Delivery, inlet: Inlet, *, is_open: bool = True) -> None:
        self._delivery = delivery
        self._inlet = inlet
        self._open = is_open and not delivery.settled

    # what it says

    @property
    def body(self) -> Any:
        """The body, decoded by its content type; `data` has it as it came."""
        delivery = self._delivery
        body = delivery.body
        if type(body) is bytes:
            content_type = delivery.content_type
            return body if content_type is None else decode(body, content_type)
        return body

    @property
    def data(self) -> Any:
        """The body as bytes; of a message that holds one AMQP value, the value."""
        return self._delivery.body

    @property
    def content_type(self) -> str | None:
        """What the body is."""
        return self._delivery.content_type

    @property
    def subject(self) -> str | None:
        """The topic it was published under."""
        return self._delivery.subject

    @property
    def message_id(self) -> str | bytes | int | UUID | None:
        """The sender's id for it."""
        return self._delivery.message_id

    @property
    def correlation_id(self) -> str | bytes | int | UUID | None:
        """The id of the message it belongs to."""
        return self._delivery.correlation_id

    @property
    def reply_to(self) -> str | None:
        """Where an answer goes."""
        return self._delivery.reply_to

    @property
    def headers(self) -> dict[str, Any]:
        """Application properties."""
        return self._delivery.headers

    @property
    def annotations(self) -> dict[str, Any]:
        """What nodes on its way noted."""
        return self._delivery.annotations

    @property
    def expires_at(self) -> datetime | None:
        """When it is of no use any more."""
        return self._delivery.expires_at

    @property
    def created_at(self) -> datetime | None:
        """When it was made, as its sender says."""
        return self._delivery.created_at

    @property
    def delivery_count(self) -> int:
        """How often it failed before."""
        return self._delivery.delivery_count

    @property
    def durable(self) -> bool:
        """Does it survive a restart of the node?"""
        return self._delivery.durable

    @property
    def priority(self) -> int:
        """Its priority; 4 is usual."""
        return self._delivery.priority

    @property
    def signed_by(self) -> str | None:
        """The id of the key that signed it; checked only by a client that has a signer."""
        key_id = self._delivery.footer.get("x-opt-weft-signed-by")
        return key_id if isinstance(key_id, str) else None

    @property
    def problem(self) -> str | None:
        """What is wrong with its signature; None if it is right, or if this client has no signer."""
        signer = self._inlet.core.signer
        return None if signer is None else signer.problem(self._delivery)

    @property
    def offset(self) -> int | None:
        """Its place in the stream it was read from."""
        offset = self._delivery.annotations.get("x-stream-offset")
        return offset if isinstance(offset, int) else None

    @property
    def delivery(self) -> Delivery:
        """Everything else the protocol has."""
        return self._delivery

    # what becomes of it

    @property
    def is_settled(self) -> bool:
        """Has it been decided on?"""
        return not self._open

    def accept(self) -> None:
        """It is done."""
        if self._open:
            self._open = False
            self._inlet.accept(self._delivery.number)

    def release(self) -> None:
        """Not me: give it back for anyone, as if nothing had been."""
        self._settle("released", {})

    def retry(self) -> None:
        """It failed: give it back and count the failure, so that a delivery limit ends it some time."""
        self._settle("modified", {"failed": True})

    def reject(self, reason: str = "") -> None:
        """It is wrong: to the dead letters with it."""
        self._settle("rejected", {"condition": "amqp:precondition-failed", "description": reason} if reason else {})

    def settle_in(self, txn: bytes, outcome: str = "accepted") -> None:
        """Decide as part of a transaction."""
        self._settle(outcome, {"txn": txn})

    def _settle(self, outcome: str, options: dict[str, Any]) -> None:
        if self._open:
            self._open = False
            number = self._delivery.number
            self._inlet.settle(number, number, outcome, options)

    def __repr__(self) -> str:
        return f"<Message {self._delivery.body!r:.60}>"
