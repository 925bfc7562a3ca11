"""The controller of federation: links kept up, routes carried, bindings reflected.

Owns the links and routes of this node and ties their parts together: `uplink` (connections), `carriers` (links of the
kernel), `reflections` (dynamic routes). Events, control messages and an operator's wishes come in; changes for the
kernel and actions for the node (`Dial`, `Hangup`, `Post`) go out, in order.
It moves no message and opens no socket itself.
Rule: what a link carries is asked for again, and verified, each time it comes up (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from weft.federation import asks, control
from weft.federation.addresses import Place, exchange_place, is_pattern, queue_place
from weft.federation.announce import RETRY_NS
from weft.federation.bridges import bridge_name, pushed_bridge_name
from weft.federation.carriers import Carrier, Carriers
from weft.federation.control import NO_ARGUMENTS, Said
from weft.federation.desk import Desk
from weft.federation.errands import MARK, Errands
from weft.federation.followers import Followers
from weft.federation.reach import Key
from weft.federation.records import Link, Route, to_table
from weft.federation.reflections import Outcome, Reflections, Told
from weft.federation.steps import (
    CONTROL_MESSAGES_MAX,
    FOR,
    FOR_EXPIRES_MS,
    OUT,
    VHOST,
    Joined,
    Left,
    Post,
    Step,
)
from weft.federation.uplink import Uplink
from weft.model.actions import Hangup
from weft.model.changes import Change, CloseConnection
from weft.model.errors import Refused, RemoteProtocolError
from weft.model.events import (
    ConnectionClosed,
    DialFailed,
    Dialled,
    Event,
    LinkAttached,
    LinkDetached,
    PeerOpened,
)

PEERS_MAX = 65_536


class Federation:
    """Decides on links and routes."""

    def __init__(self, node: str, desk: Desk, chance: Callable[[], float], epoch: int) -> None:
        """`chance` gives a number from 0 to 1, as random.random does; `epoch` is higher than in any life before."""
        self.node = node
        self._desk = desk
        self._chance = chance
        self._uplinks: dict[str, Uplink] = {}
        self._by_conn: dict[int, Uplink] = {}
        self._by_dial: dict[int, Uplink] = {}
        self._dials = 0
        self._routes: dict[str, Route] = {}
        self._causes: dict[str, str] = {}
        """Why a pushed dynamic route does not flow, by its name."""
        self._carriers = Carriers(chance)
        self._reflections = Reflections(node, desk, epoch)
        self._errands = Errands(node, desk, self._carriers, chance)
        self._followers = Followers(node)
        self._invite_ns = self._tick_ns = 0
        self._replies: dict[str, tuple[str, str]] = {}
        """(virtual host, queue) at this node by which a neighbour that linked to us is answered."""

    # what an operator wants

    def put_link(self, link: Link, now_ns: int) -> list[Step]:
        """Make a link, or change it; a changed one is connected anew."""
        if link.name.startswith(MARK):
            raise Refused(f"link '{link.name}': names that begin with {MARK} are the node's own", 406)
        steps: list[Step] = []
        known = self._uplinks.get(link.name)
        if known is not None:
            if known.link == link:
                return []
            steps += self._hang_up(known, now_ns)
            self._errands.drop_link(link.name)
        uplink = self._uplinks[link.name] = Uplink(link, self._chance)
        uplink.retry_now(now_ns)
        return [*steps, *self.tick(now_ns)]

    def remove_link(self, name: str, now_ns: int) -> list[Step]:
        """Take a link away; routes on it must be gone before."""
        uplink = self._uplinks.get(name)
        if uplink is None:
            raise Refused(f"no link '{name}'", 404)
        users = [route.name for route in self._routes.values() if route.link == name]
        if users:
            raise Refused(f"link '{name}' carries routes: {', '.join(users)}", 406)
        del self._uplinks[name]
        self._errands.drop_link(name)
        return [*self._hang_up(uplink, now_ns), *self._end_errands(now_ns)]

    def put_route(self, route: Route, now_ns: int) -> list[Step]:
        """Make a route, or change it."""
        if route.link not in self._uplinks:
            raise Refused(f"route '{route.name}' names link '{route.link}', which does not exist", 404)
        steps: list[Step] = []
        known = self._routes.get(route.name)
        if known == route:
            return []
        if known is not None and known.with_pace_of(route) == route and self._keeps_its_queue(route):
            return self._set_pace(route)
        if known is not None:
            steps += self.remove_route(route.name)
        self._routes[route.name] = route
        if _is_reflected(route):
            self._reflections.add(route)
        uplink = self._uplinks[route.link]
        if uplink.state == "operational":
            steps += self._start_route(uplink, route, now_ns)
        return steps

    def _keeps_its_queue(self, route: Route) -> bool:
        """Does what waits for a route stay when the link under it is closed? A subscription elsewhere goes with it."""
        return self._uplinks[route.link].is_weft or route.kind != "static" or route.direction == "push"

    def _set_pace(self, route: Route) -> list[Step]:
        """Carry as before, faster or slower: what waits at the source must not go with the old link."""
        self._routes[route.name] = route
        carriers = self._carriers.of(route.name)
        closed = self._carriers.close(route.name)
        return [*closed, *(self._carriers.open(c.uplink, route.name, asks.at_pace(c.ask, route)) for c in carriers)]

    def remove_route(self, name: str) -> list[Step]:
        """Take a route away, with what was made for it at both ends."""
        route = self._routes.pop(name, None)
        if route is None:
            raise Refused(f"no route '{name}'", 404)
        self._causes.pop(name, None)
        uplink = self._uplinks[route.link]
        steps: list[Step] = [*self._carriers.close(name), *self._errands.drop_route(name, self._epoch_of(name))]
        steps += self._tell(self._reflections.remove(name))
        if self._followers.drop(name):
            steps.append(self._followers.mirror(route, uplink.link.management, uplink.peer, [], is_over=True))
        if route.direction == "push" and route.kind == "dynamic":
            facts = {"route": name, "exchange": route.from_exchange, "invited": True}
            said = Said("withdraw", uplink.peer_name, facts)
            steps += self._follow(self._reflections.on_withdraw(route.vhost, said))
            steps += self.tell(uplink.peer_name, [control.encode("uninvite", self.node, route=name)])
        elif route.direction == "push" and route.kind == "static":
            steps += self._desk.drop_queue(route.vhost, self._own_bridge(route))
        return steps

    def links(self) -> list[dict[str, Any]]:
        """Every link with its state."""
        return [uplink.row() for uplink in self._uplinks.values()]

    def routes(self) -> list[dict[str, Any]]:
        """Every route with what is really flowing."""
        return [self._route_row(route) for route in self._routes.values()]

    def standing(self) -> Iterator[tuple[str, str, str, str]]:
        """Name, virtual host, state and cause of every route."""
        for route in self._routes.values():
            yield route.name, route.vhost, *self._route_state(route)

    def pushed_from(self, name: str) -> str | None:
        """The queue here whose messages a route carries away; None for one that fetches."""
        route = self._routes.get(name)
        if route is None or route.direction == "pull":
            return None
        return route.queue if route.kind == "queue" else self._own_bridge(route)

    def records(self) -> list[Link | Route]:
        """What was asked for: links, then routes."""
        return [*(uplink.link for uplink in self._uplinks.values()), *self._routes.values()]

    def bridges(self) -> list[dict[str, Any]]:
        """Queues kept here for the dynamic routes of others."""
        return self._reflections.bridges.rows()

    def link(self, name: str) -> Link | None:
        """A link as it was asked for."""
        uplink = self._uplinks.get(name)
        return None if uplink is None else uplink.link

    def route(self, name: str) -> Route | None:
        """A route as it was asked for."""
        return self._routes.get(name)

    def make_durable(self, name: str) -> Link:
        """A link that is to survive from now on; its connection stays as it is."""
        uplink = self._uplinks[name]
        uplink.link = replace(uplink.link, durable=True)
        return uplink.link

    def neighbours(self) -> list[str]:
        """Nodes that can be told something now."""
        ours = {u.peer_name for u in self._uplinks.values() if u.state == "operational" and u.is_weft}
        return sorted(ours | set(self._replies))

    # what the node reports

    def on_events(self, events: Sequence[Event], now_ns: int) -> list[Step]:
        """Follow connections and links; leave the rest to others."""
        steps: list[Step] = []
        for event in events:
            match event:
                case Dialled():
                    uplink = self._by_dial.get(event.dial)
                    if uplink is not None:
                        uplink.dialled(event.conn, now_ns)
                        self._by_conn[event.conn] = uplink
                case DialFailed():
                    uplink = self._by_dial.pop(event.dial, None)
                    if uplink is not None:
                        uplink.lost(event.text, now_ns)
                case PeerOpened():
                    steps += self._on_opened(event, now_ns)
                case ConnectionClosed():
                    steps += self._on_closed(event, now_ns)
                case LinkAttached():
                    carrier = self._carriers.on_attached(event)
                    if carrier is not None:
                        steps += self._on_attached(carrier, now_ns)
                case LinkDetached():
                    self._carriers.on_detached(event, now_ns)
        return steps

    def is_linked(self, conn: int) -> bool:
        """Does one of our links go over this connection?"""
        return conn in self._by_conn

    def tick(self, now_ns: int) -> list[Step]:
        """Do what is due: attempts to connect and to attach, comparisons."""
        self._tick_ns = now_ns + RETRY_NS
        steps: list[Step] = []
        for uplink in (*self._uplinks.values(), *self._errands.uplinks()):
            dial = uplink.tick(self._dials + 1, now_ns)
            if dial is not None:
                self._dials += 1
                self._by_dial[dial.dial] = uplink
                steps.append(dial)
        steps += self._carriers.tick(now_ns)
        steps += [*self._errands.ask(self._epoch_of, now_ns), *self._end_errands(now_ns)]
        if now_ns >= self._invite_ns:
            self._invite_ns = now_ns + RETRY_NS
            for route in self._routes.values():
                uplink = self._uplinks[route.link]
                if _is_pushed(route) and uplink.state == "operational" and not self._carriers.of(route.name):
                    steps += self._start_route(uplink, route, now_ns)
        return [*steps, *self._tell(self._reflections.verify(now_ns)), *self._follow_bindings(now_ns)]

    @property
    def due_ns(self) -> int:
        """When `tick` wants to be called next; what happens in between puts nothing off."""
        dues = [uplink.due_ns for uplink in (*self._uplinks.values(), *self._errands.uplinks())]
        return min(due for due in (*dues, self._carriers.due_ns, self._tick_ns) if due is not None)

    def on_binding(self, vhost: str, exchange: str, destination: str, key: Key, is_bound: bool) -> None:
        """A binding was made or undone at this node; `flush` tells sources of it."""
        self._reflections.on_binding(vhost, exchange, destination, key, is_bound)
        self._followers.mark(vhost, exchange)

    @property
    def is_dirty(self) -> bool:
        """Is `flush` to be called soon?"""
        return self._reflections.is_dirty or self._followers.is_dirty

    def flush(self, now_ns: int) -> list[Step]:
        """Tell sources what has changed in this turn."""
        return [*self._tell(self._reflections.flush()), *self._follow_bindings(now_ns)]

    def on_mirrored(self, route: str, cause: str, is_good: bool, now_ns: int) -> list[Step]:
        """A queue at another broker is bound as it was to be, or is not."""
        found = self._followers.told(route, cause, is_good, now_ns)
        if found is None or self._carriers.of(route):
            return []
        uplink = self._uplinks[found.link]
        return [self._pull(uplink, found, queue_place(uplink.product, self._followers.queue(found)))]

    def tell(self, node: str, bodies: Sequence[bytes]) -> list[Step]:
        """Send control messages to a neighbour; nothing if it is none."""
        for name, uplink in self._uplinks.items():
            if uplink.state == "operational" and uplink.peer_name == node and uplink.is_weft:
                return [Post(VHOST, OUT + name, body) for body in bodies]
        place = self._replies.get(node)
        return [] if place is None else [Post(*place, body) for body in bodies]

    def forget_neighbour(self, node: str, vhost: str | None) -> None:
        """A link of its to this node is gone; another one of its leads to this virtual host, if there is one."""
        if vhost is None:
            self._replies.pop(node, None)
        elif node in self._replies:
            self._replies[node] = (vhost, FOR + node)

    def on_control(self, vhost: str, said: Said, now_ns: int) -> list[Step]:
        """A control message arrived in a virtual host of this node."""
        self._followers.mark()  # neighbours ask for keys, and give them up
        match said.op:
            case "hello":
                return self._on_hello(vhost, said)
            case "reflect":
                return self._on_reflect(vhost, said)
            case "verify":
                return self._follow(self._reflections.on_verify(self._vhost_of(vhost, said), said))
            case "withdraw":
                return self._follow(self._reflections.on_withdraw(vhost, said))
            case "invite":
                return self._tell(self._reflections.on_invite(vhost, said, now_ns))
            case "uninvite":
                self._reflections.on_uninvite(said)
                return []
            case "leave":
                return self._on_leave(vhost, said)
            case "left" | "leaving":
                return [*self._errands.on_answer(said), *self._end_errands(now_ns)]
            case "reflected" | "refused":
                return self._on_answer(said, now_ns)
            case _:
                raise RemoteProtocolError(f"{said.node} said {said.op!r}, which means nothing here")

    # links

    def _on_opened(self, event: PeerOpened, now_ns: int) -> list[Step]:
        uplink = self._by_conn.get(event.conn)
        if uplink is None:
            return []
        if event.node == self.node:
            uplink.lost(f"the peer is called {self.node} too, or is this node itself", now_ns)
            del self._by_conn[event.conn]
            self._by_dial.pop(uplink.dial, None)
            return [CloseConnection(event.conn)]
        uplink.opened(event.container, event.node, event.properties, now_ns)
        errand = self._errands.get(uplink)
        if errand is not None:
            return [*self._errands.opened(errand, now_ns), *self._end_errands(now_ns)]
        routes = [route for route in self._routes.values() if route.link == uplink.link.name]
        self._errands.came_up(uplink, [r for r in routes if uplink.is_weft and _is_reflected(r)], now_ns)
        steps: list[Step] = self._end_errands(now_ns)
        if uplink.is_weft:
            steps += self._open_control(uplink)
        for route in routes:
            if not (uplink.is_weft and _is_agreed(route)):
                steps += self._start_route(uplink, route, now_ns)
        return steps

    def _on_closed(self, event: ConnectionClosed, now_ns: int) -> list[Step]:
        uplink = self._by_conn.pop(event.conn, None)
        if uplink is None:
            return []
        self._by_dial.pop(uplink.dial, None)
        self._lose(uplink, event.cause)
        was_up = uplink.state == "operational"
        uplink.lost(event.cause, now_ns)
        return self._left(uplink) if was_up else []

    def _left(self, uplink: Uplink) -> list[Step]:
        """A link is down: its peer is lost, unless there is another way to it."""
        is_errand = uplink.link.name.startswith(MARK)
        return [] if is_errand or uplink.peer_name in self.neighbours() else [Left(uplink.peer_name)]

    def _lose(self, uplink: Uplink, cause: str) -> None:
        self._carriers.lose(uplink.link.name)
        self._followers.drop_link(uplink.link.name)
        self._reflections.stop(uplink.link.name, cause)

    def _hang_up(self, uplink: Uplink, now_ns: int) -> list[Step]:
        was_up = uplink.state == "operational"
        uplink.close(now_ns)
        self._lose(uplink, "the link was removed")
        self._by_conn.pop(uplink.conn, None)
        steps: list[Step] = [Hangup(uplink.dial)] if self._by_dial.pop(uplink.dial, None) is not None else []
        return [*steps, *(self._left(uplink) if was_up else [])]

    # peers that a link has left

    def _epoch_of(self, route: str) -> int:
        announcer = self._reflections.get(route)
        return 0 if announcer is None else announcer.epoch

    def _end_errands(self, now_ns: int) -> list[Step]:
        steps: list[Step] = []
        for uplink in self._errands.take_needless(now_ns):
            steps += [*self._hang_up(uplink, now_ns), *self._desk.drop_queue(VHOST, OUT + uplink.link.name)]
        return steps

    def _on_leave(self, vhost: str, said: Said) -> list[Step]:
        outcome, answer = self._reflections.on_leave(vhost, said)
        steps = self._follow(outcome)
        if answer is not None:
            queue = FOR + said.node
            arguments = {"x-expires": FOR_EXPIRES_MS, "x-max-length": CONTROL_MESSAGES_MAX}
            steps += self._desk.make_queue(vhost, queue, durable=False, arguments=arguments)
            steps.append(Post(vhost, queue, answer))
        return steps

    # the control channel

    def _open_control(self, uplink: Uplink) -> list[Step]:
        name = uplink.link.name
        queue = OUT + name
        arguments = {"x-max-length": CONTROL_MESSAGES_MAX}
        steps: list[Step] = [*self._desk.drop_queue(VHOST, queue)]
        steps += self._desk.make_queue(VHOST, queue, durable=False, arguments=arguments)
        out, back = asks.channel(uplink, self.node)
        steps += [self._carriers.open(name, f"out {name}", out), self._carriers.open(name, f"in {name}", back)]
        return [*steps, Post(VHOST, queue, control.encode("hello", self.node))]

    def _on_attached(self, carrier: Carrier, now_ns: int) -> list[Step]:
        if carrier.owner != f"in {carrier.uplink}":
            return []
        uplink = self._uplinks[carrier.uplink]
        steps: list[Step] = [Joined(uplink.peer_name)]
        for route in self._routes.values():
            if route.link == carrier.uplink and _is_agreed(route):
                steps += self._start_route(uplink, route, now_ns)
        return steps

    def _on_hello(self, vhost: str, said: Said) -> list[Step]:
        if len(self._replies) >= PEERS_MAX and said.node not in self._replies:
            raise RemoteProtocolError(f"more than {PEERS_MAX} neighbours")
        queue = FOR + said.node
        arguments = {"x-expires": FOR_EXPIRES_MS, "x-max-length": CONTROL_MESSAGES_MAX}
        made = self._desk.make_queue(vhost, queue, durable=False, arguments=arguments)
        self._replies[said.node] = (vhost, queue)
        return [*made, Joined(said.node)]

    def _tell(self, told: Sequence[Told]) -> list[Step]:
        return [step for node, body in told for step in self.tell(node, [body])]

    def _follow(self, outcome: Outcome) -> list[Step]:
        return [*outcome.changes, *self._tell(outcome.told)]

    # routes whose keys are told

    def _vhost_of(self, vhost: str, said: Said) -> str:
        """Where a destination's wishes are to be followed: for a route of ours, where the route says."""
        if not said.flag("invited"):
            return vhost
        route = self._routes.get(said.text("route"))
        if route is None or not _is_pushed(route) or self._uplinks[route.link].peer_name != said.node:
            raise RemoteProtocolError(f"{said.node} speaks of a route it was not invited to")
        return route.vhost

    def _on_reflect(self, vhost: str, said: Said) -> list[Step]:
        steps = self._follow(self._reflections.on_reflect(self._vhost_of(vhost, said), said))
        name = said.text("route")
        if said.flag("invited") and said.flag("last") and not self._carriers.of(name):
            route = self._routes[name]
            uplink = self._uplinks[route.link]
            if uplink.state == "operational":  # a message may outlive the connection it came by
                steps.append(self._push(uplink, route))
        return steps

    def _on_answer(self, said: Said, now_ns: int) -> list[Step]:
        name = said.text("route")
        if said.op == "refused" and said.flag("invited") and name in self._routes:
            self._causes[name] = f"{said.node} refused: {said.text('text', '')}"
            return []
        steps = self._tell(self._reflections.on_answer(said, now_ns))
        announcer, route = self._reflections.get(name), self._routes.get(name)
        if announcer is None or route is None or said.flag("invited"):
            return steps
        uplink = self._uplinks[route.link]
        if announcer.queue and not self._carriers.of(name) and uplink.state == "operational":
            steps.append(self._pull(uplink, route, queue_place(uplink.product, announcer.queue)))
        return steps

    def _start_agreed(self, uplink: Uplink, route: Route, now_ns: int) -> list[Step]:
        if not uplink.is_weft and uplink.link.management and route.direction == "pull":
            self._followers.add(route)
            return self._follow_bindings(now_ns)
        if not uplink.is_weft:
            help_ = "use static routes, or name its management in the link"
            cause = f"{uplink.peer_name} is {uplink.product or 'no weft node'}: {help_}"
            self._reflections.stop(route.link, cause)
            self._causes[route.name] = cause
            return []
        if not any(carrier.state == "flowing" for carrier in self._carriers.of(f"in {uplink.link.name}")):
            return []
        if route.direction == "pull":
            return self._tell(self._reflections.start(route.name, uplink.peer_name, now_ns))
        self._causes[route.name] = f"asking {uplink.peer_name} for its bindings"
        places = {"exchange": route.exchange, "source_exchange": route.from_exchange, "relay": route.relay}
        keep = {"durable": route.durable, "expires_ms": route.expires_ms}
        return self.tell(uplink.peer_name, [control.encode("invite", self.node, route=route.name, **places, **keep)])

    def _follow_bindings(self, now_ns: int) -> list[Step]:
        """Have other brokers bind what is wanted here."""
        steps: list[Step] = []
        for route in self._followers.take_due(now_ns):
            uplink = self._uplinks[route.link]
            if self._desk.exchange_type(route.vhost, route.exchange) == "headers":
                self._followers.told(
                    route.name, "bindings of a headers exchange have no keys to ask for", False, now_ns
                )
                continue
            reach = self._reflections.reach(route.vhost, route.exchange)
            keys = [key for key in reach.all_keys() if reach.paths(key, uplink.peer_name)]
            steps.append(self._followers.mirror(route, uplink.link.management, uplink.peer, keys))
        return steps

    # routes

    def _start_route(self, uplink: Uplink, route: Route, now_ns: int) -> list[Step]:
        if route.kind == "dynamic" or (uplink.is_weft and _is_reflected(route)):
            return self._start_agreed(uplink, route, now_ns)
        if route.direction == "push":
            if route.kind == "static" and not uplink.is_weft and is_pattern(route.key):
                self._causes[route.name] = f"{uplink.peer_name} must be told one key for all messages, not a pattern"
                return []
            steps = self._make_own_bridge(route) if route.kind == "static" else []
            return [*steps, self._push(uplink, route)]
        if route.kind == "queue":
            return [self._pull(uplink, route, queue_place(uplink.product, route.queue))]
        place = exchange_place(uplink.product, route.from_exchange, route.key)
        return [self._pull(uplink, route, place, durable=route.durable)]

    def _make_own_bridge(self, route: Route) -> list[Step]:
        """What a pushed static route sends waits in a queue of its own."""
        queue = self._own_bridge(route)
        arguments = {"x-expires": route.expires_ms}
        changes = self._desk.make_queue(route.vhost, queue, durable=route.durable, arguments=arguments)
        key = (route.key, NO_ARGUMENTS)
        return [*changes, *self._desk.rebind(route.vhost, route.from_exchange, queue, [key], [])]

    def _own_bridge(self, route: Route) -> str:
        """The queue at this node of an exchange route that it pushes."""
        name = pushed_bridge_name if route.kind == "dynamic" else bridge_name
        return name(self.node, route.name)

    def _pull(self, uplink: Uplink, route: Route, place: Place, *, durable: bool = False) -> Change:
        return self._carriers.open(uplink.link.name, route.name, asks.pull(uplink.conn, route, place, durable=durable))

    def _push(self, uplink: Uplink, route: Route) -> Change:
        queue = route.queue if route.kind == "queue" else self._own_bridge(route)
        return self._carriers.open(uplink.link.name, route.name, asks.push(uplink, route, self.node, queue))

    # for people

    def _pushed_keys(self, route: Route) -> int:
        if not _is_pushed(route):
            return 0
        return len(self._desk.keys_of_queue(route.vhost, route.from_exchange, self._own_bridge(route)))

    def _route_state(self, route: Route) -> tuple[str, str]:
        """State and cause."""
        uplink = self._uplinks[route.link]
        carriers = self._carriers.of(route.name)
        announcer = self._reflections.get(route.name) if uplink.is_weft else None
        state, cause = "waiting", f"link {route.link}: {uplink.cause}"
        if carriers:
            state = carriers[0].state
            way = "from" if route.direction == "pull" else "to"
            cause = carriers[0].cause or (announcer.cause if announcer else f"{way} {uplink.peer_name}")
        elif uplink.state == "operational":
            state = "comparing" if announcer or route.kind == "dynamic" else "refused"
            cause = announcer.cause if announcer else self._causes.get(route.name, "")
        if route.name in self._followers:
            cause = (carriers[0].cause if carriers else "") or self._followers.cause(route.name)
        return state, cause

    def _route_row(self, route: Route) -> dict[str, Any]:
        uplink = self._uplinks[route.link]
        announcer = self._reflections.get(route.name)
        state, cause = self._route_state(route)
        return {
            **to_table(route),
            "state": state,
            "cause": cause,
            "peer": uplink.peer_name,
            "sync": 1,  # no message waits for others to be acknowledged
            "keys": announcer.keys if announcer else self._pushed_keys(route),
            "mended": announcer.mended if announcer else 0,
            "conn": uplink.conn,
            "numbers": [carrier.ask.link for carrier in self._carriers.of(route.name)],
        }


def _is_pushed(route: Route) -> bool:
    return route.kind == "dynamic" and route.direction == "push"


def _is_reflected(route: Route) -> bool:
    """Does a weft node at the other end keep a queue for it, bound by the keys it is told?"""
    return route.kind != "queue" and route.direction == "pull"


def _is_agreed(route: Route) -> bool:
    """Do weft nodes speak about its keys before anything flows?"""
    return route.kind == "dynamic" or _is_reflected(route)
