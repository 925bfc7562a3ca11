"""The controller of federation: links kept up, routes carried, bindings reflected.

Owns the links and routes of this node and ties their parts together: `uplink` (connections), `carriers` (links of the
kernel), `announce` and `bridges` (the two halves of dynamic routes). Events, control messages and an operator's wishes
come in; changes for the kernel and actions for the node (`Dial`, `Post`) go out, in order.
It moves no message and opens no socket itself.
Rule: what is durable is stored before it is done; what a link carries is asked for again, and verified, each time it
comes up (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.federation import control
from weft.federation.addresses import exchange_address, queue_address
from weft.federation.announce import VERIFY_NS, Announcer
from weft.federation.bridges import PREFIX, Bridges, Reply, bridge_name
from weft.federation.carriers import Carrier, Carriers
from weft.federation.control import NO_ARGUMENTS, Said
from weft.federation.desk import Desk
from weft.federation.reach import Key, Reach
from weft.federation.records import Link, Route
from weft.federation.uplink import Uplink
from weft.model.actions import Dial, Hangup
from weft.model.changes import Change, CloseConnection, OpenLink
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

VHOST = "/"
"""Where this node's own control queues are."""
OUT = "weft.fabric.out."
"""Queue of control messages on their way to a peer, by link."""
FOR = "weft.fabric.for."
"""Queue of control messages that a neighbour fetches over its own link, by the neighbour's name."""
FOR_EXPIRES_MS = 60_000
CONTROL_CREDIT = 100
CONTROL_MESSAGES_MAX = 10_000
PEERS_MAX = 65_536


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


Step = Change | Dial | Hangup | Post | Joined


