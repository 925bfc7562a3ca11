"""A topology on a desk: events in, changes out, with everything around it pretended.

Owns the doubles that broker tests share: an access that refuses what it is told to refuse, counts that are set by hand,
and a kernel that takes every change and fails on one that names what it does not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.broker import Topology, TopologySettings
from weft.model.changes import (
    Accept,
    AcceptLink,
    Bind,
    Change,
    CreateVhost,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    Refuse,
    SetAddress,
    Unbind,
)
from weft.model.errors import Refused
from weft.model.events import (
    AddressRequested,
    AttachRequested,
    BindingChange,
    Event,
    ExchangeDeclare,
    ExchangeDelete,
    OpenRequested,
    Operation,
    QueueDeclare,
    QueueDelete,
    Terminus,
    TopologyRequested,
)
from weft.store import Store
from weft.store.tables import encode_table

CONN = 7
OTHER_CONN = 8
PRINCIPAL = 1


class Access:
    """Allows everything but what is in `refused`: (operation, kind, name)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.refused: set[tuple[str, str, str]] = set()
        self.queue_count_max: int | None = None
        self.default_queue_type: str | None = None
        self._vhosts = store.vhosts() or ["/"]
        with store.transaction():
            store.put_vhost("/")

    def identity(self, principal: int) -> tuple[str, str]:
        if principal != PRINCIPAL:
            raise Refused("ACCESS_REFUSED - gone", 403)
        return "ada", "/"

    def check(self, principal: int, operation: str, kind: str, name: str) -> None:
        if (operation, kind, name) in self.refused or (operation, kind, "*") in self.refused:
            raise Refused(f"ACCESS_REFUSED - {operation} access to {kind} '{name}'", 403)

    def check_topic(self, principal: int, exchange: str, key: str) -> None:
        if ("topic", exchange, key) in self.refused:
            raise Refused(f"ACCESS_REFUSED - read access to topic '{key}' in exchange '{exchange}'", 403)

    def queues_max(self, vhost: str) -> int | None:
        return self.queue_count_max

    def queue_type(self, vhost: str) -> str | None:
        return self.default_queue_type

    def pattern(self, text: str) -> re.Pattern[str]:
        return re.compile(text)

    def vhosts(self) -> list[str]:
        return list(self._vhosts)

    def add_vhost(self, name: str) -> list[Change]:
        if name in self._vhosts:
            return []
        self._vhosts.append(name)
        return [CreateVhost(name)]

    def delete_vhost(self, name: str) -> list[Change]:
        if name not in self._vhosts:
            raise Refused("NOT_FOUND", 404)
        self._vhosts.remove(name)
        return [DeleteVhost(name)]


