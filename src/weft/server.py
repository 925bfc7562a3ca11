"""A whole node: engine, driver and controllers put together, for the command and for programs that embed it.

Owns the wiring, and the order of birth and end: folder, store, engine, controllers, driver, listeners. A
`Configuration` comes in; sockets and calls from this process are served until `stop`.
It must never decide what a controller should, and never touch a message beyond handing it over.
Rule: this is the only module that knows node and controllers both (ARCHITECTURE.md).
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from ssl import SSLContext
from time import monotonic_ns, time_ns
from typing import Any, Literal, Self

from weft import __version__
from weft._kernel import ArrowStream, Engine
from weft.broker import Topology, TopologySettings
from weft.config import Configuration, Listen, User, node_name_default, validate_node_name
from weft.config.load import PORT
from weft.container import Container, NodeType
from weft.directory import Directory
from weft.federation import link_of, route_of
from weft.management import Host, Management
from weft.model.changes import Change
from weft.model.errors import LocalProtocolError
from weft.model.limits import Limits
from weft.net.endpoint import parse_endpoint
from weft.net.listen import Listener, listen
from weft.net.memory import listen_here
from weft.net.own_address import own_address
from weft.net.tls import Identity
from weft.network import Membership, Network
from weft.node.driver import Driver
from weft.node.folder import Folder
from weft.node.local import CREDIT_DEFAULT, Receiver
from weft.node.memory import memory_bytes_default
from weft.policy import Policy, PolicySettings
from weft.policy.passwords import hash_password
from weft.policy.scram import make_verifier
from weft.store import ResourcePolicy, Store

VHOST = "/"
MESSAGES = "messages"
DEFINITIONS = "definitions.sqlite"
NUMBERS = "numbers"
NUMBERS_PER_LIFE = 2**40
"""Messages that a node numbers between two starts, at most: a million a second for twelve days."""
NS_PER_MS = 1_000_000
TABLES = ("connections", "consumers", "queues", "streams", "exchanges", "links")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a running node is made of."""

    engine: Engine
    policy: Policy
    topology: Topology
    driver: Driver
    management: Management
    membership: Membership