class Federation:
    """Decides on links and routes."""

    def __init__(self, node: str, desk: Desk, chance: Callable[[], float]) -> None:
        """`chance` gives a number from 0 to 1, as random.random does."""
        self.node = node
        self._desk = desk
        self._chance = chance
        self._uplinks: dict[str, Uplink] = {}
        self._by_conn: dict[int, Uplink] = {}
        self._by_dial: dict[int, Uplink] = {}
        self._dials = 0
        self._routes: dict[str, Route] = {}
        self._announcers: dict[str, Announcer] = {}
        self._carriers = Carriers(chance)
        self._reaches: dict[tuple[str, str], Reach] = {}
        self._bridges = Bridges(node, desk, self._reach)
        self._replies: dict[str, tuple[str, str]] = {}
        """(virtual host, queue) at this node by which a neighbour that linked to us is answered."""

    # what an operator wants

    def put_link(self, link: Link, now_ns: int) -> list[Step]:
        """Make a link, or change it; a changed one is connected anew."""
        steps: list[Step] = []
        known = self._uplinks.get(link.name)
        if known is not None:
            if known.link == link:
                return []
            steps += self._hang_up(known, now_ns)
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
        return self._hang_up(uplink, now_ns)

    def put_route(self, route: Route, now_ns: int) -> list[Step]:
        """Make a route, or change it."""
        if route.link not in self._uplinks:
            raise Refused(f"route '{route.name}' names link '{route.link}', which does not exist", 404)
        steps: list[Step] = []
        if route.name in self._routes:
            if self._routes[route.name] == route:
                return []
            steps += self.remove_route(route.name, now_ns)
        self._routes[route.name] = route
        if route.kind == "dynamic":
            reach = self._reach(route.vhost, route.exchange)
            self._announcers[route.name] = Announcer(self.node, route, reach)
        uplink = self._uplinks[route.link]
        if uplink.state == "operational":
            steps += self._start_route(uplink, route, now_ns)
        return steps

    def remove_route(self, name: str, now_ns: int) -> list[Step]:  # noqa: ARG002 - like its siblings
        """Take a route away, with what was made for it at both ends."""
        route = self._routes.pop(name, None)
        if route is None:
            raise Refused(f"no route '{name}'", 404)
        steps: list[Step] = [*self._carriers.close(name)]
        announcer = self._announcers.pop(name, None)
        if announcer is not None:
            steps += self._send(route.link, announcer.withdraw())
        if route.kind == "static" and route.direction == "push":
            steps += self._desk.drop_queue(route.vhost, bridge_name(self.node, name))
        return steps

    def links(self) -> list[dict[str, Any]]:
        """Every link with its state."""
        return [self._link_row(uplink) for uplink in self._uplinks.values()]

    def routes(self) -> list[dict[str, Any]]:
        """Every route with what is really flowing."""
        return [self._route_row(route) for route in self._routes.values()]

    def records(self) -> list[Link | Route]:
        """What was asked for: links, then routes."""
        return [*(uplink.link for uplink in self._uplinks.values()), *self._routes.values()]

    def bridges(self) -> list[dict[str, Any]]:
        """Queues kept here for the dynamic routes of others."""
        return self._bridges.rows()

    def link(self, name: str) -> Link | None:
        """A link as it was asked for."""
        uplink = self._uplinks.get(name)
        return None if uplink is None else uplink.link

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
        return [*steps, *self.flush()]

    def tick(self, now_ns: int) -> list[Step]:
        """Do what is due: attempts to connect and to attach, comparisons."""
        steps: list[Step] = []
        for uplink in self._uplinks.values():
            dial = uplink.tick(self._dials + 1, now_ns)
            if dial is not None:
                self._dials += 1
                self._by_dial[dial.dial] = uplink
                steps.append(dial)
        steps += self._carriers.tick(now_ns)
        for announcer in self._announcers.values():
            steps += self._send(announcer.route.link, announcer.verify(now_ns))
        return steps

    def due_ns(self, now_ns: int) -> int:
        """When `tick` wants to be called next."""
        dues = [uplink.due_ns for uplink in self._uplinks.values()]
        return min(due for due in (*dues, self._carriers.due_ns, now_ns + VERIFY_NS) if due is not None)

    def on_binding(self, vhost: str, exchange: str, destination: str, key: Key, is_bound: bool) -> None:
        """A binding was made or undone at this node; `flush` tells sources of it."""
        reach = self._reaches.get((vhost, exchange))
        if reach is None or destination.startswith(PREFIX):
            return
        if reach.bind(key) if is_bound else reach.unbind(key):
            self._mark(vhost, exchange, [key])

    def flush(self) -> list[Step]:
        """Tell sources what has changed in this turn."""
        steps: list[Step] = []
        for announcer in self._announcers.values():
            steps += self._send(announcer.route.link, announcer.flush())
        return steps

    def tell(self, node: str, bodies: Sequence[bytes]) -> list[Step]:
        """Send control messages to a neighbour; nothing if it is none."""
        for name, uplink in self._uplinks.items():
            if uplink.state == "operational" and uplink.peer_name == node and uplink.is_weft:
                return self._send(name, bodies)
        place = self._replies.get(node)
        return [] if place is None else [Post(*place, body) for body in bodies]

    def on_control(self, vhost: str, said: Said, now_ns: int) -> list[Step]:
        """A control message arrived in a virtual host of this node."""
        match said.op:
            case "hello":
                return self._on_hello(vhost, said)
            case "reflect":
                return self._reply(vhost, said, self._bridges.on_reflect(vhost, said))
            case "verify":
                return self._reply(vhost, said, self._bridges.on_verify(vhost, said))
            case "withdraw":
                return self._reply(vhost, said, self._bridges.on_withdraw(vhost, said))
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
        steps: list[Step] = []
        if uplink.is_weft:
            steps += self._open_control(uplink)
        for route in self._routes.values():
            if route.link == uplink.link.name and route.kind != "dynamic":
                steps += self._start_route(uplink, route, now_ns)
        return steps

    def _on_closed(self, event: ConnectionClosed, now_ns: int) -> list[Step]:
        uplink = self._by_conn.pop(event.conn, None)
        if uplink is None:
            return []
        self._by_dial.pop(uplink.dial, None)
        self._lose(uplink, event.cause)
        uplink.lost(event.cause, now_ns)
        return []

    def _lose(self, uplink: Uplink, cause: str) -> None:
        self._carriers.lose(uplink.link.name)
        for announcer in self._announcers.values():
            if announcer.route.link == uplink.link.name:
                announcer.stop(cause)

    def _hang_up(self, uplink: Uplink, now_ns: int) -> list[Step]:
        uplink.close(now_ns)
        self._lose(uplink, "the link was removed")
        self._by_conn.pop(uplink.conn, None)
        return [Hangup(uplink.dial)] if self._by_dial.pop(uplink.dial, None) is not None else []

    # the control channel

    def _open_control(self, uplink: Uplink) -> list[Step]:
        name, conn = uplink.link.name, uplink.conn
        queue = OUT + name
        arguments = {"x-max-length": CONTROL_MESSAGES_MAX}
        steps: list[Step] = [*self._desk.drop_queue(VHOST, queue)]
        steps += self._desk.make_queue(VHOST, queue, durable=False, arguments=arguments)
        out = OpenLink(conn, 0, f"fabric-out-{name}", "push", control.ADDRESS, vhost=VHOST, queue=queue)
        address = queue_address(uplink.product, FOR + self.node)
        back = OpenLink(
            conn,
            0,
            f"fabric-in-{name}",
            "pull",
            address,
            vhost=VHOST,
            queue=control.ADDRESS,
            credit=CONTROL_CREDIT,
        )
        steps += [self._carriers.open(name, f"out {name}", out), self._carriers.open(name, f"in {name}", back)]
        return [*steps, *self._send(name, [control.encode("hello", self.node)])]

    def _on_attached(self, carrier: Carrier, now_ns: int) -> list[Step]:
        if carrier.owner != f"in {carrier.uplink}":
            return []
        uplink = self._uplinks[carrier.uplink]
        steps: list[Step] = [Joined(uplink.peer_name)]
        for route in self._routes.values():
            if route.link == carrier.uplink and route.kind == "dynamic":
                steps += self._start_route(uplink, route, now_ns)
        return steps

    def _send(self, link: str, bodies: Sequence[bytes]) -> list[Step]:
        return [Post(VHOST, OUT + link, body) for body in bodies]

    def _on_hello(self, vhost: str, said: Said) -> list[Step]:
        if len(self._replies) >= PEERS_MAX:
            raise RemoteProtocolError(f"more than {PEERS_MAX} neighbours")
        queue = FOR + said.node
        self._replies[said.node] = (vhost, queue)
        arguments = {"x-expires": FOR_EXPIRES_MS, "x-max-length": CONTROL_MESSAGES_MAX}
        return [*self._desk.make_queue(vhost, queue, durable=False, arguments=arguments), Joined(said.node)]

    def forget_neighbour(self, node: str) -> None:
        """Its queue for answers is gone."""
        self._replies.pop(node, None)

    def _reply(self, vhost: str, said: Said, reply: Reply) -> list[Step]:
        steps: list[Step] = [*reply.changes]
        place = self._replies.get(said.node)
        if reply.answer is not None and place is not None:
            steps.append(Post(*place, reply.answer))
        if reply.touched:
            self._mark(vhost, said.text("exchange"), reply.touched)
        return [*steps, *self.flush()]

    def _on_answer(self, said: Said, now_ns: int) -> list[Step]:
        announcer = self._announcers.get(said.text("route"))
        if announcer is None:
            return []
        route = announcer.route
        uplink = self._uplinks[route.link]
        if said.op == "refused":
            return self._send(route.link, announcer.on_refused(said, now_ns))
        announcer.on_reflected(said)
        if not announcer.queue or self._carriers.of(route.name) or uplink.state != "operational":
            return []
        return [self._pull(uplink, route, queue_address(uplink.product, announcer.queue))]

    # routes

    def _start_route(self, uplink: Uplink, route: Route, now_ns: int) -> list[Step]:
        product = uplink.product
        announcer = self._announcers.get(route.name)
        if announcer is not None:
            if not uplink.is_weft:
                announcer.cause = f"{uplink.peer_name} is {product or 'no weft node'}: use static or queue routes"
                return []
            if not any(c.state == "flowing" for c in self._carriers.of(f"in {uplink.link.name}")):
                return []
            return self._send(route.link, announcer.start(uplink.peer_name, now_ns))
        if route.direction == "push":
            return self._push(uplink, route)
        if route.kind == "queue":
            return [self._pull(uplink, route, queue_address(product, route.queue))]
        address = exchange_address(product, route.from_exchange, route.key)
        return [self._pull(uplink, route, address, durable=route.durable)]

    def _pull(self, uplink: Uplink, route: Route, address: str, *, durable: bool = False) -> Change:
        key = route.key if route.kind == "queue" and route.key else None
        ask = OpenLink(
            uplink.conn,
            0,
            f"weft-{route.name}",
            "pull",
            address,
            vhost=route.vhost,
            exchange=route.exchange,
            routing_key=key,
            credit=route.credit,
            backlog_max=route.backlog_max or None,
            durable=durable,
            relay=True,
            # What no binding here wants is forgotten, as for any publisher; what was in a queue stays there.
            refusal="modify" if route.kind == "queue" else "accept",
        )
        return self._carriers.open(uplink.link.name, route.name, ask)

    def _push(self, uplink: Uplink, route: Route) -> list[Step]:
        steps: list[Step] = []
        queue = route.queue
        if route.kind == "static":
            queue = bridge_name(self.node, route.name)
            arguments = {"x-expires": route.expires_ms}
            steps += self._desk.make_queue(route.vhost, queue, durable=route.durable, arguments=arguments)
            steps += self._desk.rebind(route.vhost, route.from_exchange, queue, [(route.key, NO_ARGUMENTS)], [])
        key = route.key if route.kind == "queue" and route.key else None
        if route.exchange:
            address = exchange_address(uplink.product, route.exchange, key)
        else:
            address = queue_address(uplink.product, route.key)
        ask = OpenLink(
            uplink.conn,
            0,
            f"weft-{self.node}-{route.name}",
            "push",
            address,
            vhost=route.vhost,
            queue=queue,
            credit=route.credit,
            relay=True,
        )
        return [*steps, self._carriers.open(uplink.link.name, route.name, ask)]

    # keys

    def _reach(self, vhost: str, exchange: str) -> Reach:
        """The keys of an exchange; at first from what is bound now."""
        reach = self._reaches.get((vhost, exchange))
        if reach is None:
            reach = self._reaches[vhost, exchange] = Reach(self.node)
            for kind, destination, key in self._desk.keys_of_exchange(vhost, exchange):
                if kind == "exchange" or not destination.startswith(PREFIX):
                    reach.bind(key)
            for queue, keys in self._bridges.recall(vhost, exchange).items():
                reach.learn(queue, keys, ())
        return reach

    def _mark(self, vhost: str, exchange: str, keys: Sequence[Key]) -> None:
        for announcer in self._announcers.values():
            if (announcer.route.vhost, announcer.route.exchange) == (vhost, exchange):
                announcer.mark(keys)

    # for people

    def _link_row(self, uplink: Uplink) -> dict[str, Any]:
        return {
            "name": uplink.link.name,
            "state": uplink.state,
            "cause": uplink.cause,
            "peer": uplink.peer_name,
            "address": str(uplink.peer),
            "product": uplink.product,
            "role": uplink.link.role,
            "connects": uplink.connects,
            "durable": uplink.link.durable,
        }

    def _route_row(self, route: Route) -> dict[str, Any]:
        uplink = self._uplinks[route.link]
        carriers = self._carriers.of(route.name)
        announcer = self._announcers.get(route.name)
        state, cause = "waiting", f"link {route.link}: {uplink.cause}"
        if carriers:
            state = carriers[0].state
            cause = carriers[0].cause or (announcer.cause if announcer else f"from {uplink.peer_name}")
        elif uplink.state == "operational" and announcer is not None:
            state, cause = "comparing", announcer.cause
        return {
            "name": route.name,
            "link": route.link,
            "kind": route.kind,
            "direction": route.direction,
            "state": state,
            "cause": cause,
            "peer": uplink.peer_name,
            "exchange": route.exchange,
            "queue": route.queue,
            "key": route.key,
            "keys": announcer.keys if announcer else 0,
            "mended": announcer.mended if announcer else 0,
            "numbers": [carrier.ask.link for carrier in carriers],
        }
