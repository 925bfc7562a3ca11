"""What exists in one virtual host, and how it changes.

Owns the tables of exchanges, queues and bindings, and the two edits (`Put`, `Drop`) that are the only way to change
them.
Decisions read the tables and return edits; edits are first written to the store, then applied here, which gives the
kernel's changes.
It must not decide: any list of edits is carried out, in order.
Rule: what the store and the kernel drop along with a queue or an exchange (its bindings) is dropped along here too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from weft.broker.arguments import exchange_row, queue_row
from weft.broker.assigned import Assigned
from weft.broker.policies import Compile, Policies, effective
from weft.model.changes import Bind, Change, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Unbind
from weft.model.errors import Refused
from weft.store import Binding, Exchange, Queue, ResourcePolicy, Store

Record = Exchange | Queue | Binding

CHANGED_COUNT = 200
"""Objects that a changed policy is compared with at a time: a few milliseconds, then messages have their turn."""
PREDECLARED = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
}


@dataclass(frozen=True, slots=True)
class Put:
    """This is to exist."""

    record: Record
    durable: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """This is to be gone, with what hangs on it."""

    record: Record
    durable: bool


Edit = Put | Drop
_Identity = tuple[str, str, str, str, str]
_Key = TypeVar("_Key", str, tuple[str, str])


Watch = Callable[[Binding, bool], None]
"""Told of each binding that was made (True) or undone (False)."""


class Bindings:
    """Every binding of a virtual host, found by either end."""

    def __init__(self, watch: Watch | None = None) -> None:
        self._watch = watch
        self._by_source: dict[str, dict[_Identity, Binding]] = {}
        self._by_destination: dict[tuple[str, str], dict[_Identity, Binding]] = {}

    def __contains__(self, binding: Binding) -> bool:
        return self.get(binding) is not None

    def get(self, like: Binding) -> Binding | None:
        """The binding of this identity as it was made: the kernel's row has the arguments in that order."""
        return self._by_source.get(like.source, {}).get(like.identity)

    def __iter__(self) -> Iterator[Binding]:
        return chain.from_iterable(bindings.values() for bindings in self._by_source.values())

    def of_source(self, exchange: str) -> Collection[Binding]:
        """Bindings from an exchange."""
        return self._by_source.get(exchange, {}).values()

    def of_destination(self, kind: str, name: str) -> Collection[Binding]:
        """Bindings to a queue or an exchange."""
        return self._by_destination.get((kind, name), {}).values()

    def add(self, binding: Binding) -> None:
        identity = binding.identity
        self._by_source.setdefault(binding.source, {})[identity] = binding
        self._by_destination.setdefault((binding.kind, binding.destination), {})[identity] = binding
        if self._watch is not None:
            self._watch(binding, True)

    def remove(self, binding: Binding) -> None:
        identity = binding.identity
        _remove(self._by_source, binding.source, identity)
        _remove(self._by_destination, (binding.kind, binding.destination), identity)
        if self._watch is not None:
            self._watch(binding, False)


def _remove(index: dict[_Key, dict[_Identity, Binding]], key: _Key, identity: _Identity) -> None:
    rows = index.get(key, {})
    rows.pop(identity, None)
    if not rows:
        index.pop(key, None)