class Node:
    """A messaging node in this process: `async with weft.Node() as node`.

    Without `listen` it opens no socket, without `data_dir` it touches no disk. Call it from its loop's thread only.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        listen: str | Sequence[str] = (),
        data_dir: Path | str | None = None,
        limits: Limits | None = None,
        configuration: Configuration | None = None,
        forget: Collection[int] = (),
    ) -> None:
        """What is given here wins over the same in `configuration`.

        What is stored for queues that the definitions do not know is dropped at the start if `forget` has their number.
        """
        configuration = configuration or Configuration()
        texts = [listen] if isinstance(listen, str) else listen
        self._configuration = replace(
            configuration,
            name=validate_node_name(name or configuration.name or node_name_default()),
            listen=tuple(Listen(parse_endpoint(text, PORT)) for text in texts) or configuration.listen,
            data_dir=Path(data_dir) if data_dir is not None else configuration.data_dir,
            limits=limits or configuration.limits,
        )
        self.listeners: list[Listener] = []
        self._identities: list[Identity] = []
        self.http_port = 0
        """Where management is served over HTTP; 0 if it is not."""
        self._life = AsyncExitStack()
        self._parts: _Parts | None = None
        self._forget_numbers = frozenset(forget)
        self._unclaimed: dict[str, Any] = {}
        self._name_before = self.name
        self._container = Container(self)

    # life

    async def start(self) -> None:
        """Serve from now on; raises Unavailable or ConfigError, and then nothing is left behind."""
        if self._parts is not None:
            raise LocalProtocolError("the node was started already")
        async with AsyncExitStack() as life:
            configuration = self._configuration
            store = self._open_store(life)
            settings = configuration.settings
            users = await asyncio.to_thread(_hash_passwords, configuration.users, scram=settings.scram)
            first_number = _first_number(store, time_ns())
            engine = self._make_engine(first_number)
            entry = PolicySettings(guest=settings.guest, anonymous=settings.anonymous, scram=settings.scram)
            policy = Policy(store, entry, submit=self._submit)
            life.callback(policy.close)
            creation = TopologySettings(auto_create_queues=settings.auto_create_queues)
            topology = Topology(store, policy, engine.queue_stats, creation)
            topology.claim = self._container.claim
            membership = Membership(
                self.name, topology, store, configuration.directory_url, epoch=first_number // NS_PER_MS
            )
            driver = Driver(
                engine,
                [policy, topology, self._container, membership.network],
                connections_max=configuration.limits.connections_max,
                on_opened=policy.connection_opened,
            )
            management = self._make_management(engine, policy, topology, driver, store)
            driver.add_controller(management.peers)
            self._parts = _Parts(engine, policy, topology, driver, management, membership)
            life.callback(self._forget)
            life.push_async_callback(driver.stop)
            life.push_async_callback(self._container.close)
            driver.apply([*policy.start(), *topology.start()])
            self._unclaimed = _let_go(engine, store, self._forget_numbers)
            driver.apply(_configure(policy, topology, configuration, users))
            await driver.recover()
            life.push_async_callback(management.stop)
            management.start()
            life.push_async_callback(membership.stop)
            await membership.start(management.manager.host, management)
            membership.network.configure(configuration.links, configuration.routes)
            life.callback(self._stop_listening)
            life.callback(listen_here(self.name, driver.accept))
            for place in configuration.listen:
                self.listeners.append(await listen(place.endpoint, driver.accept, self._tls(place)))
            if self.listeners:
                plain = [endpoint for one in self.listeners if not one.tls for endpoint in one.endpoints]
                await membership.announce([f"amqp://{replace(e, host=own_address(e.host))}" for e in plain])
            if configuration.http is not None:
                await self._serve_http(configuration.http, life)
            if configuration.tracing is not None:
                self._trace(*configuration.tracing, life)
            self._life = life.pop_all()

    async def stop(self) -> None:
        """Take no more connections, close those that are there in their protocol's own way, end."""
        await self._life.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def reload(self, configuration: Configuration) -> None:
        """Take users, virtual hosts, permissions and policies from a new configuration; what it names no more goes.
        Certificates of listeners are read again from the files they came from.
        """
        parts = self._running
        for identity in self._identities:
            identity.renew()
        users = await asyncio.to_thread(_hash_passwords, configuration.users, scram=parts.policy.settings.scram)
        parts.driver.apply(_configure(parts.policy, parts.topology, configuration, users))
        parts.driver.apply(_remove(parts.policy, parts.topology, self._configuration, configuration))
        parts.management.serve_vhosts()
        parts.membership.network.configure(configuration.links, configuration.routes)
        self._configuration = replace(
            self._configuration,
            users=configuration.users,
            vhosts=configuration.vhosts,
            permissions=configuration.permissions,
            policies=configuration.policies,
            links=configuration.links,
            routes=configuration.routes,
        )

    def quiesce(self) -> None:
        """Stop delivery from every queue; publishers go on and queues grow."""
        self._running.driver.quiesce(True)

    def resume(self) -> None:
        """Deliver again."""
        self._running.driver.quiesce(False)

    # what it is

    @property
    def name(self) -> str:
        """The node's name."""
        return str(self._configuration.name)

    @property
    def ports(self) -> tuple[int, ...]:
        """The TCP ports it listens on, in the order of `listen`."""
        return tuple(endpoint.port for listener in self.listeners for endpoint in listener.endpoints)

    def snapshot(self) -> dict[str, Any]:
        """Counters, and the tables of connections, consumers, queues and exchanges."""
        engine = self._running.engine
        return {"node": self.name, "stats": engine.stats(), **{table: engine.inspect(table) for table in TABLES}}

    @property
    def management(self) -> Management:
        """What answers questions about the node and its objects; other parts register their classes here."""
        return self._running.management

    def recovered(self) -> dict[str, Any]:
        """What was on disk at the start: messages, queues, segments, what of them was torn, damaged or not ours, and
        the name of the node that they were of.
        """
        return self._running.engine.recovered() | self._unclaimed | {"node": self._name_before}

    def read_log(
        self,
        stream: str,
        start: int = 0,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        vhost: str = VHOST,
        **options: Any,
    ) -> ArrowStream:
        """The messages of a stream, or those that wait in a durable queue, as Arrow: as they are at this moment.

        Whoever pulls the batches reads the files, so it may be another thread; docs/reference/columns.md.
        """
        return self._running.engine.read_log(vhost, stream, start, end, columns, **options)

    # messages

    async def send(self, address: str, body: bytes | str, *, vhost: str = VHOST, **properties: Any) -> int:
        """Send a message; how many queues took it.

        The address is a queue, made if it does not exist, or `exchange/key`. Properties are those of AMQP 0-9-1:
        `content_type`, `headers`, `delivery_mode`, `priority`, `correlation_id`, `reply_to`, `expiration`, ….
        """
        exchange, key = self._place(vhost, address)
        data = body.encode() if isinstance(body, str) else body
        return await self._running.driver.local.send(vhost, exchange, key, data, properties)

    def receive(
        self, address: str, *, credit: int = CREDIT_DEFAULT, offset: int | str | None = None, vhost: str = VHOST
    ) -> Receiver:
        """Messages from a queue, or from a subscription to `exchange/key`; at most `credit` unsettled at a time.

        A stream is read from `offset` on: a number, `first`, `last`, `next` (the default), or an age such as `1h`.
        """
        exchange, key = self._place(vhost, address)
        queue = key
        if exchange:
            queue = f"local-{secrets.token_urlsafe(12)}"
            self.declare_queue(queue, durable=False, auto_delete=True, vhost=vhost)
            self.bind(exchange, queue, key, vhost=vhost)
        return self._running.driver.local.subscribe(vhost, queue, credit, offset)

    def _place(self, vhost: str, address: str) -> tuple[str, str]:
        parts = self._running
        if parts.engine.queue_stats(vhost, address) is None:
            exchange, slash, key = address.partition("/")
            if slash and any(known.name == exchange for known in parts.topology.exchanges(vhost)):
                return exchange, key
            self.declare_queue(address, vhost=vhost)
        return "", address

    # topology: by the same rules as for peers; Refused if they say no

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: Mapping[str, object] | None = None,
        vhost: str = VHOST,
    ) -> None:
        """Make a queue, or see that it exists as asked for."""
        parts = self._running
        options = {"durable": durable, "auto_delete": auto_delete}
        parts.driver.apply(parts.topology.declare_queue(vhost, name, **options, arguments=dict(arguments or {})))

    def delete_queue(self, name: str, *, vhost: str = VHOST) -> None:
        """Delete a queue and what is in it."""
        parts = self._running
        parts.driver.apply(parts.topology.delete_queue(vhost, name))

    def declare_exchange(
        self,
        name: str,
        type: Literal["direct", "fanout", "topic", "headers"] = "direct",  # noqa: A002 - the protocol's own word
        *,
        durable: bool = True,
        arguments: Mapping[str, object] | None = None,
        vhost: str = VHOST,
    ) -> None:
        """Make an exchange, or see that it exists as asked for."""
        parts = self._running
        table = dict(arguments or {})
        parts.driver.apply(parts.topology.declare_exchange(vhost, name, type, durable=durable, arguments=table))

    def delete_exchange(self, name: str, *, vhost: str = VHOST) -> None:
        """Delete an exchange and its bindings."""
        parts = self._running
        parts.driver.apply(parts.topology.delete_exchange(vhost, name))

    def bind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: Literal["queue", "exchange"] = "queue",
        arguments: Mapping[str, object] | None = None,
        vhost: str = VHOST,
    ) -> None:
        """Let messages of an exchange that match go on to a queue, or to another exchange."""
        parts = self._running
        table = dict(arguments or {})
        parts.driver.apply(parts.topology.bind(vhost, source, destination, routing_key, kind=kind, arguments=table))

    def unbind(
        self,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: Literal["queue", "exchange"] = "queue",
        arguments: Mapping[str, object] | None = None,
        vhost: str = VHOST,
    ) -> None:
        """Take back the `bind` with the same arguments."""
        parts = self._running
        table = dict(arguments or {})
        parts.driver.apply(parts.topology.unbind(vhost, source, destination, routing_key, kind=kind, arguments=table))

    # the fabric

    @property
    def network(self) -> Network:
        """Links and routes to other nodes."""
        return self._running.membership.network

    @property
    def directory(self) -> Directory:
        """Who is where in the fabric."""
        return self._running.membership.directory

    def add_link(self, name: str, urls: str | Sequence[str], **options: Any) -> None:
        """Keep a connection to another node; see `weft.federation.Link` for options."""
        self.network.add_link(link_of({"name": name, "urls": urls, **options}))

    def add_route(self, link: str, kind: str, **options: Any) -> str:
        """Carry messages over a link; the route's name. See `weft.federation.Route` for options."""
        route = route_of({"link": link, "kind": kind, **options})
        self.network.add_route(route)
        return route.name

    # addresses that a program answers itself

    def register(self, address: str, kind: NodeType, *, vhost: str = VHOST) -> None:
        """Let a `NodeType` answer at an address."""
        self._container.register(address, kind, vhost)

    async def unregister(self, address: str, *, vhost: str = VHOST) -> None:
        """End such an address."""
        await self._container.unregister(address, vhost)

    def tap(
        self, source: str, stream: str, *, kind: Literal["exchange", "queue"] = "exchange", vhost: str = VHOST
    ) -> None:
        """Copy whatever an exchange routes, or a queue is offered, into a stream; the flow itself does not change."""
        parts = self._running
        parts.driver.apply(parts.topology.tap(vhost, source, stream, kind=kind))

    def untap(self, source: str, *, kind: Literal["exchange", "queue"] = "exchange", vhost: str = VHOST) -> None:
        """Copy nothing any more."""
        parts = self._running
        parts.driver.apply(parts.topology.tap(vhost, source, None, kind=kind))

    # parts

    @property
    def _running(self) -> _Parts:
        if self._parts is None:
            raise LocalProtocolError("the node does not run: use it inside `async with`, or call start()")
        return self._parts

    def _submit(self, changes: Sequence[Change]) -> None:
        """Late answers, from any thread; a node that has stopped needs none."""
        parts = self._parts
        if parts is not None:
            parts.driver.submit(changes)

    def _forget(self) -> None:
        self._parts = None

    def _stop_listening(self) -> None:
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()

    def _open_store(self, life: AsyncExitStack) -> Store:
        folder = self._configuration.data_dir
        if folder is None:
            store = Store()
        else:
            life.callback(Folder(folder).close)
            store = Store(folder / DEFINITIONS)
        life.callback(store.close)
        with store.transaction():
            self._name_before = store.put_node_name(self.name)
        return store

    def _make_management(
        self, engine: Engine, policy: Policy, topology: Topology, driver: Driver, store: Store
    ) -> Management:
        def listeners() -> list[tuple[str, int, bool]]:
            return [
                (endpoint.host, endpoint.port, listener.tls)
                for listener in self.listeners
                for endpoint in listener.endpoints
            ]

        host = Host(
            self.name,
            __version__,
            engine,
            driver,
            topology,
            policy,
            store,
            self._configuration.data_dir,
            listeners,
            lambda: {str(identity.certificate): identity.expires_s for identity in self._identities},
            self._stop_listening,
        )
        settings = self._configuration
        return Management(host, statistics_s=settings.statistics_s, log_level=settings.log_level)

    def _trace(self, endpoint: str, one_in: int, life: AsyncExitStack) -> None:
        from weft.management.tracing import Tracing  # its client of HTTP is only for those who trace

        tracing = Tracing(self._running.engine, self.name, __version__, endpoint, one_in)
        tracing.start()
        life.push_async_callback(tracing.stop)

    async def _serve_http(self, place: Listen, life: AsyncExitStack) -> None:
        from weft.management.http import WebServer  # a node without HTTP starts faster without it
        from weft.node.websocket import PATH, WebSockets

        server = WebServer(self.management.manager, self.management.peers)
        sockets = WebSockets(self._running.driver.accept, self._configuration.http_origins)
        server.add(PATH, sockets.serve, sockets.close)
        life.push_async_callback(server.close)
        await server.start(place.endpoint.host, place.endpoint.port, self._tls(place))
        self.http_port = server.port

    def _tls(self, place: Listen) -> SSLContext | None:
        """The context of a listener that has a certificate."""
        if place.tls_cert is None or place.tls_key is None:
            return None
        identity = Identity(place.tls_cert, place.tls_key, place.tls_ca)
        self._identities.append(identity)
        return identity.context

    def _make_engine(self, first_number: int) -> Engine:
        limits = self._configuration.limits
        if limits.memory_bytes_max == 0:
            limits = replace(limits, memory_bytes_max=memory_bytes_default())
        seed = secrets.randbits(64)
        now_ns, wall_ns = monotonic_ns(), time_ns()
        folder = self._configuration.data_dir
        data_dir = None if folder is None else str(folder / MESSAGES)
        times = {"now_ns": now_ns, "wall_ns": wall_ns}
        level = self._configuration.settings.durability
        names = {"node": self.name, "version": __version__}
        more = {"data_dir": data_dir, "durability": level, "first_number": first_number}
        return Engine(limits, seed=seed, **names, **times, **more)  # type: ignore[arg-type]


