"""Going back to a peer that a link has left: what waits there is fetched, and what was made there is taken away.

Owns, for links with several addresses, the second connections to those they do not lead to now. That a link came up
somewhere, and the old peer's answers come in; dials, carriers and `leave` messages go out.
It must never touch the peer that the link leads to now.
Rule: docs/decisions/0037. The old source keeps its bindings for a minute and its queue until that is empty; both may
carry the same message, which the barrier here takes once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft.federation import asks, control
from weft.federation.addresses import queue_place
from weft.federation.announce import RETRY_NS
from weft.federation.bridges import bridge_name
from weft.federation.carriers import Carriers
from weft.federation.control import Said
from weft.federation.desk import Desk
from weft.federation.records import Route
from weft.federation.steps import CONTROL_MESSAGES_MAX, OUT, VHOST, Post, Step
from weft.federation.uplink import Uplink

PATIENCE_NS = 60_000_000_000
"""How long messages are taken from both sources. Some have passed the new one before it knew of us, and are on their
way to the old one, perhaps held up by a node that is just being started again.
"""
MARK = "~"
"""Begins the names of such connections; no link of an operator's is called so."""


@dataclass(slots=True)
class Errand:
    """One peer to go back to."""

    home: Uplink
    """The link that has left it."""
    at: int
    """Which of the link's addresses."""
    uplink: Uplink
    routes: dict[str, Route]
    """What is not settled with it yet."""
    until_ns: int
    """What it has for us has expired by then, whether it answers or not."""
    over: dict[str, int] = field(default_factory=dict)
    """Routes that are none any more, with their last epoch: nothing is fetched for them, and what waits there goes."""
    ask_ns: int = 0
    since_ns: int = 0
    """When it was let in."""

    @property
    def is_moot(self) -> bool:
        """Is the link gone, or here again?"""
        return self.home.state == "closed" or (self.home.state == "operational" and self.home.at == self.at)

    def is_due(self, now_ns: int) -> bool:
        """May the peer be told now? Not before the link has somewhere else to get messages from."""
        return self.uplink.state == self.home.state == "operational" and now_ns >= self.ask_ns

    @property
    def name(self) -> str:
        """What its connection is called."""
        return self.uplink.link.name


class Errands:
    """Every peer that is to be gone back to."""

    def __init__(self, node: str, desk: Desk, carriers: Carriers, chance: Callable[[], float]) -> None:
        self._node = node
        self._desk = desk
        self._carriers = carriers
        self._chance = chance
        self._errands: dict[str, Errand] = {}
        self._settled: dict[str, set[int]] = {}
        """Addresses of each link where nothing of ours is; of those nobody has asked yet, a former life may know."""

    def get(self, uplink: Uplink) -> Errand | None:
        """The errand that a connection is for."""
        return self._errands.get(uplink.link.name)

    def uplinks(self) -> list[Uplink]:
        """The connections, to be kept up as any."""
        return [errand.uplink for errand in self._errands.values()]

    # where to go

    def came_up(self, home: Uplink, routes: Sequence[Route], now_ns: int) -> None:
        """A link leads to one of its addresses: the others are to be gone to, for these routes."""
        settled = self._settled.setdefault(home.link.name, set())
        settled.discard(home.at)
        for at, url in enumerate(home.link.urls):
            name = _name(home, at)
            if at != home.at and at not in settled and name not in self._errands and routes:
                uplink = Uplink(replace(home.link, name=name, urls=(url,), durable=False), self._chance)
                uplink.retry_now(now_ns)
                until_ns = now_ns + max(route.expires_ms for route in routes) * 1_000_000
                self._errands[name] = Errand(home, at, uplink, {route.name: route for route in routes}, until_ns)

    def take_needless(self, now_ns: int) -> list[Uplink]:
        """Connections to hang up: of links that are gone or have come back, or with nothing left to settle."""
        over = [e for e in self._errands.values() if e.is_moot or not e.routes or now_ns > e.until_ns]
        for errand in over:
            del self._errands[errand.name]
            if not errand.is_moot:
                self._settled.setdefault(errand.home.link.name, set()).add(errand.at)
        return [errand.uplink for errand in over]

    def drop_link(self, link: str) -> None:
        """A link is gone, or has other addresses."""
        self._settled.pop(link, None)

    def drop_route(self, name: str, epoch: int) -> list[Step]:
        """A route is over. Whoever was left is told, now or when it can be reached, until it has said so."""
        steps: list[Step] = []
        for errand in self._errands.values():
            if name in errand.routes:
                errand.over[name] = epoch
                errand.ask_ns = 0
                steps += self._carriers.close(f"errand {errand.name} {name}")
        return steps

    # what to do there

    def opened(self, errand: Errand, now_ns: int) -> list[Step]:
        """A peer let us in. It may be the one that the link leads to, by another address."""
        uplink = errand.uplink
        if not uplink.is_weft or uplink.peer_name == errand.home.peer_name:
            errand.routes.clear()
            return []
        name = errand.name
        queue, arguments = OUT + name, {"x-max-length": CONTROL_MESSAGES_MAX}
        out, back = asks.channel(uplink, self._node)
        errand.ask_ns = errand.since_ns = now_ns
        return [
            *self._desk.drop_queue(VHOST, queue),
            *self._desk.make_queue(VHOST, queue, durable=False, arguments=arguments),
            self._carriers.open(name, f"errand out {name}", out),
            self._carriers.open(name, f"errand in {name}", back),
        ]

    def ask(self, epoch_of: Callable[[str], int], now_ns: int) -> list[Step]:
        """Say to the peers that are due that this node has left."""
        steps: list[Step] = []
        for errand in self._errands.values():
            if errand.is_due(now_ns):
                errand.ask_ns = now_ns + RETRY_NS
                now = {"final": now_ns > errand.since_ns + PATIENCE_NS}
                for route in errand.routes.values():
                    epoch = errand.over.get(route.name, epoch_of(route.name))
                    facts = {"route": route.name, "exchange": route.from_exchange, "epoch": epoch}
                    if route.name in errand.over:
                        steps.append(self._say(errand, "withdraw", facts))
                    steps.append(self._say(errand, "leave", facts | now))
        return steps

    def _say(self, errand: Errand, op: str, facts: dict[str, Any]) -> Step:
        return Post(VHOST, OUT + errand.name, control.encode(op, self._node, **facts))

    def on_answer(self, said: Said) -> list[Step]:
        """A peer that was left says that it has nothing any more (`left`), or not yet (`leaving`)."""
        name = said.text("route")
        for errand in self._errands.values():
            route = errand.routes.get(name)
            if route is None or errand.uplink.peer_name != said.node or errand.uplink.state != "operational":
                continue
            owner = f"errand {errand.name} {name}"
            if said.op == "left":
                del errand.routes[name]
                errand.over.pop(name, None)
                return [*self._carriers.close(owner)]
            if name not in errand.over and not self._carriers.of(owner):
                place = queue_place(errand.uplink.product, bridge_name(self._node, name))
                ask = asks.pull(errand.uplink.conn, route, place)
                return [self._carriers.open(errand.name, owner, ask)]
        return []


def _name(home: Uplink, at: int) -> str:
    return f"{MARK}{at}{MARK}{hashlib.sha256(home.link.name.encode()).hexdigest()[:16]}"
