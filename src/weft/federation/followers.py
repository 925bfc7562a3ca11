"""Dynamic routes from a RabbitMQ: a queue there, bound as the bindings here ask.

Owns which routes follow bindings so, and which of them are to be looked at again. Bindings, links that come and go and
answers come in; `Mirror` steps go out, each with the whole set of keys.
It must not speak to a broker: whoever carries out a `Mirror` compares and mends.
Rule: docs/decisions/0010, "verified, not assumed"; the peer cannot be taught our control messages, so its management
takes their place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from weft.federation.bridges import PREFIX
from weft.federation.control import NO_ARGUMENTS
from weft.federation.reach import Key
from weft.federation.records import Peer, Route

VERIFY_NS = 15_000_000_000
"""How often a route is compared with its source: as often as with a node of ours."""
RETRY_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Mirror:
    """Have a queue at a RabbitMQ bound to an exchange there by exactly these keys, or be gone;
    `Federation.on_mirrored` is told.
    """

    route: str
    management: str
    peer: Peer
    queue: str
    exchange: str
    keys: tuple[str, ...]
    durable: bool
    expires_ms: int
    is_over: bool = False


@dataclass(slots=True)
class _Follower:
    route: Route
    due_ns: int = 0
    cause: str = "comparing bindings"


class Followers:
    """The routes that follow bindings by a peer's management."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._followers: dict[str, _Follower] = {}

    def __contains__(self, route: str) -> bool:
        return route in self._followers

    def queue(self, route: Route) -> str:
        """The queue at the source: a name that a RabbitMQ 3 finds again in an address, which it does not unescape."""
        return f"{PREFIX}{self._node}.{hashlib.sha256(route.name.encode()).hexdigest()[:16]}"

    def cause(self, route: str) -> str:
        """What became of its last comparison."""
        return self._followers[route].cause

    def add(self, route: Route) -> None:
        """Its link is up."""
        self._followers[route.name] = _Follower(route)

    def drop(self, route: str) -> bool:
        """It is over; did it follow?"""
        return self._followers.pop(route, None) is not None

    def drop_link(self, link: str) -> None:
        """A link is gone."""
        for name in [name for name, follower in self._followers.items() if follower.route.link == link]:
            self.drop(name)

    def mark(self, vhost: str | None = None, exchange: str | None = None) -> None:
        """Keys of an exchange may have changed, or of any."""
        for follower in self._followers.values():
            route = follower.route
            if vhost is None or (route.vhost, route.exchange) == (vhost, exchange):
                follower.due_ns = 0

    @property
    def is_dirty(self) -> bool:
        """Is one to be looked at now?"""
        return any(follower.due_ns == 0 for follower in self._followers.values())

    def take_due(self, now_ns: int) -> list[Route]:
        """Routes to compare now."""
        due = [follower for follower in self._followers.values() if follower.due_ns <= now_ns]
        for follower in due:
            follower.due_ns = now_ns + VERIFY_NS
        return [follower.route for follower in due]

    def told(self, route: str, cause: str, is_good: bool, now_ns: int) -> Route | None:
        """A comparison is done, or could not be; the route, if messages may flow."""
        follower = self._followers.get(route)
        if follower is None:
            return None
        follower.cause = cause
        if not is_good:
            follower.due_ns = now_ns + RETRY_NS
        return follower.route if is_good else None

    def mirror(self, route: Route, management: str, peer: Peer, keys: list[Key], *, is_over: bool = False) -> Mirror:
        """What the source is to have for a route."""
        plain = tuple(key for key, arguments in keys if arguments == NO_ARGUMENTS)
        place = (self.queue(route), route.from_exchange, plain, route.durable, route.expires_ms)
        return Mirror(route.name, management, peer, *place, is_over=is_over)
