"""Both halves of all routes whose keys are told: what a node asks others for, and what others ask of it.

Owns the keys of every exchange concerned (`reach`), the announcers of this node's routes and of those that others
invited it to, and the bridge queues. Bindings and control messages come in; changes, and messages for named nodes, go
out.
It must not know links: nodes are spoken to by name.
Rule: docs/decisions/0010. A pulled route is announced by whoever made it; to a pushed one its source invites the
destination, which then announces in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weft.federation import control
from weft.federation.announce import Announcer
from weft.federation.bridges import PREFIX, Bridges, Reply
from weft.federation.control import NO_ARGUMENTS, Said
from weft.federation.desk import Desk
from weft.federation.reach import Key, Reach
from weft.federation.records import Route
from weft.model.changes import Change
from weft.model.errors import ConfigError

INVITED_MAX = 65_536

Told = tuple[str, bytes]
"""A control message for a node."""


@dataclass(slots=True)
class Outcome:
    """Changes to make, then messages to send."""

    changes: list[Change] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)


class Reflections:
    """The dynamic routes of one node."""

    def __init__(self, node: str, desk: Desk, epoch: int) -> None:
        self._node = node
        self._desk = desk
        self._epoch = epoch
        self._own: dict[str, Announcer] = {}
        self._invited: dict[tuple[str, str], Announcer] = {}
        self._reaches: dict[tuple[str, str], Reach] = {}
        self.bridges = Bridges(node, desk, self.reach)

    # this node's own pulled routes

    def add(self, route: Route) -> None:
        """A route that this node pulls by: a static one wants its key, whatever is bound here."""
        if route.kind == "static":
            reach = Reach(self._node)
            reach.bind((route.key, NO_ARGUMENTS))
        else:
            reach = self.reach(route.vhost, route.exchange)
        self._own[route.name] = Announcer(self._node, route, reach, self._epoch)

    def get(self, route: str) -> Announcer | None:
        """The announcer of a route of this node."""
        return self._own.get(route)

    def remove(self, route: str) -> list[Told]:
        """The route is over."""
        announcer = self._own.pop(route, None)
        return [] if announcer is None else self._to(announcer, announcer.withdraw())

    def start(self, route: str, source: str, now_ns: int) -> list[Told]:
        """The source of a route can be talked to: tell it everything."""
        announcer = self._own[route]
        bodies = announcer.start(source, now_ns)
        return self._to(announcer, bodies)

    def stop(self, link: str, cause: str) -> None:
        """The link under some routes is gone."""
        for announcer in self._own.values():
            if announcer.route.link == link:
                announcer.stop(cause)

    # bindings, time

    def on_binding(self, vhost: str, exchange: str, destination: str, key: Key, is_bound: bool) -> None:
        """A binding was made or undone at this node."""
        reach = self._reaches.get((vhost, exchange))
        if reach is None or destination.startswith(PREFIX):
            return
        if reach.bind(key) if is_bound else reach.unbind(key):
            self._mark(vhost, exchange, [key])

    def flush(self, *, only_new: bool = False) -> list[Told]:
        """What has changed for sources; `only_new` leaves out keys that they know."""
        return [told for each in self._announcers() for told in self._to(each, each.flush(only_new=only_new))]

    @property
    def is_dirty(self) -> bool:
        """Is there something to flush?"""
        return any(announcer.is_dirty for announcer in self._announcers())

    def verify(self, now_ns: int) -> list[Told]:
        """Comparisons that are due."""
        return [told for announcer in self._announcers() for told in self._to(announcer, announcer.verify(now_ns))]

    # control messages

    def on_reflect(self, vhost: str, said: Said) -> Outcome:
        """A destination tells what it wants."""
        return self._done(vhost, said, self.bridges.on_reflect(vhost, said))

    def on_verify(self, vhost: str, said: Said) -> Outcome:
        """A destination asks for a comparison."""
        return self._done(vhost, said, self.bridges.on_verify(vhost, said))

    def on_leave(self, vhost: str, said: Said) -> tuple[Outcome, bytes | None]:
        """A destination has moved; what to do, and the answer, which is for a visitor rather than a neighbour."""
        reply = self.bridges.on_leave(vhost, said)
        answer, reply.answer = reply.answer, None
        return self._done(vhost, said, reply), answer

    def on_withdraw(self, vhost: str, said: Said) -> Outcome:
        """A destination wants nothing more."""
        return self._done(vhost, said, self.bridges.on_withdraw(vhost, said))

    def on_invite(self, vhost: str, said: Said, now_ns: int) -> list[Told]:
        """A source offers what this node's bindings ask for."""
        name, exchange = said.text("route"), said.text("exchange")
        if self._desk.exchange_type(vhost, exchange) is None:
            text = f"no exchange '{exchange}' in vhost '{vhost}'"
            return [(said.node, control.encode("refused", self._node, route=name, invited=True, text=text))]
        if len(self._invited) >= INVITED_MAX:
            return []
        try:
            route = Route(
                name,
                said.node,
                "dynamic",
                exchange,
                source_exchange=said.text("source_exchange"),
                vhost=vhost,
                durable=said.flag("durable"),
                expires_ms=said.number("expires_ms"),
                relay="complete" if said.text("relay", "ring") == "complete" else "ring",
            )
        except ConfigError:
            return []  # only a peer with other rules can have sent this
        announcer = Announcer(self._node, route, self.reach(vhost, exchange), self._epoch, is_invited=True)
        self._invited[said.node, name] = announcer
        return self._to(announcer, announcer.start(said.node, now_ns))

    def on_uninvite(self, said: Said) -> None:
        """A source takes its offer back."""
        self._invited.pop((said.node, said.text("route")), None)

    def on_answer(self, said: Said, now_ns: int) -> list[Told]:
        """A source answers an announcement."""
        name = said.text("route")
        announcer = self._invited.get((said.node, name)) if said.flag("invited") else self._own.get(name)
        if announcer is None:
            return []
        if said.op == "refused":
            return self._to(announcer, announcer.on_refused(said, now_ns))
        announcer.on_reflected(said)
        return []

    # keys

    def reach(self, vhost: str, exchange: str) -> Reach:
        """The keys of an exchange; at first from what is bound now."""
        reach = self._reaches.get((vhost, exchange))
        if reach is None:
            reach = self._reaches[vhost, exchange] = Reach(self._node)
            for kind, destination, key in self._desk.keys_of_exchange(vhost, exchange):
                if kind == "exchange" or not destination.startswith(PREFIX):
                    reach.bind(key)
            for queue, keys in self.bridges.recall(vhost, exchange).items():
                reach.learn(queue, keys, ())
        return reach

    def _done(self, vhost: str, said: Said, reply: Reply) -> Outcome:
        told = [] if reply.answer is None else [(said.node, reply.answer)]
        if reply.touched:
            self._mark(vhost, said.text("exchange"), reply.touched)
        return Outcome(reply.changes, [*told, *self.flush(only_new=True)])

    def _mark(self, vhost: str, exchange: str, keys: Sequence[Key]) -> None:
        for announcer in self._announcers():
            if (announcer.route.vhost, announcer.route.exchange) == (vhost, exchange):
                announcer.mark(keys)

    def _announcers(self) -> Iterator[Announcer]:
        yield from self._own.values()
        yield from self._invited.values()

    @staticmethod
    def _to(announcer: Announcer, bodies: Sequence[bytes]) -> list[Told]:
        return [(announcer.source, body) for body in bodies]
