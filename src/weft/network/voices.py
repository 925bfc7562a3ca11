"""Who may speak for other nodes: how far a control message is believed, by the connection that it came by.

Owns that judgement, and what it was for connections that have gone since. The number of a connection comes in; a
`Voice` goes out.
It must not read what is said.
Rule: a node that this one has dialled is believed, since an operator named it. Who dials this node needs the permission
to write to `$fabric`, by whatever way the message got there, and the tag `administrator` for what sets nodes up:
otherwise whoever may publish could make users. Messages whose publisher is not known are nobody's.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from weft.federation import control
from weft.management.host import PolicyLike

OPERATOR = "administrator"
GONE_MAX = 1_024
"""Connections whose last words may still wait: far more than go at once."""


class Voice(IntEnum):
    """How far somebody is believed."""

    NOBODY = 0
    NEIGHBOUR = 1
    """Tells of itself and of other nodes."""
    SETTER = 2
    """Tells nodes how they are to be set up, too."""


class Voices:
    """The voices of a node's connections."""

    def __init__(self, policy: PolicyLike, has_dialled: Callable[[int], bool]) -> None:
        self._policy = policy
        self._has_dialled = has_dialled
        self._heard: dict[int, Voice] = {}
        """The last judgements, the newest at the end."""

    def of(self, conn: int, vhost: str) -> Voice:
        """How far who publishes to `$fabric` of this virtual host by this connection is believed."""
        user = self._policy.user_of(conn)
        if self._has_dialled(conn):
            voice = Voice.SETTER
        elif user is None:
            return self._heard.get(conn, Voice.NOBODY)
        elif not self._policy.may(user, vhost, "write", control.ADDRESS):
            voice = Voice.NOBODY
        else:
            is_operator = any(OPERATOR in known.tags for known in self._policy.users() if known.name == user)
            voice = Voice.SETTER if is_operator else Voice.NEIGHBOUR
        self._heard.pop(conn, None)
        self._heard[conn] = voice
        if len(self._heard) > GONE_MAX:
            del self._heard[next(iter(self._heard))]
        return voice
