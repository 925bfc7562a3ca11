"""How a peer spells the address of a queue or an exchange.

Owns the few dialects there are. A peer's product, as its open frame names it, and a name come in; an AMQP 1.0 address
goes out.
It must not know links or routes.
Rule: RabbitMQ's first address format where it is known to be understood (weft, RabbitMQ), which tells queues from
exchanges; the plain name elsewhere (Artemis, qpidd, routers).
"""

from __future__ import annotations

from urllib.parse import quote

_WITH_FORMS = ("weft", "rabbitmq")


def queue_address(product: str, queue: str) -> str:
    """The address of a queue."""
    return f"/amq/queue/{quote(queue, safe='')}" if product.lower() in _WITH_FORMS else queue


def exchange_address(product: str, exchange: str, key: str | None) -> str:
    """The address of an exchange, with the key to publish or subscribe by; None leaves it to each message."""
    if product.lower() in _WITH_FORMS:
        place = f"/exchange/{quote(exchange, safe='')}"
        return place if key is None else f"{place}/{quote(key, safe='')}"
    return key or exchange