class Tables:
    """The topology of one virtual host."""

    def __init__(self, vhost: str, compile_pattern: Compile, watch: Watch | None = None) -> None:
        self.vhost = vhost
        self.policies = Policies(compile_pattern)
        self.assigned = Assigned()
        self.queues: dict[str, Queue] = {}
        self.bindings = Bindings(watch)
        self.exchanges = {name: Exchange(vhost, name, type_, durable=True) for name, type_ in PREDECLARED.items()}

    def queue(self, name: str) -> Queue:
        """The queue of this name, or Refused(404)."""
        queue = self.queues.get(name)
        if queue is None:
            raise Refused(f"NOT_FOUND - no queue '{name}' in vhost '{self.vhost}'", 404)
        return queue

    def exchange(self, name: str) -> Exchange:
        """The exchange of this name, or Refused(404)."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise Refused(f"NOT_FOUND - no exchange '{name}' in vhost '{self.vhost}'", 404)
        return exchange

    def rows(self) -> list[Change]:
        """Everything, as the kernel is told of it at start."""
        return [
            *(self.exchange_row(exchange) for exchange in self.exchanges.values()),
            *(self.queue_row(queue) for queue in self.queues.values()),
            *(_bind_row(binding) for binding in self.bindings),
        ]

    def load_binding(self, binding: Binding) -> None:
        """Add a stored binding; KeyError if an end is missing."""
        self._is_durable(binding)
        self.bindings.add(binding)

    # policies

    def queue_row(self, queue: Queue) -> DeclareQueue:
        """What the kernel is told of a queue."""
        applied = self.policies.applied(queue)
        self.assigned.note(queue, applied)
        return queue_row(effective(queue, applied))

    def exchange_row(self, exchange: Exchange) -> DeclareExchange:
        """What the kernel is told of an exchange."""
        applied = self.policies.applied(exchange)
        self.assigned.note(exchange, applied)
        return exchange_row(effective(exchange, applied))

    def set_policy(self, policy: ResourcePolicy) -> Iterator[list[Change]]:
        """Set a policy; whatever it changes, as the kernel is told of it, in parts."""
        before = self.policies.copy()
        self.policies.put(policy)
        return self._changed(before)

    def clear_policy(self, policy: ResourcePolicy) -> Iterator[list[Change]]:
        """Forget a policy; whatever that changes, as the kernel is told of it, in parts."""
        before = self.policies.copy()
        self.policies.remove(policy)
        return self._changed(before)

    def _changed(self, before: Policies) -> Iterator[list[Change]]:
        """Each part looks at what exists and applies by then, so that others may change both between two parts."""
        for table in (self.exchanges, self.queues):
            names = list(table)
            for start in range(0, len(names), CHANGED_COUNT):
                part = [table[name] for name in names[start : start + CHANGED_COUNT] if name in table]
                yield [self._row(to) for to in part if self._is_changed(before, to)]

    def _is_changed(self, before: Policies, to: Queue | Exchange) -> bool:
        applied = self.policies.applied(to)
        self.assigned.note(to, applied)
        return before.applied(to).definition != applied.definition

    def _row(self, to: Queue | Exchange) -> Change:
        return self.queue_row(to) if isinstance(to, Queue) else self.exchange_row(to)

    def clear(self) -> None:
        """The virtual host is gone, with everything in it: whoever still goes through it finds nothing."""
        self.queues.clear()
        self.exchanges.clear()
        self.assigned = Assigned()

    # edits

    def put_binding(self, binding: Binding, destination: Exchange | Queue) -> Put:
        """A binding lives as long as the more transient of its ends."""
        return Put(binding, self.exchanges[binding.source].durable and destination.durable)

    def drop_bindings(self, bindings: Collection[Binding], keep: str = "") -> list[Edit]:
        """Unbind; an auto-delete exchange that loses its last binding goes along, but for the one to keep."""
        return [*(Drop(binding, self._is_durable(binding)) for binding in bindings), *self._abandoned(bindings, keep)]

    def drop_queue(self, queue: Queue) -> list[Edit]:
        """Delete a queue, and the auto-delete exchanges only it was bound to."""
        return [Drop(queue, queue.durable), *self._abandoned(self.bindings.of_destination("queue", queue.name))]

    def drop_exchange(self, exchange: Exchange) -> list[Edit]:
        """Delete an exchange, and the auto-delete exchanges only it was bound to."""
        lost = self.bindings.of_destination("exchange", exchange.name)
        return [Drop(exchange, exchange.durable), *self._abandoned(lost, exchange.name)]

    def _is_durable(self, binding: Binding) -> bool:
        ends = self.exchanges if binding.kind == "exchange" else self.queues
        return self.exchanges[binding.source].durable and ends[binding.destination].durable

    def _abandoned(self, lost: Iterable[Binding], keep: str = "") -> list[Edit]:
        """Auto-delete exchanges that have no binding left when these are gone, and those that lose theirs by that."""
        drops: dict[str, Edit] = {}
        gone: set[_Identity] = set()
        pending = list(lost)
        while pending:
            gone.update(binding.identity for binding in pending)
            sources = {binding.source for binding in pending} - {keep, *drops}
            pending = []
            for source in sorted(sources):
                exchange = self.exchanges[source]
                bindings = self.bindings.of_source(source)
                if exchange.auto_delete and all(binding.identity in gone for binding in bindings):
                    drops[source] = Drop(exchange, exchange.durable)
                    pending += self.bindings.of_destination("exchange", source)
        return list(drops.values())

    def apply(self, edits: Sequence[Edit]) -> tuple[list[Change], list[tuple[bool, Record]]]:
        """Carry edits out; the same in the kernel's words, and all that was made (True) or is gone, in order."""
        changes: list[Change] = []
        done: list[tuple[bool, Record]] = []
        for edit in edits:
            if isinstance(edit, Put):
                changes.append(self._put(edit.record))
                done.append((True, edit.record))
            else:
                change, lost = self._drop(edit.record)
                changes.append(change)
                done += [*((False, binding) for binding in lost), (False, edit.record)]
        return changes, done

    def _put(self, record: Record) -> Change:
        if isinstance(record, Queue):
            self.queues[record.name] = record
            return self.queue_row(record)
        if isinstance(record, Exchange):
            self.exchanges[record.name] = record
            return self.exchange_row(record)
        self.bindings.add(record)
        return _bind_row(record)

    def _drop(self, record: Record) -> tuple[Change, list[Binding]]:
        """What the kernel is told, and the bindings that go along."""
        if isinstance(record, Queue):
            lost = self._drop_bindings(self.bindings.of_destination("queue", record.name))
            self.assigned.forget(self.queues.pop(record.name))
            return DeleteQueue(self.vhost, record.name), lost
        if isinstance(record, Exchange):
            lost = self._drop_bindings(self.bindings.of_source(record.name))
            lost += self._drop_bindings(self.bindings.of_destination("exchange", record.name))
            self.assigned.forget(self.exchanges.pop(record.name))
            return DeleteExchange(self.vhost, record.name), lost
        self.bindings.remove(record)
        ends = record.source, record.kind, record.destination
        return Unbind(self.vhost, *ends, record.routing_key, record.arguments), []

    def _drop_bindings(self, bindings: Iterable[Binding]) -> list[Binding]:
        lost = list(bindings)
        for binding in lost:
            self.bindings.remove(binding)
        return lost


def save_edits(store: Store, edits: Sequence[Edit]) -> None:
    """Write the durable ones of these edits, all or none."""
    durable = [edit for edit in edits if edit.durable]
    if durable:
        with store.transaction():
            for edit in durable:
                (_store_put if isinstance(edit, Put) else _store_drop)(store, edit.record)


def _store_put(store: Store, record: Record) -> None:
    if isinstance(record, Queue):
        store.put_queue(record)
    elif isinstance(record, Exchange):
        store.put_exchange(record)
    else:
        store.put_binding(record)


def _store_drop(store: Store, record: Record) -> None:
    if isinstance(record, Queue):
        store.delete_queue(record.vhost, record.name)
    elif isinstance(record, Exchange):
        store.delete_exchange(record.vhost, record.name)
    else:
        store.delete_binding(record)


def _bind_row(binding: Binding) -> Bind:
    ends = binding.source, binding.kind, binding.destination
    return Bind(binding.vhost, *ends, binding.routing_key, binding.arguments)
