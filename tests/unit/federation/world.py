"""A fabric of controllers in one list: what they ask for happens at once, in order, unless a test cuts it.

Owns, per node, the tables a broker would have and the queues of control messages; dialling, attaching and posting are
steps of one deterministic loop. It must decide nothing that a controller should.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.federation import Federation, Joined, Left, Link, Post, Route, control
from weft.federation.followers import Mirror
from weft.federation.reach import Key
from weft.model.actions import Dial, Hangup
from weft.model.changes import Change, CloseConnection, CloseLink, OpenLink
from weft.model.errors import Refused
from weft.model.events import ConnectionClosed, DialFailed, Dialled, Event, LinkAttached, LinkDetached, PeerOpened

STEPS_MAX = 200_000
PLAIN = "{}"


class Tables:
    """What a broker has, for one node."""

    def __init__(self) -> None:
        self.exchanges = {"x": "direct"}
        self.queues: set[str] = {control.ADDRESS}
        self.messages: dict[str, int] = {}
        self.bindings: dict[tuple[str, str, Key], None] = {}
        self.federation: Federation | None = None
        self.transactions = 0

    def exchange_type(self, vhost: str, exchange: str) -> str | None:
        return self.exchanges.get(exchange)

    def keys_of_exchange(self, vhost: str, exchange: str) -> list[tuple[str, str, Key]]:
        return [("queue", queue, key) for source, queue, key in self.bindings if source == exchange]

    def keys_of_queue(self, vhost: str, exchange: str, queue: str) -> list[Key]:
        return [key for source, name, key in self.bindings if (source, name) == (exchange, queue)]

    def held(self, vhost: str, queue: str) -> int | None:
        return self.messages.get(queue, 0) if queue in self.queues else None

    def make_queue(self, vhost: str, queue: str, *, durable: bool, arguments: object) -> list[Change]:
        self.queues.add(queue)
        return []

    def drop_queue(self, vhost: str, queue: str) -> list[Change]:
        self.queues.discard(queue)
        for binding in [b for b in self.bindings if b[1] == queue]:
            self._undo(*binding)
        return []

    def rebind(self, vhost: str, exchange: str, queue: str, bind: Iterable[Key], unbind: Iterable[Key]) -> list[Change]:
        if queue not in self.queues:
            raise Refused(f"no queue {queue}", 404)
        self.transactions += 1
        for key in bind:
            self._make(exchange, queue, key)
        for key in unbind:
            self._undo(exchange, queue, key)
        return []

    def bind(self, queue: str, key: str, exchange: str = "x") -> None:
        self.queues.add(queue)
        self._make(exchange, queue, (key, PLAIN))

    def unbind(self, queue: str, key: str, exchange: str = "x") -> None:
        self._undo(exchange, queue, (key, PLAIN))

    def _make(self, exchange: str, queue: str, key: Key) -> None:
        if (exchange, queue, key) not in self.bindings:
            self.bindings[exchange, queue, key] = None
            if self.federation:
                self.federation.on_binding("/", exchange, queue, key, True)

    def _undo(self, exchange: str, queue: str, key: Key) -> None:
        if self.bindings.pop((exchange, queue, key), 0) is None and self.federation:
            self.federation.on_binding("/", exchange, queue, key, False)


@dataclass
class Socket:
    """A connection of one node to another, by the id each knows."""

    owner: str
    peer: str
    dial: int
    links: dict[int, OpenLink] = field(default_factory=dict)


class World:
    """Nodes, the network between them, and time."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.now_ns = 0
        self.nodes: dict[str, Federation] = {}
        self.tables: dict[str, Tables] = {}
        self.up: set[str] = set()
        self.cut: set[tuple[str, str]] = set()
        self.rabbits: set[str] = set()
        """Peers that are no nodes of ours."""
        self.mirrors: list[Mirror] = []
        self.refuses = ""
        """What a rabbit's management says, if it says no."""
        self.sockets: dict[int, Socket] = {}
        self.queues: dict[tuple[str, str], deque[bytes]] = {}
        self.posts = 0
        self._conn = 0
        self._work: deque[tuple[str, object]] = deque()

    def add(self, name: str) -> Tables:
        tables = self.tables.setdefault(name, Tables())
        federation = Federation(name, tables, self.random.random, self.now_ns // 1_000_000)
        tables.federation = federation
        self.nodes[name] = federation
        self.up.add(name)
        return tables

    def link(self, owner: str, *peers: str, name: str = "") -> str:
        name = name or f"to-{peers[0]}"
        self.do(owner, self.nodes[owner].put_link(Link(name, tuple(f"amqp://{p}" for p in peers)), self.now_ns))
        return name

    def dynamic(self, destination: str, source: str, exchange: str = "x") -> Route:
        """A dynamic route that brings messages from source to destination, over a link of the destination's own."""
        link = self.link(destination, source)
        route = Route(f"{link}-{exchange}", link, "dynamic", exchange)
        self.do(destination, self.nodes[destination].put_route(route, self.now_ns))
        return route

    def pushed(self, source: str, *destinations: str, exchange: str = "x") -> Route:
        """A dynamic route in the same direction, over a link of the source's own that leads to one of these."""
        link = self.link(source, *destinations)
        route = Route(f"{link}-{exchange}-push", link, "dynamic", exchange, direction="push")
        self.do(source, self.nodes[source].put_route(route, self.now_ns))
        return route

    def do(self, node: str, steps: Iterable[object]) -> None:
        self._work.extend((node, step) for step in steps)

    # the network

    def kill(self, name: str, *, keep_tables: bool = True) -> None:
        """The process is gone: its tables are on disk, its transient queues are not."""
        self.up.discard(name)
        for conn in [c for c, s in self.sockets.items() if name in (s.owner, s.peer)]:
            self._close(conn, "the peer is gone")
        for place in [place for place in self.queues if place[0] == name]:
            del self.queues[place]
        tables = self.tables[name]
        tables.queues = {q for q in tables.queues if not q.startswith("weft.fabric.")}
        if not keep_tables:
            self.tables[name] = Tables()
        tables.federation = None

    def break_link(self, one: str, other: str) -> None:
        self.cut |= {(one, other), (other, one)}
        for conn in [c for c, s in self.sockets.items() if {s.owner, s.peer} == {one, other}]:
            self._close(conn, "cut")

    def heal(self) -> None:
        self.cut.clear()

    def settle(self, seconds: float = 1.0) -> None:
        """Let everything happen that is due until this much time has passed."""
        end = self.now_ns + int(seconds * 1e9)
        for _ in range(STEPS_MAX):
            if self._work:
                self._step(*self._work.popleft())
            elif self._deliver() or self._flush():
                pass
            else:
                due = min((f.due_ns for n, f in self.nodes.items() if n in self.up), default=end)
                if due > end:
                    self.now_ns = end
                    return
                self.now_ns = max(self.now_ns + 1, due)
                for name in sorted(self.up):
                    self.do(name, self.nodes[name].tick(self.now_ns))
        raise AssertionError("the fabric does not come to rest")

    def _flush(self) -> bool:
        for name in sorted(self.up):
            self.do(name, self.nodes[name].flush(self.now_ns))
        return bool(self._work)

    def _step(self, node: str, step: object) -> None:
        if node not in self.up:
            return
        match step:
            case Dial():
                self._dial(node, step)
            case Post():
                self.posts += 1
                if step.queue in self.tables[node].queues:
                    self.queues.setdefault((node, step.queue), deque()).append(step.body)
            case OpenLink():
                self._attach(node, step)
            case CloseLink():
                if step.conn in self.sockets:
                    self.sockets[step.conn].links.pop(step.link, None)
            case CloseConnection():
                self._close(step.conn, "closed")
            case Hangup():
                for conn in [c for c, s in self.sockets.items() if (s.owner, s.dial) == (node, step.dial)]:
                    del self.sockets[conn]
            case Mirror():
                self.mirrors.append(step)
                told = self.refuses or f"{len(step.keys)} bindings"
                self.do(node, self.nodes[node].on_mirrored(step.route, told, not self.refuses, self.now_ns))
            case Joined() | Left():
                pass
            case _:
                raise AssertionError(f"nobody does {step}")

    def _dial(self, node: str, dial: Dial) -> None:
        peer = dial.host
        if peer not in self.up | self.rabbits or (node, peer) in self.cut:
            self._tell(node, DialFailed(dial.dial, "refused"))
            return
        self._conn += 1
        self.sockets[self._conn] = Socket(node, peer, dial.dial)
        self._tell(node, Dialled(dial.dial, self._conn))
        is_ours = peer not in self.rabbits
        product = {"product": "weft" if is_ours else "RabbitMQ"}
        self._tell(node, PeerOpened(self._conn, peer, peer if is_ours else "", product))

    def _attach(self, node: str, ask: OpenLink) -> None:
        socket = self.sockets.get(ask.conn)
        if socket is None:
            return
        if ask.address.startswith("/exchange/"):
            socket.links[ask.link] = ask
            self._tell(node, LinkAttached(ask.conn, ask.link, ask.address, socket.peer))
            return
        if socket.peer in self.rabbits:
            socket.links[ask.link] = ask
            self._tell(node, LinkAttached(ask.conn, ask.link, ask.address, ""))
            return
        queue = ask.address.removeprefix("/amq/queue/").replace("%3A", ":").replace("%24", "$")
        if queue in self.tables[socket.peer].queues:
            socket.links[ask.link] = ask
            self._tell(node, LinkAttached(ask.conn, ask.link, queue, socket.peer))
        else:
            self._tell(node, LinkDetached(ask.conn, ask.link, "amqp:not-found", queue, True))

    def _tell(self, node: str, event: Event) -> None:
        self.do(node, self.nodes[node].on_events([event], self.now_ns))

    def _close(self, conn: int, cause: str) -> None:
        socket = self.sockets.pop(conn, None)
        if socket is not None and socket.owner in self.up:
            self._tell(socket.owner, ConnectionClosed(conn, 0, cause))

    def _deliver(self) -> bool:
        """One control message over one link, or into its node."""
        for name in sorted(self.up):
            waiting = self.queues.get((name, control.ADDRESS))
            if waiting:
                said = control.decode(waiting.popleft())
                self.do(name, self.nodes[name].on_control("/", said, self.now_ns))
                return True
        for socket in self.sockets.values():
            for ask in socket.links.values():
                here, there = socket.owner, socket.peer
                if ask.direction == "push" and ask.address == control.ADDRESS:
                    source, target = (here, ask.queue or ""), (there, control.ADDRESS)
                elif ask.direction == "pull" and ask.queue == control.ADDRESS:
                    source, target = (there, f"weft.fabric.for.{here}"), (here, control.ADDRESS)
                else:
                    continue
                waiting = self.queues.get(source)
                if waiting:
                    self.queues.setdefault(target, deque()).append(waiting.popleft())
                    return True
        return False

    # what can be seen

    def reflected(self, source: str, destination: str, exchange: str = "x") -> set[str]:
        """Keys bound at a source for a destination, that pulls or is pushed to."""
        queues = (f"weft.bridge.{destination}:", f"weft.bridge.>{source}:to-{destination}-")
        bindings = self.tables[source].bindings
        return {key[0] for (of, queue, key) in bindings if of == exchange and queue.startswith(queues)}

    def pushed_keys(self, source: str) -> dict[str, set[str]]:
        """Keys bound at a source for what it pushes itself, by queue."""
        found: dict[str, set[str]] = {}
        for _, queue, key in self.tables[source].bindings:
            if queue.startswith(f"weft.bridge.>{source}:"):
                found.setdefault(queue, set()).add(key[0])
        return found

    def state(self, node: str) -> str:
        return str(self.nodes[node].routes()[0]["state"])
