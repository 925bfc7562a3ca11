"""Management as one part of a node: its pieces put together, started and ended.

Owns the manager, the peers and the endpoints of one node. The host comes in; while it runs, requests are answered and
events told.
It must not answer anything itself.
Rule: nothing here runs unless asked: no exchange, task or socket beyond those of docs/guides/management.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns

from weft.management import turns
from weft.management.amqp import Endpoint
from weft.management.classes import register_classes
from weft.management.classes.barriers import barrier_name, has_barrier
from weft.management.classes.definitions import binding_row
from weft.management.classes.logs import LogsClass
from weft.management.events import EXCHANGE, VHOST, Events
from weft.management.host import Host
from weft.management.logs import LEVELS, ROOT, Logs
from weft.management.manager import Manager
from weft.management.peers import Peers
from weft.management.statistics import Statistics
from weft.model.errors import Refused
from weft.store import Binding, Exchange, Queue

LOG = logging.getLogger("weft.management")
TOLD = 50
"""Objects told of in one turn of the loop, a millisecond's work: thousands of bindings may go with an exchange."""
TOLD_PART = 8
"""Of a longer backlog at least this part, so that what is not told yet stays within a few turns' worth of edits."""

BUSY_NS = 100_000_000
"""A node that has written to a peer within this time has messages that long work must not hold up."""


class Management:
    """Everything that manages one node."""

    def __init__(self, host: Host, *, statistics_s: float = 10.0, log_level: str | None = None) -> None:
        """`statistics_s` is the time between two rounds of statistics; `log_level` that of the log `weft`, if given."""
        self.events = Events(
            host.engine,
            host.name,
            is_heard=lambda: host.topology.count_bindings(VHOST, EXCHANGE) > 0,
            changed=host.driver.advance_soon,
        )
        self.manager = Manager(host, self.events)
        self.peers = Peers(host, self.events)
        register_classes(self.manager, self.peers)
        self._logs, self._log_level = Logs(self.events), log_level
        self.manager.register("log", LogsClass(self.manager, self._logs, self._watch))
        self._host = host
        self._endpoint = Endpoint(self.manager, self.peers)
        self._statistics = Statistics(self.manager, self.events, statistics_s)
        self._untold: deque[tuple[bool, Queue | Exchange | Binding]] = deque()
        self.manager.on_vhosts = self._endpoint.serve
        self.manager.tell_statistics = self._statistics.tell

    def start(self) -> None:
        """Declare the exchange of events and answer requests."""
        if self._log_level is not None:
            ROOT.setLevel(LEVELS[self._log_level])
        self._logs.start()
        topology = self._host.topology
        flags = {"durable": True, "auto_delete": False, "internal": True}
        try:
            self._host.apply(topology.declare_exchange(VHOST, EXCHANGE, "topic", **flags, arguments={}))
        except Refused as error:
            LOG.warning("no events are told: %s", error)
        self._watch()
        turns.heed(self._is_busy)
        self._endpoint.serve()
        self._statistics.start()
        self.events.tell("node", "started", self._host.name, version=self._host.version)

    def serve_vhosts(self) -> None:
        """Answer in virtual hosts that were made by others."""
        self._endpoint.serve()

    async def stop(self) -> None:
        """Answer and tell nothing more."""
        turns.heed(lambda: False)
        self._logs.stop()
        await self._statistics.stop()
        await self._endpoint.close()

    def _is_busy(self) -> bool:
        return monotonic_ns() - self._host.driver.flushed_ns < BUSY_NS

    def on_edits(self, edits: Sequence[tuple[bool, Queue | Exchange | Binding]]) -> None:
        """The broker makes (True) or deletes these; told from the next turn on, when the kernel has done it."""
        if edits:
            if not self._untold:
                asyncio.get_running_loop().call_soon(self._tell_edits)
            self._untold.extend(edits)

    def _watch(self) -> None:
        """Let the kernel tell of every session and link while anybody hears of it, and spare it otherwise."""
        self._host.engine.watch(self.events.is_heard or self.events.is_logged)

    def _tell_edits(self) -> None:
        self._watch()
        untold = self._untold
        if not (self.events.is_heard or self.events.is_logged):
            untold.clear()
            return
        for _ in range(min(len(untold), max(TOLD, len(untold) // TOLD_PART))):
            is_made, record = untold.popleft()
            self._tell("created" if is_made else "deleted", record)
        if untold:
            asyncio.get_running_loop().call_soon(self._tell_edits)

    def _tell(self, kind: str, record: Queue | Exchange | Binding) -> None:
        match record:
            case Queue():
                about = {"durable": record.durable, "arguments": record.arguments}
                self.events.tell("queue", kind, record.name, record.vhost, **about)
                if record.arguments.get("x-queue-type") == "stream":
                    self.events.tell("stream", kind, record.name, record.vhost, **about)
                self._tell_barrier(kind, record)
            case Exchange():
                about = {"type": record.type, "durable": record.durable}
                self.events.tell("exchange", kind, record.name, record.vhost, **about)
                self._tell_barrier(kind, record)
            case Binding():
                row = binding_row(record)
                about = {name: row[name] for name in ("source", "destination", "routing_key", "arguments")}
                about["destination_type"] = record.kind
                self.events.tell("binding", kind, row["name"], record.vhost, **about)

    def _tell_barrier(self, kind: str, owner: Queue | Exchange) -> None:
        if has_barrier(owner):
            self.events.tell("barrier", kind, barrier_name(owner), owner.vhost)
