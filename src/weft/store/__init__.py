"""The node's durable definitions: users, virtual hosts, permissions, policies, exchanges, queues,
bindings.

Owns one SQLite file in the data directory; `Store` is its only door and `records` are the values that pass through it.
Controllers read everything once at their birth and write each change before they answer the peer that asked for it.
Messages never come here, and nothing here decides anything.
Rule: what a finished transaction wrote survives a crash of the node, and after `Store.sync` a failure of power too.
"""

from weft.store.definitions import Store
from weft.store.records import (
    Binding,
    Exchange,
    Limit,
    Notes,
    Parameter,
    Permission,
    Queue,
    ResourcePolicy,
    TopicPermission,
    User,
)

__all__ = [
    "Binding",
    "Exchange",
    "Limit",
    "Notes",
    "Parameter",
    "Permission",
    "Queue",
    "ResourcePolicy",
    "Store",
    "TopicPermission",
    "User",
]
