"""Definitions as values: what a user, a permission, a policy, an exchange, a queue and a binding are.

Owns the frozen classes that the store keeps and that policy and broker think in.
They come out of the database at start and are replaced, never changed, while the node runs.
They hold no behaviour beyond naming themselves, and know neither SQL nor the kernel.
The vocabulary is AMQP 0-9-1's (sections 1.6 and 1.7 of the specification) with RabbitMQ's additions.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Literal

from weft.model.events import Table
from weft.store.tables import encode_table

Kind = Literal["queue", "exchange"]
NUMBER_BITS = 62
"""Random numbers of this size do not meet: a billion queues ever made meet with a chance of one in ten."""


def _make_number() -> int:
    return secrets.randbits(NUMBER_BITS) + 1


@dataclass(frozen=True, slots=True)
class User:
    """Someone who may enter; without a password hash only by EXTERNAL."""

    name: str
    password_hash: str | None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notes:
    """What operators say of a virtual host."""

    description: str = ""
    tags: tuple[str, ...] = ()
    queue_type: str | None = None
    """The type of queues that are declared without one."""


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do in a virtual host: three patterns over names."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """Which routing keys a user may use with a topic exchange: two patterns."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that is kept for whoever asks for it; one of the node has neither component nor virtual host."""

    component: str
    vhost: str
    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Limit:
    """How much of something a user or a virtual host may have."""

    kind: Literal["user", "vhost"]
    name: str
    what: str
    value: int


@dataclass(frozen=True, slots=True)
class ResourcePolicy:
    """Settings for every queue and exchange of a virtual host whose name matches."""

    vhost: str
    name: str
    pattern: str
    definition: Table
    apply_to: str = "all"
    priority: int = 0
    operator: bool = False
    """Set by whoever runs the node: it bounds what others set, and is not replaced by it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange as it was declared."""

    vhost: str
    name: str
    type: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = field(default_factory=dict)
    number: int = field(default_factory=_make_number, compare=False)
    """Names what its barrier remembers in the journal; never used for another exchange."""

    def __str__(self) -> str:
        return f"exchange '{self.name}' in vhost '{self.vhost}'"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as it was declared; one with a holder is never stored."""

    vhost: str
    name: str
    durable: bool = False
    auto_delete: bool = False
    holder: int | None = None
    """The connection this queue dies with."""
    exclusive: bool = False
    """Only its holder may use it."""
    lifetime: str = ""
    """Lifetime policy of an AMQP 1.0 dynamic node."""
    subscription: bool = False
    """Made for an AMQP 1.0 link that receives from an exchange."""
    arguments: Table = field(default_factory=dict)
    number: int = field(default_factory=_make_number, compare=False)
    """Names its messages in the journal; never used for another queue."""

    def __str__(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost}'"


@dataclass(frozen=True, slots=True)
class Binding:
    """bind(source, topic, target)."""

    vhost: str
    source: str
    kind: Kind
    destination: str
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, Kind, str, str, str]:
        """Two bindings of one virtual host with the same identity are the same binding."""
        return self.source, self.kind, self.destination, self.routing_key, encode_table(self.arguments)
