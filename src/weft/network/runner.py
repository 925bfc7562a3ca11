"""A node's place in the fabric: runs what federation decides, on the node's loop.

Owns the timers, dials and control messages behind `weft.federation`, and which links and routes are stored. Steps come
from the controller; changes go to the driver, dials to the network, posts into queues of this node.
It must decide nothing: whatever needs a rule is asked of the controller.
Rule: steps of one decision are carried out in order, changes before posts and dials (docs/decisions/0010).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from time import monotonic_ns
from typing import Any

from weft.federation import Federation, Joined, Left, Link, Post, Route, Step, control, link_of, route_of, to_table
from weft.federation.desk import Desk
from weft.federation.followers import Mirror
from weft.model.actions import Action
from weft.model.changes import Change
from weft.model.errors import ConfigError, Refused, RemoteProtocolError, WeftError
from weft.model.events import (
    ConnectionClosed,
    DialFailed,
    Dialled,
    Event,
    LinkAttached,
    LinkDetached,
    PeerOpened,
)
from weft.network.voices import Voice
from weft.node.driver import Driver
from weft.node.local import Message
from weft.store import Store

LOG = logging.getLogger("weft.network")

VHOST = "/"
LINK, ROUTE = "link", "route"
FLUSH_S = 0.01
"""Bindings that change within this time of each other travel together."""
CONTROL_CREDIT = 100
_OWN = Post | Joined | Left | Mirror


class Network:
    """Links and routes of a running node. It is a controller of the driver, too."""

    def __init__(self, federation: Federation, desk: Desk, store: Store) -> None:
        self.federation = federation
        self.desk = desk
        self._listening: set[str] = set()
        self.on_joined: Callable[[str], None] = lambda _node: None
        self.on_left: Callable[[str], None] = lambda _node: None
        self.on_link: Callable[[], None] = lambda: None
        """Called when there are more links."""
        self.on_unlink: Callable[[str], None] = lambda _link: None
        """Called before a link is taken away: what the node itself has put on it must go first."""
        self.on_turn: Callable[[], None] = lambda: None
        """Called when links or routes may have changed their state."""
        self.others: dict[str, Callable[[control.Said, Voice], None]] = {}
        """Takers of control messages that are not federation's, by their op."""
        self.voice: Callable[[int, str], Voice] = lambda _conn, _vhost: Voice.NOBODY
        """How far is believed what comes by a connection to `$fabric` of a virtual host?"""
        self._stranger: int | None = None
        """The last connection that was not believed."""
        self._store = store
        self._configured: set[tuple[str, str]] = set()
        self._held: set[tuple[str, str]] = set()
        """Links and routes of relays and policies."""
        self._orphans: list[Route] = []
        """Stored routes whose link is not there."""
        self._driver: Driver | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flush_due = False
        self._conns: dict[int, tuple[str, str]] = {}
        """Neighbours that linked to this node, and the virtual host they came to, by their connection."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._mirrors: list[Mirror] = []
        """What waits to be carried out, one after the other: the last one has the last word."""
        self._is_mirroring = False

    # life

    def start(self, driver: Driver) -> None:
        """Begin to connect; definitions of the store first."""
        self._driver = driver
        for table in self._store.objects(LINK).values():
            self._do(self.federation.put_link(link_of(table), monotonic_ns()))
        for table in self._store.objects(ROUTE).values():
            self._restore_route(route_of(table))
        self._rearm()

    def _restore_orphans(self) -> None:
        orphans, self._orphans = self._orphans, []
        for route in orphans:
            self._restore_route(route)

    def _restore_route(self, route: Route) -> None:
        try:
            self._do(self.federation.put_route(route, _now()))
        except Refused:
            self._orphans.append(route)  # its link may be in the configuration file, or a relay's

    def appear(self, vhost: str, address: str) -> list[Change]:
        """The queue for control messages in a virtual host, when somebody asks for it first."""
        if address != control.ADDRESS or vhost in self._listening or self._driver is None:
            return []
        self._listening.add(vhost)
        asyncio.get_running_loop().call_soon(self.spawn, self._listen(vhost))
        return self.desk.make_queue(vhost, control.ADDRESS, durable=False, arguments={})

    async def stop(self) -> None:
        """Dial no more."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._driver = None

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run something until it ends or the node does."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # what an operator wants

    def configure(self, links: Sequence[Mapping[str, Any]], routes: Sequence[Mapping[str, Any]]) -> None:
        """Have exactly these links and routes of a configuration file, beside those made at run time."""
        wanted_links = [link_of(table) for table in links]
        wanted_routes = [route_of(table) for table in routes]
        names = {(LINK, link.name) for link in wanted_links} | {(ROUTE, route.name) for route in wanted_routes}
        for kind, name in sorted(names & self._held):
            raise ConfigError(f"{kind} '{name}': a relay or a policy has one of this name, give it another")
        gone = self._configured - names
        self._refuse_carrying(gone)
        for kind, name in sorted(gone, reverse=True):  # routes before the links under them
            self._do(self.federation.remove_route(name) if kind == ROUTE else self.federation.remove_link(name, _now()))
        self._configured = names
        for link in wanted_links:
            self._do(self.federation.put_link(link, _now()))
        self._restore_orphans()
        for route in self._orphans:
            LOG.warning("route %s rests: there is no link %s", route.name, route.link)
        for route in wanted_routes:
            try:
                self._do(self.federation.put_route(route, _now()))
            except Refused as refused:
                raise ConfigError(str(refused)) from None
        self.on_link()

    def _refuse_carrying(self, gone: set[tuple[str, str]]) -> None:
        """Links that are to go must carry nothing that stays: seen before anything is changed."""
        links = {name for kind, name in gone if kind == LINK}
        for link in sorted(links):
            self.on_unlink(link)
        for record in self.federation.records():
            if isinstance(record, Route) and record.link in links and (ROUTE, record.name) not in gone:
                raise ConfigError(f"link '{record.link}' carries route '{record.name}', which is not in the file")

    def add_link(self, link: Link) -> None:
        """Make a link, or change it."""
        self._refuse_configured(LINK, link.name)
        known = self.federation.link(link.name)
        steps = self.federation.put_link(link, _now())
        self._keep(LINK, link, known)
        self._do(steps)
        self.on_link()

    def remove_link(self, name: str) -> None:
        """Take a link away."""
        self._refuse_configured(LINK, name)
        self.on_unlink(name)
        self._do(self.federation.remove_link(name, _now()))
        self._forget(LINK, name)

    def add_route(self, route: Route) -> None:
        """Make a route, or change it."""
        self._refuse_configured(ROUTE, route.name)
        known = self.federation.route(route.name)
        steps = self.federation.put_route(route, _now())
        if route.durable and (LINK, route.link) not in self._configured | self._held:
            self._keep(LINK, self.federation.make_durable(route.link), None)  # what survives needs what it stands on
        self._keep(ROUTE, route, known)
        self._do(steps)

    def remove_route(self, name: str) -> None:
        """Take a route away."""
        self._refuse_configured(ROUTE, name)
        self._do(self.federation.remove_route(name))
        self._forget(ROUTE, name)

    def has_link(self, name: str) -> bool:
        """Is there such a link?"""
        return self.federation.link(name) is not None

    def hold(self, link: Link | None, routes: Sequence[Route]) -> None:
        """Have a link and its routes that something else stands for, which also remembers them."""
        names = {(ROUTE, route.name) for route in routes} | ({(LINK, link.name)} if link is not None else set())
        known = {(LINK if isinstance(record, Link) else ROUTE, record.name) for record in self.federation.records()}
        for kind, name in sorted((names & known) - self._held):
            raise Refused(f"there is a {kind} '{name}' already", 409)
        if link is not None:
            self._do(self.federation.put_link(link, _now()))
            self._restore_orphans()
        self._held |= names
        for route in routes:
            self._do(self.federation.put_route(route, _now()))

    def let_go(self, link: Link | None, routes: Sequence[Route]) -> None:
        """Have them no more: all of them, or none if the link carries others."""
        if link is not None:
            self.on_unlink(link.name)
            carried = {row["name"] for row in self.federation.routes() if row["link"] == link.name}
            others = carried - {route.name for route in routes}
            if others:
                raise Refused(f"link '{link.name}' carries other routes: {', '.join(sorted(others))}", 406)
        for route in routes:
            self._do(self.federation.remove_route(route.name))
            self._held.discard((ROUTE, route.name))
        if link is not None:
            self._do(self.federation.remove_link(link.name, _now()))
            self._held.discard((LINK, link.name))

    def _refuse_configured(self, kind: str, name: str) -> None:
        if (kind, name) in self._configured:
            raise Refused(f"{kind} '{name}' is in the configuration file: change it there", 406)
        if (kind, name) in self._held:
            raise Refused(f"{kind} '{name}' belongs to something else: change that", 406)

    def _keep(self, kind: str, record: Link | Route, known: Link | Route | None) -> None:
        """Remember a record, or forget what it was before if it is to be remembered no more."""
        if record.durable:
            with self._store.transaction():
                self._store.put_object(kind, record.name, to_table(record))
            self._store.sync()
        elif known is not None and known.durable:
            self._forget(kind, record.name)

    def _forget(self, kind: str, name: str) -> None:
        with self._store.transaction():
            self._store.delete_object(kind, name)
        self._store.sync()

    def apply(self, changes: Sequence[Change]) -> None:
        """Make changes of the broker's; only on the loop's thread."""
        if self._driver is not None:
            self._driver.apply(changes)

    def publish(self, vhost: str, exchange: str, key: str, body: bytes, properties: dict[str, Any]) -> None:
        """Publish a message of the node's own, soon."""
        if self._driver is not None:
            self.spawn(self._publish(self._driver, vhost, exchange, key, body, properties))

    async def _publish(self, driver: Driver, *message: Any) -> None:
        try:
            await driver.local.send(*message)
        except WeftError as error:
            LOG.warning("a message of the node's own was not published: %s", error)

    # what happens

    wants = frozenset({Dialled, DialFailed, PeerOpened, ConnectionClosed, LinkAttached, LinkDetached})

    def on_events(self, events: Sequence[Event], now_ns: int) -> list[Change | Action]:
        """As a controller of the driver: what is the driver's is answered, posts follow in the next turn."""
        if not any(self._is_ours(event) for event in events):
            return []
        steps: list[Step] = self.federation.on_events(events, now_ns)
        if any(isinstance(event, PeerOpened) for event in events):
            steps = [*self.appear(VHOST, control.ADDRESS), *steps]  # what the peer answers arrives there
        steps += self._lost_neighbours(events)
        rest = [step for step in steps if isinstance(step, _OWN)]
        if self._driver is not None:
            asyncio.get_running_loop().call_soon(self._do, rest)
        return [step for step in steps if not isinstance(step, _OWN)]

    def on_binding(self, vhost: str, exchange: str, destination: str, key: tuple[str, str], is_bound: bool) -> None:
        """A binding was made or undone here."""
        self.federation.on_binding(vhost, exchange, destination, key, is_bound)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_due and self._driver is not None:
            self._flush_due = True
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _is_ours(self, event: Event) -> bool:
        if isinstance(event, ConnectionClosed):  # clients come and go, which moves nothing here
            return event.conn in self._conns or self.federation.is_linked(event.conn)
        return type(event) in self.wants

    def _lost_neighbours(self, events: Sequence[Event]) -> list[Step]:
        conns = [event.conn for event in events if isinstance(event, ConnectionClosed) and event.conn in self._conns]
        gone = dict(self._conns.pop(conn) for conn in conns)
        others = dict(self._conns.values())
        for node in gone:
            self.federation.forget_neighbour(node, others.get(node))
        return [Left(node) for node in gone if node not in self.federation.neighbours()]

    def tell(self, node: str, bodies: Sequence[bytes]) -> None:
        """Send control messages to a neighbour."""
        self._do(self.federation.tell(node, bodies))

    def _flush(self) -> None:
        self._flush_due = False
        self._do(self.federation.flush(_now()))

    def _do(self, steps: Sequence[Step]) -> None:
        driver = self._driver
        if driver is None:
            return
        driver.apply([step for step in steps if not isinstance(step, _OWN)])
        for step in steps:
            match step:
                case Post(vhost, queue, body):
                    driver.local.put(vhost, queue, body)
                case Joined(node):
                    self.on_joined(node)
                case Left(node):
                    self.on_left(node)
                case Mirror():
                    self._mirror_soon(step)
        if self.federation.is_dirty:
            self._flush_soon()
        self.on_turn()
        self._rearm()

    def _mirror_soon(self, mirror: Mirror) -> None:
        # A newer one has all that an older one of its route has: a management that hangs must not gather them.
        self._mirrors = [m for m in self._mirrors if m.route != mirror.route or m.is_over]
        self._mirrors.append(mirror)
        if not self._is_mirroring:
            self._is_mirroring = True
            self.spawn(self._mirror_all())

    async def _mirror_all(self) -> None:
        from weft.network.mirrors import carry_out  # a client of HTTP is 12 MB that few nodes need

        try:
            while self._mirrors:
                mirror = self._mirrors.pop(0)
                cause, is_good = await carry_out(mirror)
                self._do(self.federation.on_mirrored(mirror.route, cause, is_good, _now()))
        finally:
            self._is_mirroring = False

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.001, (self.federation.due_ns - _now()) / 1e9)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(self.federation.tick(_now()))

    async def _listen(self, vhost: str) -> None:
        driver = self._driver
        try:
            if driver is not None:
                async for message in driver.local.subscribe(vhost, control.ADDRESS, CONTROL_CREDIT):
                    self._on_control(driver, vhost, message)
        finally:
            self._listening.discard(vhost)  # the queue went, with its virtual host say: it may come again

    def _on_control(self, driver: Driver, vhost: str, message: Message) -> None:
        try:
            said = control.decode(message.body)
            voice = self.voice(message.publisher, vhost)
            if voice is Voice.NOBODY:
                # Once, not for each: whoever may publish could fill the log otherwise.
                if message.publisher != self._stranger:
                    LOG.warning("%s of %s came by someone who may not speak for nodes", said.op, said.node)
                self._stranger = message.publisher
                return
            other = self.others.get(said.op)
            if other is not None:
                other(said, voice)
                return
            if said.op == "hello" and message.publisher:
                if not driver.engine.rows("connections", [message.publisher], ["conn"]):
                    return  # it has gone since, and nobody would ever take its name away
                self._conns[message.publisher] = said.node, vhost
            self._do(self.federation.on_control(vhost, said, _now()))
        except RemoteProtocolError as error:
            LOG.warning("a peer's control message was not understood: %s", error)
        except Refused as error:
            LOG.warning("a peer's control message could not be followed: %s", error)
        except Exception:
            # A mistake of ours: the next message is heard all the same.
            LOG.exception("a control message of a peer was dropped")
        finally:
            message.accept()


def _now() -> int:
    return monotonic_ns()
