"""How a peer spells the address of a queue or an exchange.

Owns the few dialects there are. A peer's product, as its open frame names it, and a name come in; an AMQP 1.0 address
goes out, with the capabilities that say what it is.
It must not know links or routes.
Rule: RabbitMQ's first address format where it is known to be understood (weft, RabbitMQ), which tells queues from
exchanges; the plain name elsewhere (Artemis, qpidd, routers), where the capability `queue` or `topic` tells them apart:
Artemis makes what is missing, and a topic unless it is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

_WITH_FORMS = ("weft", "rabbitmq")


@dataclass(frozen=True, slots=True)
class Place:
    """An address at a peer, and what it is to be."""

    address: str
    capabilities: tuple[str, ...] = ()

    @property
    def is_topic(self) -> bool:
        """Is it one topic, or a pattern of topics, with no exchange around it?"""
        return "topic" in self.capabilities


def is_pattern(key: str) -> bool:
    """Does a key stand for several?"""
    return not {"*", "#"}.isdisjoint(key)


def queue_place(product: str, queue: str) -> Place:
    """A queue of the peer."""
    if product.lower() in _WITH_FORMS:
        return Place(f"/amq/queue/{quote(queue, safe='')}")
    return Place(queue, ("queue",))


def exchange_place(product: str, exchange: str, key: str | None) -> Place:
    """An exchange of the peer, with the key to publish or subscribe by; None leaves it to each message.

    Where there are no exchanges the key is a topic, and the exchange's name is one if there is no key.
    """
    if product.lower() in _WITH_FORMS:
        form = f"/exchange/{quote(exchange, safe='')}"
        return Place(form if key is None else f"{form}/{quote(key, safe='')}")
    return Place(key or exchange, ("topic",))
