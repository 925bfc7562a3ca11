"""The source's half of a dynamic route: a queue for each destination, bound as the destination asks.

Owns which queues of this node are bridges, for whom, and how far each destination's announcements have been followed.
`reflect`, `verify`, `leave` and `withdraw` messages come in; changes of bindings and the answers go out.
It must not trust its memory about bindings: differences are taken against what the broker really has.
Rule: a bridge queue is as durable as its route, so messages wait for a destination that is away, until its `expires`
(docs/decisions/0010). A route that this node pushes has one queue, whichever of its link's peers takes from it now
(docs/decisions/0027).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft.federation import control
from weft.federation.control import NO_ARGUMENTS, Said
from weft.federation.desk import Desk
from weft.federation.reach import Key, Path, Reach
from weft.model.changes import Change
from weft.model.errors import Refused
from weft.model.services import BRIDGE_ARGUMENT

PREFIX = "weft.bridge."
PUSHED = ">"
"""Begins the name in place of a destination's: none is called so."""
NAME_BYTES_MAX = 255
KEYS_MAX = 1_000_000
"""Keys one destination may ask for: beyond this it should bind by pattern."""


def bridge_name(node: str, route: str) -> str:
    """The queue at the source for a route of a node: the same every time."""
    name = f"{PREFIX}{node}:{route}"
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    return f"{PREFIX}{node}:{hashlib.sha256(route.encode()).hexdigest()[:32]}"


def pushed_bridge_name(node: str, route: str) -> str:
    """The queue of a route that a node pushes: the same whichever peer its link leads to, so that the next gateway
    gets what waited for the last one.
    """
    return bridge_name(PUSHED + node, route)


@dataclass(slots=True)
class _Bridge:
    """One destination's announcements so far."""

    vhost: str
    exchange: str
    epoch: int = -1
    sequence: int = 0
    seen: set[tuple[Key, str]] | None = None
    """While a whole set is coming in: the keys of it, with their origins."""
    mended: int = 0


@dataclass(slots=True)
class Reply:
    """What to do, and what to answer."""

    changes: list[Change] = field(default_factory=list)
    answer: bytes | None = None
    touched: list[Key] = field(default_factory=list)
    """Keys whose path may have changed, for our own sources to hear of."""