class Kernel:
    """Tables as the kernel has them; a change that names something unknown is a failure of the test."""

    def __init__(self) -> None:
        self.vhosts: set[str] = set()
        self.exchanges: dict[tuple[str, str], DeclareExchange] = {}
        self.queues: dict[tuple[str, str], DeclareQueue] = {}
        self.bindings: dict[tuple[str, ...], Bind] = {}

    def apply(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        match change:
            case CreateVhost(name):
                assert name not in self.vhosts
                self.vhosts.add(name)
            case DeleteVhost(name):
                self.vhosts.remove(name)
            case DeclareExchange(vhost, name):
                assert vhost in self.vhosts
                self.exchanges[vhost, name] = change
            case DeclareQueue(vhost, name):
                assert vhost in self.vhosts
                self.queues[vhost, name] = change
            case DeleteExchange(vhost, name):
                del self.exchanges[vhost, name]
                self._unbind(vhost, name, "exchange")
                self._unbind(vhost, name, "source")
            case DeleteQueue(vhost, name):
                del self.queues[vhost, name]
                self._unbind(vhost, name, "queue")
            case Bind(vhost, source, kind, destination, key, arguments):
                assert (vhost, source) in self.exchanges
                assert (vhost, destination) in (self.queues if kind == "queue" else self.exchanges)
                identity = vhost, source, kind, destination, key, encode_table(arguments)
                assert identity not in self.bindings
                self.bindings[identity] = change
            case Unbind(vhost, source, kind, destination, key, arguments):
                del self.bindings[vhost, source, kind, destination, key, encode_table(arguments)]
            case AcceptLink(queue=str(queue)):
                assert ("/", queue) in self.queues
            case AcceptLink(exchange=str(exchange)) if exchange:
                assert ("/", exchange) in self.exchanges

    def _unbind(self, vhost: str, name: str, end: str) -> None:
        for identity in list(self.bindings):
            at, source, kind, destination = identity[:4]
            is_end = source == name if end == "source" else (kind, destination) == (end, name)
            if at == vhost and is_end:
                del self.bindings[identity]

    def queue_names(self) -> set[str]:
        return {name for _, name in self.queues}

    def bound(self) -> set[tuple[str, str, str]]:
        """(source, key, destination) of every binding."""
        return {(bind.source, bind.routing_key, bind.destination) for bind in self.bindings.values()}


class Desk:
    """A topology, its doubles, and short words for what peers ask."""

    def __init__(self, path: Path | None = None, settings: TopologySettings | None = None) -> None:
        self.store = Store(path)
        self.access = Access(self.store)
        self.stats: dict[str, tuple[int, int, int]] = {}
        self.kernel = Kernel()
        self.topology = Topology(self.store, self.access, self._counts, settings)
        self.kernel.apply(self.topology.start())
        self.tell(OpenRequested(1, CONN, "1.0", "", "box", {}), OpenRequested(1, OTHER_CONN, "1.0", "", "crate", {}))

    def _counts(self, vhost: str, queue: str) -> tuple[int, int, int] | None:
        return self.stats.get(queue)

    def tell(self, *events: Event) -> list[Change]:
        changes = self.topology.on_events(events, 0)
        self.kernel.apply(changes)
        return changes

    def ask(self, operation: Operation, conn: int = CONN) -> list[Change]:
        """The changes a request leads to, the answer last."""
        return self.tell(TopologyRequested(5, conn, PRINCIPAL, operation))

    def fail(self, operation: Operation, conn: int = CONN) -> tuple[int, str]:
        """(code, text) of a refusal, which must be all there is."""
        (refuse,) = self.ask(operation, conn)
        assert isinstance(refuse, Refuse), refuse
        assert refuse.request == 5
        return refuse.code, refuse.text

    def succeed(self, operation: Operation, conn: int = CONN) -> Accept:
        accept = self.ask(operation, conn)[-1]
        assert isinstance(accept, Accept), accept
        assert accept.request == 5
        return accept

    def attach(self, terminus: Terminus, *, sends: bool, link: str = "l", conn: int = CONN) -> AcceptLink:
        answer = self.tell(AttachRequested(6, conn, PRINCIPAL, link, sends, terminus))[-1]
        assert isinstance(answer, AcceptLink), answer
        assert answer.request == 6
        return answer

    def fail_attach(self, terminus: Terminus, *, sends: bool, link: str = "l", conn: int = CONN) -> tuple[int, str]:
        (refuse,) = self.tell(AttachRequested(6, conn, PRINCIPAL, link, sends, terminus))
        assert isinstance(refuse, Refuse), refuse
        return refuse.code, refuse.text

    def send_to(self, address: str) -> SetAddress:
        row = self.tell(AddressRequested(6, CONN, PRINCIPAL, address))[-1]
        assert isinstance(row, SetAddress)
        return row


def queue(
    name: str,
    *,
    passive: bool = False,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    **arguments: Any,
) -> QueueDeclare:
    """queue.declare; `x_message_ttl=1` is the argument x-message-ttl."""
    return QueueDeclare(name, passive, durable, exclusive, auto_delete, _table(arguments))


def exchange(
    name: str,
    type_: str = "direct",
    *,
    passive: bool = False,
    durable: bool = False,
    auto_delete: bool = False,
    internal: bool = False,
    **arguments: Any,
) -> ExchangeDeclare:
    """exchange.declare."""
    return ExchangeDeclare(name, type_, passive, durable, auto_delete, internal, _table(arguments))


def bind(source: str, destination: str, key: str = "", kind: Any = "queue", **arguments: Any) -> BindingChange:
    """queue.bind or exchange.bind."""
    return BindingChange("bind", kind, source, destination, key, _table(arguments))


def unbind(source: str, destination: str, key: str = "", kind: Any = "queue", **arguments: Any) -> BindingChange:
    """queue.unbind or exchange.unbind."""
    return BindingChange("unbind", kind, source, destination, key, _table(arguments))


def delete_queue(name: str, *, if_unused: bool = False, if_empty: bool = False) -> QueueDelete:
    """queue.delete."""
    return QueueDelete(name, if_unused, if_empty)


def delete_exchange(name: str, *, if_unused: bool = False) -> ExchangeDelete:
    """exchange.delete."""
    return ExchangeDelete(name, if_unused)


def _table(arguments: dict[str, Any]) -> dict[str, object]:
    return {name.replace("_", "-"): value for name, value in arguments.items()}