def _first_number(store: Store, wall_ns: int) -> int:
    """From where messages and announcements are numbered in this life of a node: from the time, as nobody needs one
    per nanosecond, but above all of the life before, whatever its clock was set to since. Others know by such a number
    what they have had already.
    """
    known = store.objects(NUMBERS).get("next", {}).get("number", 0)
    first = max(wall_ns, known if isinstance(known, int) else 0)
    store.put_object(NUMBERS, "next", {"number": first + NUMBERS_PER_LIFE})
    return first


def _hash_passwords(users: Sequence[User], *, scram: bool) -> list[User]:
    """Users with hashes only; slow, so not for the loop's thread."""

    def hashed(user: User, password: str) -> User:
        encoded = make_verifier(password).encode() if scram else hash_password(password)
        return replace(user, password=None, password_hash=encoded)

    return [user if user.password is None else hashed(user, user.password) for user in users]


def _let_go(engine: Engine, store: Store, forget: frozenset[int]) -> dict[str, Any]:
    """What is on disk of queues that were deleted just before the end goes, and what its owner gave up; what nobody can
    account for stays.
    """
    deleted, unclaimed = store.deleted_queues(), dict(engine.unclaimed())
    forgotten = (forget & unclaimed.keys()) - deleted
    # The journal's own word may come too late for a crash: the next start finds this one.
    with store.transaction():
        store.bury(sorted(forgotten))
    gone = (deleted & unclaimed.keys()) | forgotten
    engine.drop_unclaimed(list(gone))
    unknown = {number: messages for number, messages in sorted(unclaimed.items()) if number not in gone}
    return {
        "dropped": sum(unclaimed[number] for number in gone - forgotten),
        "forgotten": sum(unclaimed[number] for number in forgotten),
        "unclaimed": sum(unknown.values()),
        "unknown": unknown,
        "definitions": store.found,
    }


