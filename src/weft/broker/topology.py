"""The controller of topology: what exists, and who may change it.

Owns the tables of every virtual host and what dies with which connection or link.
TopologyRequested, AttachRequested, AddressRequested and the ends of links, connections and queues come in; changes go
out.
It must never see a message, and never answer before what it promises is stored.
Each request is decided by a rule file (`queues`, `exchanges`, `bindings`, `links`); here it is saved, applied and
answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from weft.broker import dynamic, links
from weft.broker.access import Access, Caller, Kind
from weft.broker.addresses import resolve
from weft.broker.arguments import ALL_EXCHANGE_TYPES
from weft.broker.attaching import Attaching
from weft.broker.bindings import change_binding
from weft.broker.exchanges import declare_exchange, delete_exchange
from weft.broker.outcome import Counts, Outcome
from weft.broker.policies import IGNORED, Applied, check_policy, compile_policy
from weft.broker.queues import declare_queue, delete_queue
from weft.broker.settings import TopologySettings
from weft.broker.tables import Drop, Edit, Put, Record, Tables, Watch, save_edits
from weft.broker.taps import set_tap
from weft.model.changes import Accept, AcceptLink, Change, CreateVhost, Refuse, SetAddress
from weft.model.errors import Corrupt, Refused, Unavailable
from weft.model.events import (
    AddressRequested,
    AttachRequested,
    BindingChange,
    ConnectionClosed,
    Event,
    ExchangeDeclare,
    ExchangeDelete,
    LinkClosed,
    OpenRequested,
    Operation,
    QueueDeclare,
    QueueDelete,
    QueueUnused,
    Table,
    TopologyRequested,
)
from weft.store import Binding, Exchange, Queue, ResourcePolicy, Store

Claim = Callable[[str, AttachRequested, AcceptLink], AcceptLink]


class Topology:
    """Decides on exchanges, queues, bindings and links."""

    exchange_types: ClassVar[frozenset[str]] = ALL_EXCHANGE_TYPES
    idle_keys: ClassVar[frozenset[str]] = IGNORED
    """Keys of policies that are kept and do nothing."""

    def __init__(self, store: Store, access: Access, counts: Counts, settings: TopologySettings | None = None) -> None:
        """`counts` tells (ready, unsettled, consumers) of a queue, as the engine's `queue_stats` does."""
        self.settings = settings or TopologySettings()
        self._store = store
        self._access = access
        self._counts = counts
        self.watch: Watch | None = None
        """Told of every binding that is made or undone from now on."""
        self._vhosts = {name: self._new_tables(name) for name in access.vhosts()}
        self._containers: dict[int, str] = {}
        self._held: dict[int, set[tuple[str, str]]] = {}
        self._ends = dynamic.Ends()
        self.claim: Claim = lambda _vhost, _event, link: link
        """Whoever answers at some addresses itself may change where an accepted link ends."""
        self.on_policies: Callable[[], None] = lambda: None
        """Called when a policy holds everywhere, or nowhere any more."""
        self.on_edits: Callable[[list[tuple[bool, Record]]], None] = lambda _: None
        """Told of what was made (True) or dropped, once it is stored."""
        self.appear: Callable[[str, str], list[Change]] = lambda _vhost, _address: []
        """Makes what is at an address of the node's own (it begins with `$`) when it is first asked for."""
        self._load()

    def start(self) -> list[Change]:
        """Everything that exists, for an engine that was just born."""
        return [row for tables in self._vhosts.values() for row in (CreateVhost(tables.vhost), *tables.rows())]

    wants = frozenset(
        {
            TopologyRequested,
            AttachRequested,
            AddressRequested,
            LinkClosed,
            QueueUnused,
            OpenRequested,
            ConnectionClosed,
        }
    )

    def on_events(self, events: Sequence[Event], now_ns: int) -> list[Change]:  # noqa: ARG002 - time is the kernel's
        """Answer what is about topology; leave the rest to others."""
        changes: list[Change] = []
        for event in events:
            match event:
                case TopologyRequested():
                    changes += self._on_topology(event)
                case AttachRequested():
                    changes += self._on_attach(event)
                case AddressRequested():
                    changes += self._on_address(event)
                case LinkClosed():
                    changes += self._on_link_closed(event)
                case QueueUnused():
                    changes += self._on_queue_unused(event)
                case OpenRequested():
                    self._containers[event.conn] = event.container
                case ConnectionClosed():
                    changes += self._on_connection_closed(event.conn)
        return self._synced(changes)

    def _synced(self, changes: list[Change]) -> list[Change]:
        """These changes, once they are on disk. If the disk fails, what was promised is taken back."""
        try:
            self._store.sync()
        except Unavailable as error:
            text = f"INTERNAL_ERROR - {error}"
            return [Refuse(c.request, 541, text) if isinstance(c, Accept | AcceptLink) else c for c in changes]
        return changes

    # requests

    def _on_topology(self, event: TopologyRequested) -> list[Change]:
        try:
            tables, caller = self._caller(event.principal, event.conn)
            outcome = self._decide(tables, caller, event.operation)
            changes = self._commit(tables, outcome.edits)
        except Refused as refused:
            return [Refuse(event.request, refused.code, str(refused))]
        answer = Accept(event.request, name=outcome.name, messages=outcome.messages, consumers=outcome.consumers)
        return [*changes, *outcome.changes, answer]

    def _decide(self, tables: Tables, caller: Caller, operation: Operation) -> Outcome:
        match operation:
            case QueueDeclare():
                return declare_queue(tables, caller, operation, self._counts)
            case QueueDelete():
                return delete_queue(tables, caller, operation, self._counts)
            case ExchangeDeclare():
                return declare_exchange(tables, caller, operation)
            case ExchangeDelete():
                return delete_exchange(tables, caller, operation)
            case BindingChange():
                return change_binding(tables, caller, operation)

    def _on_attach(self, event: AttachRequested) -> list[Change]:
        made: list[Change] = []
        try:
            tables, caller = self._caller(event.principal, event.conn)
            made = self._appear(tables, event.terminus.address or "")
            attaching = Attaching(tables, caller, self._containers.get(event.conn, ""), event)
            attached = links.attach(attaching, may_create=self.settings.auto_create_queues)
            changes = [*made, *self._commit(tables, attached.edits)]
        except Refused as refused:
            return [*made, Refuse(event.request, refused.code, str(refused))]
        name = attached.link.queue
        if attached.link.watch and name is not None and dynamic.is_watched(tables.queues.get(name)):
            self._ends.add(event.conn, tables.vhost, name, event.link)
        return [*changes, self.claim(tables.vhost, event, attached.link)]

    def container_of(self, conn: int) -> str:
        """What the peer of a connection calls itself."""
        return self._containers.get(conn, "")

    def _appear(self, tables: Tables, address: str) -> list[Change]:
        if address.startswith("$") and address not in tables.queues:
            return self.appear(tables.vhost, address)
        return []

    def _on_address(self, event: AddressRequested) -> list[Change]:
        try:
            tables, caller = self._caller(event.principal, event.conn)
            edits, row = links.resolve_to(tables, caller, event, may_create=self.settings.auto_create_queues)
            return [*self._commit(tables, edits), row]
        except Refused as refused:
            return [SetAddress(event.principal, event.address, None, code=refused.code, text=str(refused))]

    def _caller(self, principal: int, conn: int) -> tuple[Tables, Caller]:
        _, vhost = self._access.identity(principal)
        return self._tables(vhost), Caller(self._access, principal, conn)

    def _tables(self, vhost: str) -> Tables:
        tables = self._vhosts.get(vhost)
        if tables is None:
            raise Refused(f"NOT_FOUND - no virtual host '{vhost}'", 404)
        return tables

    def _commit(self, tables: Tables, edits: Sequence[Edit]) -> list[Change]:
        """Store what is durable, then remember everything, then tell the kernel."""
        self._check_room(tables, edits)
        try:
            save_edits(self._store, edits)
        except Unavailable as error:
            raise Refused(f"INTERNAL_ERROR - {error}", 541) from None
        for edit in edits:
            if isinstance(edit.record, Queue):
                self._note_queue(edit.record, is_gone=isinstance(edit, Drop))
        changes, done = tables.apply(edits)
        self.on_edits(done)
        return changes

    def _check_room(self, tables: Tables, edits: Sequence[Edit]) -> None:
        limit = self._access.queues_max(tables.vhost)
        if limit is None:
            return
        queues = [edit.record.name for edit in edits if isinstance(edit, Put) and isinstance(edit.record, Queue)]
        new = [name for name in queues if name not in tables.queues]
        if new and len(tables.queues) + len(new) > limit:
            text = f"cannot declare queue '{new[0]}': queue limit in vhost '{tables.vhost}' ({limit}) is reached"
            raise Refused(f"PRECONDITION_FAILED - {text}", 406)

    def _note_queue(self, queue: Queue, *, is_gone: bool) -> None:
        key = queue.vhost, queue.name
        if is_gone:
            self._ends.forget_queue(*key)
        if queue.holder is None:
            return
        if not is_gone:
            self._held.setdefault(queue.holder, set()).add(key)
        elif queue.holder in self._held:
            self._held[queue.holder].discard(key)

    # ends

    def _on_connection_closed(self, conn: int) -> list[Change]:
        self._containers.pop(conn, None)
        changes: list[Change] = []
        for vhost, name in sorted(self._held.pop(conn, ())):
            changes += self._drop_queue(self._queue(vhost, name))
        for vhost, name, link in self._ends.pop_conn(conn):
            changes += self._on_link_closed(LinkClosed(conn, vhost, name, link, closed=True))
        return changes

    def _on_link_closed(self, event: LinkClosed) -> list[Change]:
        queue = self._queue(event.vhost, event.queue)
        if queue is None:
            return []
        self._ends.remove(event.conn, event.vhost, event.queue, event.link)
        links_left = self._ends.count(event.vhost, event.queue)
        ready, unsettled, consumers = self._counts(event.vhost, event.queue) or (0, 0, 0)
        if queue.subscription:
            is_over = event.closed and consumers == 0
        else:
            is_over = dynamic.ends_with_link(queue, links=links_left, messages=ready + unsettled)
        return self._drop_queue(queue) if is_over else []

    def _on_queue_unused(self, event: QueueUnused) -> list[Change]:
        """The kernel saw it unused; since then someone may have come."""
        queue = self._queue(event.vhost, event.queue)
        if queue is None:
            return []
        ready, unsettled, consumers = self._counts(event.vhost, event.queue) or (0, 0, 0)
        if event.cause == "empty":
            links_left = self._ends.count(event.vhost, event.queue)
            is_over = ready + unsettled == 0 and dynamic.ends_empty(queue, links=links_left)
        else:
            is_over = consumers == 0
        return self._drop_queue(queue) if is_over else []

    def _queue(self, vhost: str, name: str) -> Queue | None:
        tables = self._vhosts.get(vhost)
        return None if tables is None else tables.queues.get(name)

    def _drop_queue(self, queue: Queue | None) -> list[Change]:
        """Nobody asked, so nobody can be refused: a queue that cannot be deleted on disk stays until it ends again."""
        if queue is None:
            return []
        tables = self._vhosts[queue.vhost]
        try:
            return self._commit(tables, tables.drop_queue(queue))
        except Refused:
            return []

    # the node's own: the same rules, without permissions; Refused if they say no

    def declare_queue(
        self,
        vhost: str,
        name: str = "",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Table | None = None,
    ) -> list[Change]:
        """Make a queue; nothing if it exists as asked for."""
        return self._run(vhost, QueueDeclare(name, False, durable, False, auto_delete, arguments or {}))

    def delete_queue(self, vhost: str, name: str, *, if_unused: bool = False, if_empty: bool = False) -> list[Change]:
        """Delete a queue."""
        return self._run(vhost, QueueDelete(name, if_unused, if_empty))

    def declare_exchange(
        self,
        vhost: str,
        name: str,
        type_: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
    ) -> list[Change]:
        """Make an exchange; nothing if it exists as asked for."""
        flags = durable, auto_delete, internal
        return self._run(vhost, ExchangeDeclare(name, type_, False, *flags, arguments or {}))

    def delete_exchange(self, vhost: str, name: str, *, if_unused: bool = False) -> list[Change]:
        """Delete an exchange."""
        return self._run(vhost, ExchangeDelete(name, if_unused))

    def bind(
        self,
        vhost: str,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: Kind = "queue",
        arguments: Table | None = None,
    ) -> list[Change]:
        """bind(source, topic, target)."""
        return self._run(vhost, BindingChange("bind", kind, source, destination, routing_key, arguments or {}))

    def unbind(
        self,
        vhost: str,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: Kind = "queue",
        arguments: Table | None = None,
    ) -> list[Change]:
        """unbind(source, topic, target)."""
        return self._run(vhost, BindingChange("unbind", kind, source, destination, routing_key, arguments or {}))

    def tap(self, vhost: str, source: str, stream: str | None, *, kind: Kind = "exchange") -> list[Change]:
        """Copy whatever an exchange routes, or a queue is offered, into a stream; None ends it."""
        tables = self._tables(vhost)
        return self._synced(self._commit(tables, set_tap(tables, kind, source, stream)))

    def add_vhost(self, name: str) -> list[Change]:
        """Make a virtual host with its predeclared exchanges; nothing if it exists."""
        changes = self._access.add_vhost(name)
        if name in self._vhosts:
            return changes
        tables = self._vhosts[name] = self._new_tables(name)
        return [*changes, *tables.rows()]

    def delete_vhost(self, name: str) -> list[Change]:
        """Delete a virtual host with everything in it; its connections are closed."""
        changes = self._access.delete_vhost(name)
        self._vhosts.pop(name).clear()
        return changes

    def set_policy(self, policy: ResourcePolicy) -> Iterator[list[Change]]:
        """Set a policy, or replace it. It holds for what is made from now on, and with each part of the changes for
        more of what is there; with many queues, let others have their turn between two parts.
        """
        self.check_policy(policy)
        tables = self._tables(policy.vhost)
        tables.policies.check_count(policy)
        with self._store.transaction():
            self._store.put_policy(policy)
        self._store.sync()
        return self._applied(tables.set_policy(policy))

    def check_policy(self, policy: ResourcePolicy) -> None:
        """Refused or ConfigError if it makes no sense, wherever it is to be set."""
        check_policy(policy)
        compile_policy(self._access.pattern, policy)

    def clear_policy(self, vhost: str, name: str, *, operator: bool = False) -> Iterator[list[Change]]:
        """Forget a policy; what it changed is as it was declared, or as the next policy says. In parts as well."""
        tables = self._tables(vhost)
        policy = tables.policies.get(name, operator=operator)
        if policy is None:
            raise Refused(f"NOT_FOUND - no policy '{name}' in vhost '{vhost}'", 404)
        with self._store.transaction():
            self._store.delete_policy(policy)
        self._store.sync()
        return self._applied(tables.clear_policy(policy))

    def _applied(self, parts: Iterator[list[Change]]) -> Iterator[list[Change]]:
        yield from parts
        self.on_policies()

    def policies(self, vhost: str) -> list[ResourcePolicy]:
        """Every policy of a virtual host, those of operators included."""
        return list(self._tables(vhost).policies)

    def count_applied(self, policy: ResourcePolicy) -> tuple[int, int]:
        """Queues and exchanges that a policy applies to now."""
        return self._tables(policy.vhost).assigned.count(policy)

    def applied(self, to: Queue | Exchange) -> Applied:
        """Which policies apply to a queue or an exchange, and what they come to."""
        return self._tables(to.vhost).policies.applied(to)

    def vhosts(self) -> list[str]:
        """Every virtual host."""
        return list(self._vhosts)

    def queues(self, vhost: str) -> list[Queue]:
        """Every queue of a virtual host."""
        return list(self._tables(vhost).queues.values())

    def exchanges(self, vhost: str) -> list[Exchange]:
        """Every exchange of a virtual host, but the default one."""
        return list(self._tables(vhost).exchanges.values())

    def bindings(self, vhost: str) -> list[Binding]:
        """Every binding of a virtual host, but those of the default exchange."""
        return list(self._tables(vhost).bindings)

    def find_queue(self, vhost: str, name: str) -> Queue | None:
        """A queue as it was declared."""
        return self._queue(vhost, name)

    def find_exchange(self, vhost: str, name: str) -> Exchange | None:
        """An exchange as it was declared."""
        tables = self._vhosts.get(vhost)
        return None if tables is None else tables.exchanges.get(name)

    def count_bindings(self, vhost: str, exchange: str) -> int:
        """How many bindings lead away from this exchange?"""
        tables = self._vhosts.get(vhost)
        return 0 if tables is None else len(tables.bindings.of_source(exchange))

    def resolve(self, vhost: str, address: str) -> tuple[str, str]:
        """The exchange and routing key that an existing address stands for; Refused(404) if there is none."""
        tables = self._tables(vhost)
        place = resolve(tables, address)
        if place.exchange is not None:
            return place.exchange, place.routing_key or ""
        return "", tables.queue(place.queue or "").name

    def tables(self, vhost: str) -> Tables:
        """What exists in a virtual host, to be read; Refused if there is no such host."""
        return self._tables(vhost)

    def run(self, vhost: str, operations: Iterable[Operation], *, sync: bool = True) -> list[Change]:
        """Many operations that do not depend on each other, stored together: all or none. Without `sync` the caller
        owes one of the store's.
        """
        tables = self._tables(vhost)
        caller = Caller(self._access)
        outcomes = [self._decide(tables, caller, operation) for operation in operations]
        changes = self._commit(tables, [edit for outcome in outcomes for edit in outcome.edits])
        changes += (change for outcome in outcomes for change in outcome.changes)
        return self._synced(changes) if sync else changes

    def held(self, vhost: str, queue: str) -> int | None:
        """Messages of a queue, ready and unsettled; None if there is no such queue."""
        if self._queue(vhost, queue) is None:
            return None
        ready, unsettled, _ = self._counts(vhost, queue) or (0, 0, 0)
        return ready + unsettled

    def _new_tables(self, vhost: str) -> Tables:
        return Tables(vhost, self._access.pattern, self._on_binding)

    def _run(self, vhost: str, operation: Operation) -> list[Change]:
        return self.run(vhost, [operation])

    def _on_binding(self, binding: Binding, is_bound: bool) -> None:
        if self.watch is not None:
            self.watch(binding, is_bound)

    def _load(self) -> None:
        try:
            for exchange in self._store.exchanges():
                self._vhosts[exchange.vhost].exchanges[exchange.name] = exchange
            for queue in self._store.queues():
                self._vhosts[queue.vhost].queues[queue.name] = queue
            for binding in self._store.bindings():
                self._vhosts[binding.vhost].load_binding(binding)
            for policy in self._store.policies():
                self._vhosts[policy.vhost].policies.put(policy)
        except KeyError as error:
            raise Corrupt(f"stored definitions name {error}, which they do not define") from None
