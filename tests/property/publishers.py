"""Publishers of both protocols, and what they have not been told yet: a part of the machine.

Owns one confirming channel and one sending link to a `Node`. Messages of the model go out; answers come back by the
numbers of their messages, in the words of the model, however the node grouped them. It knows no model.
"""

from __future__ import annotations

from typing import Any

from pamqp import commands
from proton import Delivery, Message

from property.model import Message as Letter
from property.node import Node
from property.peer091 import Peer091
from property.peer10 import Peer10
from property.receipts import Answer

ACK: frozenset[Answer] = frozenset({"accepted", "unroutable"})
STATES: dict[Answer, Any] = {
    "accepted": Delivery.ACCEPTED,
    "unroutable": Delivery.RELEASED,
    "released": Delivery.RELEASED,
    "modified": Delivery.MODIFIED,
    "rejected": Delivery.REJECTED,
}


class Publishers:
    """Both of them."""

    def __init__(self, node: Node, control: Peer091) -> None:
        self.control = control
        self.channel = control.open_channel(confirm=True)
        self.sending = Peer10(node)
        self.link = self.sending.sender(self.sending.session(), "sender")
        self.tags: dict[int, int] = {}
        """Numbers of messages that are not confirmed, by tag."""
        self.deliveries: dict[int, Delivery] = {}
        """What has no outcome yet, by number."""
        self._published = 0

    def publish_091(self, exchange: str, sent: Letter, mandatory: bool) -> list[bytes]:
        """Publish; the bodies that were returned."""
        properties: dict[str, Any] = {"headers": dict(sent.headers), "priority": sent.priority}
        if sent.ttl_ms is not None:
            properties["expiration"] = str(sent.ttl_ms)
        if sent.id is not None:
            properties["message_id"] = sent.id
        body = str(sent.number).encode()
        self._published += 1
        self.tags[self._published] = sent.number
        self.control.publish(self.channel, exchange, sent.key, body, mandatory=mandatory, **properties)
        return [one.body for one in self.control.take(self.channel, commands.Basic.Return)]

    def publish_10(self, exchange: str, sent: Letter) -> None:
        self.deliveries[sent.number] = self.sending.send(self.link, encoded(exchange, sent))

    def check(self, expected: dict[int, Answer]) -> None:
        """What was told since the last time is this, and no more."""
        self.control.read()
        confirmed: dict[int, bool] = {}
        for answer in self.control.take(self.channel, commands.Basic.Ack | commands.Basic.Nack):
            last = answer.delivery_tag
            told = [tag for tag in self.tags if tag <= last] if answer.multiple else [last]
            confirmed |= {self.tags.pop(tag): isinstance(answer, commands.Basic.Ack) for tag in told}
        self.sending.sync()
        settled = {number: one for number, one in self.deliveries.items() if one.settled}
        assert confirmed.keys() | settled.keys() == expected.keys()
        for number, is_ack in confirmed.items():
            assert is_ack == (expected[number] in ACK), number
        for number, delivery in settled.items():
            assert delivery.remote_state == STATES[expected[number]], number
            self.deliveries.pop(number).settle()

    @property
    def waiting(self) -> set[int]:
        """Numbers of messages that nobody has answered for."""
        return {*self.tags.values(), *self.deliveries}


def encoded(exchange: str, sent: Letter) -> bytes:
    """A message of 1.0 that says where it goes."""
    address = f"/exchanges/{exchange}/{sent.key}" if exchange else f"/queues/{sent.key}"
    message = Message(str(sent.number).encode(), address=address, properties=dict(sent.headers))
    message.inferred = True
    message.priority = sent.priority
    if sent.id is not None:
        message.id = sent.id
    if sent.ttl_ms is not None:
        message.ttl = sent.ttl_ms / 1000
    data: bytes = message.encode()
    return data
