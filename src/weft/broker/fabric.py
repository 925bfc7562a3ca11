"""The broker as other controllers of the fabric see it: queues and bindings made in their words.

Owns how a binding becomes a key (what of it the exchange looks at) and back. Names and keys come in, the kernel's
changes go out; every change of a binding is reported to whoever watches.
It must not know links, routes or peers, and applies the same rules as for anyone (`Topology.run`).
Rule: bindings that mean the same to an exchange are one key: a fanout exchange has a single one, only headers
exchanges look at arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from weft.broker.arguments import matching_type
from weft.broker.policies import TARGET
from weft.broker.topology import Topology
from weft.model.changes import Change
from weft.model.errors import Corrupt, Refused
from weft.model.events import BindingChange, ExchangeDeclare, QueueDeclare, QueueDelete, Table
from weft.model.services import ARGUMENT
from weft.store import Binding, Exchange, Queue
from weft.store.tables import decode_table, encode_table

Key = tuple[str, str]
"""A routing key, and the canonical text of the arguments."""
NO_ARGUMENTS = encode_table({})
_OWN = ("weft.", "$", "amq.")
"""Begin the names of what nodes make themselves."""


class FabricDesk:
    """What federation needs of a topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._on_queue: Callable[[str, str, object, bool], None] = lambda *_: None
        self._on_targets: Callable[[], None] = lambda: None

    def watch(self, on_binding: Callable[[str, str, str, Key, bool], None]) -> None:
        """Report each binding made or undone: virtual host, exchange, destination, key, is it made."""

        def report(binding: Binding, is_bound: bool) -> None:
            exchange = self._topology.tables(binding.vhost).exchanges.get(binding.source)
            if exchange is not None:
                key = _key(exchange, binding)
                on_binding(binding.vhost, binding.source, binding.destination, key, is_bound)

        self._topology.watch = report

    def watch_queues(self, on_queue: Callable[[str, str, object, bool], None]) -> None:
        """Report each queue of a service that is there, is made or goes: virtual host, queue, service, is it made."""
        self._on_queue = on_queue
        for vhost in self._topology.vhosts():
            self.on_edits([(True, queue) for queue in self._topology.queues(vhost)])

    def watch_targets(self, on_change: Callable[[], None]) -> None:
        """Say when `targets` may have changed."""
        self._on_targets = on_change
        self._topology.on_policies = on_change

    def targets(self) -> dict[tuple[str, str, str], str]:
        """The links that policies name, by virtual host, kind and name of what they apply to."""
        found: dict[tuple[str, str, str], str] = {}
        for vhost in self._topology.vhosts():
            policies = self._topology.tables(vhost).policies
            if not any(TARGET in policy.definition for policy in policies):
                continue
            records: list[Queue | Exchange] = [*self._topology.queues(vhost), *self._topology.exchanges(vhost)]
            for record in records:
                link = policies.applied(record).definition.get(TARGET)
                if link and not record.name.startswith(_OWN):
                    found[vhost, "queue" if isinstance(record, Queue) else "exchange", record.name] = str(link)
        return found

    def on_edits(self, edits: Sequence[tuple[bool, Queue | Exchange | Binding]]) -> None:
        """The topology has changed so."""
        for is_made, record in edits:
            if isinstance(record, Queue) and ARGUMENT in record.arguments:
                self._on_queue(record.vhost, record.name, record.arguments[ARGUMENT], is_made)
        if any(isinstance(record, Queue | Exchange) and self._has_target(record) for _, record in edits):
            self._on_targets()

    def _has_target(self, record: Queue | Exchange) -> bool:
        if record.vhost not in self._topology.vhosts():
            return True
        return TARGET in self._topology.tables(record.vhost).policies.applied(record).definition

    def make_exchange(self, vhost: str, name: str) -> list[Change]:
        """A direct exchange that is to exist; one that does is left as it is."""
        if name in self._topology.tables(vhost).exchanges:
            return []
        return self._topology.run(vhost, [ExchangeDeclare(name, "direct", False, True, False, False, {})])

    def exchange_type(self, vhost: str, exchange: str) -> str | None:
        """How an exchange matches, or None if there is none of that name."""
        found = self._topology.tables(vhost).exchanges.get(exchange)
        return None if found is None else matching_type(found)

    def keys_of_exchange(self, vhost: str, exchange: str) -> list[tuple[str, str, Key]]:
        """(kind, destination, key) of every binding from an exchange."""
        tables = self._topology.tables(vhost)
        found = tables.exchanges.get(exchange)
        if found is None:
            return []
        return [(b.kind, b.destination, _key(found, b)) for b in tables.bindings.of_source(exchange)]

    def keys_of_queue(self, vhost: str, exchange: str, queue: str) -> list[Key]:
        """Keys by which a queue is bound to an exchange."""
        tables = self._topology.tables(vhost)
        found = tables.exchanges.get(exchange)
        if found is None:
            return []
        bindings = tables.bindings.of_destination("queue", queue)
        return [_key(found, binding) for binding in bindings if binding.source == exchange]

    def held(self, vhost: str, queue: str) -> int | None:
        """Messages of a queue, those on their way included; None if there is no such queue."""
        return self._topology.held(vhost, queue)

    def make_queue(self, vhost: str, queue: str, *, durable: bool, arguments: Mapping[str, object]) -> list[Change]:
        """A queue that is to exist; one that does is left as it is."""
        if queue in self._topology.tables(vhost).queues:
            return []
        return self._topology.run(vhost, [QueueDeclare(queue, False, durable, False, False, dict(arguments))])

    def drop_queue(self, vhost: str, queue: str) -> list[Change]:
        """A queue that is to be gone."""
        return self._topology.run(vhost, [QueueDelete(queue, False, False)])

    def rebind(self, vhost: str, exchange: str, queue: str, bind: Iterable[Key], unbind: Iterable[Key]) -> list[Change]:
        """Bindings to make and to undo, all or none."""
        made = [BindingChange("bind", "queue", exchange, queue, key, _arguments(text)) for key, text in bind]
        undone = [BindingChange("unbind", "queue", exchange, queue, key, _arguments(text)) for key, text in unbind]
        return self._topology.run(vhost, [*made, *undone]) if made or undone else []


def _key(exchange: Exchange, binding: Binding) -> Key:
    match matching_type(exchange):
        case "fanout":
            return "", NO_ARGUMENTS
        case "headers":
            return "", encode_table(binding.arguments)
        case _:
            return binding.routing_key, NO_ARGUMENTS


def _arguments(text: str) -> Table:
    try:
        return decode_table(text)
    except Corrupt as error:
        raise Refused(f"PRECONDITION_FAILED - {error}", 406) from None
