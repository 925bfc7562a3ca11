"""How services and what routes need are named: words that every node agrees on.

Owns the names only. A service's name comes in, names of its parts go out.
Nothing here may import the rest of weft or hold behaviour.
Rule: the names of the talk: clients publish to the gateway's name of a service, never to its implementation.
"""

from __future__ import annotations

SCHEME = "service://"
"""Addresses of AMQP 1.0 clients: a receiver from service://NAME serves, a sender to it calls."""
BRIDGE_ARGUMENT = "x-weft-bridge"
"""Argument of a queue that serves one route to another node: that node's name."""
ARGUMENT = "x-weft-service"
"""Argument of a queue from which a service takes its requests: the service's name."""
INSTANCE = "weft:service"
"""Capability of a receiver's source: it is an instance of a service, and present while it is attached."""
GATEWAY_EXCHANGE = "service_gateway.direct"
IMPL_EXCHANGE = "service_impl.direct"
REPLY_EXCHANGE = "service_res.direct"


def presence_topic(name: str, verb: str = "is") -> str:
    """The topic under which the instances of a service are announced, or are asked to say that they are there."""
    return f"weft.presence.{verb}.{name.removeprefix(SCHEME).replace('/', '.').strip('.')}"


def request_name(service: str) -> str:
    """The key of requests to a service, and their queue at a gateway."""
    return f"{service}.request"


def impl_name(service: str) -> str:
    """The queue from which a service takes its requests."""
    return f"{service}.request.impl"
