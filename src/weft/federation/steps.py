"""What federation has done beside changes of the kernel: messages between nodes, and news for the node's other parts.

Owns these steps and the names of the queues that control messages wait in. Controllers make them; whoever runs the
controllers carries them out, in order.
It must decide nothing.
Rule: docs/reference/fabric.md, "What nodes say to each other".
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.federation.followers import Mirror
from weft.model.actions import Dial, Hangup
from weft.model.changes import Change

VHOST = "/"
"""Where this node's own control queues are."""
OUT = "weft.fabric.out."
"""Queue of control messages on their way to a peer, by link."""
FOR = "weft.fabric.for."
"""Queue of control messages that a neighbour fetches over its own link, by the neighbour's name."""
FOR_EXPIRES_MS = 60_000
CONTROL_CREDIT = 100
CONTROL_MESSAGES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Post:
    """Put a control message into a queue of this node."""

    vhost: str
    queue: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """A neighbour can be talked to from now on."""

    node: str


@dataclass(frozen=True, slots=True)
class Left:
    """A neighbour that this node has linked to cannot be talked to any more."""

    node: str


Step = Change | Dial | Hangup | Post | Joined | Left | Mirror
