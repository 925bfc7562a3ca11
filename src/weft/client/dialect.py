"""How the peer wants to be spoken to: what differs between AMQP 1.0 brokers in addresses.

Owns the mapping of topics to addresses for the brokers this client knows, told apart by what they say when a connection
opens. A broker it does not know is taken to follow the specification alone.
It must never change an address that a program gave: those are sent as they are.
Rule: weft and RabbitMQ keep topics in the exchange `amq.topic`; others are told what an address is by the capability
`queue` or `topic`: Artemis makes an address that is missing a topic otherwise, and forgets what nobody subscribes to.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from weft.model.client_events import Opened
from weft.model.services import INSTANCE


class Dialect(NamedTuple):
    """What one broker understands."""

    name: str
    exchange: str | None
    """The address of the exchange for topics, whose key is the message's subject."""
    topic: str
    """The address of one topic, with a place for it."""
    is_quoted: bool
    capabilities: tuple[str, ...]
    """What says that an address is a topic."""
    queues: tuple[str, ...]
    """What says that an address is a queue."""
    has_relay: bool
    """May a sender without an address send to many?"""
    reply_topics: bool
    """Can replies be had by a topic of the client's own? Otherwise the broker makes an address."""
    keeps_replies: bool
    """Can a subscription outlive its connection by a time of the client's choice?"""
    serving: tuple[str, ...] = ()
    """Capabilities of a receiver that is an instance of a service, where the node keeps track of those."""

    def publishing(self, topic: str) -> tuple[str, str | None, tuple[str, ...]]:
        """(address, subject, capabilities) to publish under a topic."""
        if self.exchange is not None:
            return self.exchange, topic, ()
        return topic, topic, self.capabilities

    def subscribing(self, topic: str) -> tuple[str, tuple[str, ...]]:
        """(address, capabilities) to receive what is published under a topic or a pattern of topics."""
        return self.topic.format(quote(topic, safe="") if self.is_quoted else topic), self.capabilities


def dialect(peer: Opened) -> Dialect:
    """The dialect of the peer that answered."""
    product = str(peer.properties.get("product", "")).lower()
    version = str(peer.properties.get("version", ""))
    relay = "ANONYMOUS-RELAY" in peer.capabilities
    if product == "weft":
        return Dialect("weft", "/exchanges/amq.topic", "/topic/{}", True, (), (), relay, True, True, (INSTANCE,))
    if (
        product == "rabbitmq"
        and version.split(".", maxsplit=1)[0].isdigit()
        and int(version.split(".", maxsplit=1)[0]) < 4
    ):
        return Dialect("rabbitmq", "/exchange/amq.topic", "/topic/{}", False, (), (), False, True, False)
    if product == "rabbitmq":
        return Dialect("rabbitmq", "/exchanges/amq.topic", "/exchanges/amq.topic/{}", True, (), (), True, True, False)
    return Dialect(product or "amqp", None, "{}", False, ("topic",), ("queue",), relay, False, False)