def _configure(policy: Policy, topology: Topology, configuration: Configuration, users: list[User]) -> list[Change]:
    """Make what a configuration names, or refuse it before anything is made."""
    settings = [ResourcePolicy(**asdict(row)) for row in configuration.policies]
    for setting in settings:
        topology.check_policy(setting)
    changes: list[Change] = []
    for vhost in configuration.vhosts:
        changes += topology.add_vhost(vhost)
    for user in users:
        changes += policy.add_user(user.name, password_hash=user.password_hash, tags=user.tags)
    for row in configuration.permissions:
        patterns = {"configure": row.configure, "write": row.write, "read": row.read}
        changes += policy.set_permission(row.user, row.vhost, **patterns)
    for setting in settings:
        changes += itertools.chain.from_iterable(topology.set_policy(setting))
    return changes


def _remove(policy: Policy, topology: Topology, old: Configuration, new: Configuration) -> list[Change]:
    """Take away users, permissions and policies that a configuration named and its successor does not."""
    changes: list[Change] = []
    settings = {(row.vhost, row.name, row.operator) for row in new.policies}
    for vhost, name, operator in sorted({(row.vhost, row.name, row.operator) for row in old.policies} - settings):
        if any(row.name == name and row.operator == operator for row in topology.policies(vhost)):
            changes += itertools.chain.from_iterable(topology.clear_policy(vhost, name, operator=operator))
    kept = {(row.user, row.vhost) for row in new.permissions}
    gone = {user.name for user in old.users} - {user.name for user in new.users}
    for row in old.permissions:
        if row.user not in gone and (row.user, row.vhost) not in kept:
            changes += policy.clear_permission(row.user, row.vhost)
    for name in sorted(gone):
        changes += policy.delete_user(name)
    return changes
