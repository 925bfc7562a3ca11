"""weft: a messaging node that speaks AMQP 0-9-1 and AMQP 1.0 on one port, as a program and inside a Python process.

Owns the public names. They are loaded at first use, so that `import weft` costs nothing to a program that only wants
the version.
It must never hold behaviour of its own.
Start at docs/start.md; the map of the source is in README.md.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
"""Type checkers know this name; `typing` itself would be most of what importing weft costs."""

if TYPE_CHECKING:
    from weft.client import Distributed, Fabric, connect, distributed
    from weft.container import Link, NodeType
    from weft.model.errors import (
        ConfigError,
        DeadlineExceeded,
        LocalProtocolError,
        Refused,
        ServiceError,
        Unavailable,
        Undelivered,
        Untrusted,
        WeftError,
    )
    from weft.model.limits import Limits
    from weft.node.local import Message, Receiver
    from weft.server import Node

__all__ = [
    "ConfigError",
    "DeadlineExceeded",
    "Distributed",
    "Fabric",
    "Limits",
    "Link",
    "LocalProtocolError",
    "Message",
    "Node",
    "NodeType",
    "Receiver",
    "Refused",
    "ServiceError",
    "Unavailable",
    "Undelivered",
    "Untrusted",
    "WeftError",
    "__version__",
    "connect",
    "distributed",
]

_HOMES = {
    "Distributed": "weft.client",
    "Fabric": "weft.client",
    "distributed": "weft.client",
    "connect": "weft.client",
    "Node": "weft.server",
    "Limits": "weft.model.limits",
    "Link": "weft.container",
    "NodeType": "weft.container",
    "Message": "weft.node.local",
    "Receiver": "weft.node.local",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES.get(name, "weft.model.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