class Bridges:
    """Every bridge queue of this node."""

    def __init__(self, node: str, desk: Desk, reach: Callable[[str, str], Reach]) -> None:
        """`reach` gives the keys of an exchange by virtual host and name."""
        self._node = node
        self._desk = desk
        self._reach = reach
        self._bridges: dict[tuple[str, str], _Bridge] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Every bridge, for people."""
        return [
            {"queue": queue, "vhost": vhost, "exchange": bridge.exchange, "mended": bridge.mended}
            for (vhost, queue), bridge in self._bridges.items()
        ]

    def on_reflect(self, vhost: str, said: Said) -> Reply:
        """A destination asks for keys."""
        exchange = said.text("exchange")
        place = _place(said)
        try:
            return self._reflect(vhost, said, exchange, self._queue_for(said), place)
        except Refused as refused:
            return Reply(answer=control.encode("refused", self._node, **place, text=str(refused)))

    def _reflect(self, vhost: str, said: Said, exchange: str, queue: str, place: dict[str, Any]) -> Reply:
        bridge = self._bridges.get((vhost, queue))
        epoch, sequence = place["epoch"], place["sequence"]
        if said.flag("fresh"):
            if self._desk.exchange_type(vhost, exchange) is None:
                raise Refused(f"no exchange '{exchange}' in vhost '{vhost}'", 404)
            bridge = self._bridges[vhost, queue] = _Bridge(vhost, exchange, epoch, sequence - 1, set())
        if bridge is None or bridge.epoch != epoch or bridge.sequence + 1 != sequence:
            answer = control.encode("refused", self._node, **place, text="lost count", resync=True)
            return Reply(answer=answer)
        bridge.sequence = sequence
        kind = self._desk.exchange_type(vhost, exchange)
        told = control.unpack_paths(said, "add")
        added = [(_as_bound(kind, key), path) for key, path in told if self._node not in path]
        dropped = [(_as_bound(kind, key), origin) for key, origin in control.unpack_origins(said, "drop")]
        bound = dict.fromkeys(self._desk.keys_of_queue(vhost, exchange, queue))
        missing = [key for key in dict.fromkeys(key for key, _ in added) if key not in bound]
        if len(bound) + len(missing) > KEYS_MAX:
            raise Refused(f"more than {KEYS_MAX} keys for one route", 406)
        # From here on nothing may be refused without what was done before it: the kernel is told of it all.
        changes = self._make_queue(vhost, queue, said) if said.flag("fresh") else []
        reach = self._reach(vhost, exchange)
        suspects = [key for key, _ in dropped]
        was_comparing = bridge.seen is not None
        if bridge.seen is not None:
            bridge.seen.update((key, path[0]) for key, path in added)
            if said.flag("last"):
                known = reach.learned(queue).items()
                dropped += [(key, o) for key, paths in known for o in paths if (key, o) not in bridge.seen]
                suspects = list(bound)
                bridge.seen = None
        touched = reach.learn(queue, added, dropped)
        wanted = reach.learned(queue)
        surplus = [key for key in dict.fromkeys(suspects) if key in bound and key not in wanted]
        try:
            changes += self._desk.rebind(vhost, exchange, queue, missing, surplus)
        except Refused as refused:
            del self._bridges[vhost, queue]
            answer = control.encode("refused", self._node, **place, text=str(refused))
            return Reply(changes, answer, reach.forget(queue))
        mended = len(missing) + len(surplus) if was_comparing else 0
        bridge.mended += mended
        answer = control.encode("reflected", self._node, **place, queue=queue, mended=mended)
        return Reply(changes, answer, touched)

    def _queue_for(self, said: Said) -> str:
        """The queue that a destination speaks of: by its own route, or by one of ours that it was invited to."""
        route = said.text("route")
        return pushed_bridge_name(self._node, route) if said.flag("invited") else bridge_name(said.node, route)

    def _make_queue(self, vhost: str, queue: str, said: Said) -> list[Change]:
        arguments = {BRIDGE_ARGUMENT: said.node, "x-expires": max(1, said.number("expires_ms", 86_400_000))}
        return self._desk.make_queue(vhost, queue, durable=said.flag("durable"), arguments=arguments)

    def on_verify(self, vhost: str, said: Said) -> Reply:
        """A destination asks whether its bindings are as it believes."""
        queue, exchange = self._queue_for(said), said.text("exchange")
        place = _place(said)
        keys = self._desk.keys_of_queue(vhost, exchange, queue)
        is_same = len(keys) == said.number("count") and (
            control.digest(keys) == said.text("digest") or self._desk.exchange_type(vhost, exchange) == "fanout"
        )
        if is_same:
            return Reply(answer=control.encode("reflected", self._node, **place, queue=queue, mended=0))
        return Reply(answer=control.encode("refused", self._node, **place, text="bindings differ", resync=True))

    def on_withdraw(self, vhost: str, said: Said) -> Reply:
        """A destination's route is over: its queue goes, with what waits in it."""
        queue = self._queue_for(said)
        bridge = self._bridges.get((vhost, queue))
        if bridge is not None and bridge.epoch > said.number("epoch", bridge.epoch):
            return Reply()  # the destination has come back since
        self._bridges.pop((vhost, queue), None)
        exchange = bridge.exchange if bridge is not None else said.text("exchange")
        touched = self._forget(vhost, exchange, queue)
        try:
            return Reply(self._desk.drop_queue(vhost, queue), touched=touched)
        except Refused:
            return Reply(touched=touched)

    def on_leave(self, vhost: str, said: Said) -> Reply:
        """A destination gets its messages from elsewhere now. Until it says that nothing can be on its way to us any
        more (`final`), all stays as it is; then nothing more comes into its queue; once that is empty, it goes.
        """
        queue, exchange = self._queue_for(said), said.text("exchange")
        place = _place(said)
        left = Reply(answer=control.encode("left", self._node, **place))
        leaving = Reply(answer=control.encode("leaving", self._node, **place))
        bridge = self._bridges.get((vhost, queue))
        messages = self._desk.held(vhost, queue)
        if messages is None or (bridge is not None and bridge.epoch > place["epoch"]):
            return left  # nothing is here, or the destination has come back since
        if not said.flag("final"):
            return leaving
        reply = left if messages == 0 else leaving
        keys = self._desk.keys_of_queue(vhost, exchange, queue)
        reply.touched = self._forget(vhost, exchange, queue)
        if messages == 0:
            self._bridges.pop((vhost, queue), None)
            reply.changes += self._desk.drop_queue(vhost, queue)
        else:
            reply.changes += self._desk.rebind(vhost, exchange, queue, [], keys)
        return reply

    def _forget(self, vhost: str, exchange: str, queue: str) -> list[Key]:
        """Nothing is asked for by a queue any more; peers may name exchanges that never were."""
        return [] if self._desk.exchange_type(vhost, exchange) is None else self._reach(vhost, exchange).forget(queue)

    def recall(self, vhost: str, exchange: str) -> dict[str, list[tuple[Key, Path]]]:
        """What stored bridge queues of an exchange say their destinations want, until these speak for themselves."""
        found: dict[str, list[tuple[Key, Path]]] = {}
        for kind, queue, key in self._desk.keys_of_exchange(vhost, exchange):
            if kind == "queue" and queue.startswith(PREFIX):
                origin = queue.removeprefix(PREFIX).partition(":")[0]
                found.setdefault(queue, []).append((key, (origin,)))
        return found


def _as_bound(kind: str | None, key: Key) -> Key:
    """How an exchange keeps a key: the one of a static route says nothing to those that look at none."""
    match kind:
        case "fanout":
            return "", NO_ARGUMENTS
        case "headers":
            return "", key[1]
        case _:
            return key


def _place(said: Said) -> dict[str, Any]:
    """What an answer repeats, so that its question is found."""
    numbers = {"epoch": said.number("epoch"), "sequence": said.number("sequence")}
    return {"route": said.text("route"), "invited": said.flag("invited"), **numbers}
