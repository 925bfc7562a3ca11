"""The managed node itself.

Owns its one row and its operations: quiesce, resume, drain, statistics, echo.
The kernel's counters, the process and the machine come in; nothing is kept but the time it was started.
It must not end the process: who drained a node decides that.
Rule: schema/management.json, class `node`.
"""

from __future__ import annotations

import asyncio
import os
from time import monotonic

from weft.management.caller import Caller
from weft.management.classes.queues import QUANTILES, types_told
from weft.management.classes.tables import tallied
from weft.management.definitions import export, import_
from weft.management.manager import BY_NAME, Manager
from weft.management.peers import Peers
from weft.management.provider import Provider, Values
from weft.management.query import Page, Query, Row, page_of
from weft.model.changes import CloseConnection
from weft.model.errors import Refused

ANSWER_S = 0.2
"""What the answer to a drain gets to leave before its connection is closed with the others."""
TOLD = ("rule", "service", "query")
"""Classes whose events others may publish: nodes know nothing of them."""
DRAINED_TEXT = "CONNECTION_FORCED - the node is being drained, go elsewhere"


class NodeClass(Provider):
    """The node."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._manager = manager
        self._host = manager.host
        self._peers = peers
        self._started = monotonic()
        self._draining = False

    async def query(self, caller: Caller, query: Query) -> Page:  # noqa: ARG002 - who may ask sees it
        return await page_of([await self._row()], query)

    async def fetch(self, caller: Caller, vhost: str, name: str) -> Row:  # noqa: ARG002 - there is one
        if name != self._host.name:
            raise Refused(f"there is no '{name}'", 404)
        return await self._row()

    async def _row(self) -> Row:
        host, about = self._host, os.uname()
        tally = await tallied(host.engine)
        state = "draining" if self._draining else "quiesced" if self._manager.is_quiesced else "running"
        return {
            "name": host.name,
            "version": host.version,
            "pid": os.getpid(),
            "os_name": about.sysname,
            "host_name": about.nodename,
            "release": about.release,
            "os_version": about.version,
            "machine": about.machine,
            "state": state,
            "data_dir": None if host.data_dir is None else str(host.data_dir),
            "listeners": [f"{address}:{port}" for address, port, _ in host.listeners()],
            "alarms": dict(self._peers.alarms),
            "uptime_s": int(monotonic() - self._started),
            "certificate_s": host.certificate_s(),
            **tally.stats(host.engine),
            **self._latencies(),
        }

    def _latencies(self) -> Row:
        told: Row = {"sizes": [], "types": types_told(self._host.engine.types())}
        for name, size, count, quantiles in self._host.engine.latencies():
            row = dict(zip(QUANTILES, quantiles, strict=True))
            if name == "size":
                told["sizes"].append({"bytes_max": size, "count": count, **row})
            else:
                told |= {f"{name}_{key}": value for key, value in row.items()}
        return told

    async def call(self, caller: Caller, vhost: str, name: str, operation: str, arguments: Values) -> Values:
        match operation:
            case "quiesce" | "resume":
                self._host.driver.quiesce(operation == "quiesce")
                self._manager.events.tell("node", f"{operation}d", self._host.name, by=caller.user or None)
                return {}
            case "drain":
                return self._drain(caller)
            case "tell":
                return self._tell(arguments)
            case "export":
                return await export(self._manager, caller, None)
            case "import":
                return await import_(self._manager, caller, arguments.get("definitions") or {}, None)
            case "echo":
                return arguments
            case "statistics":
                return {"told": await self._manager.tell_statistics()}
        return await super().call(caller, vhost, name, operation, arguments)

    def _tell(self, arguments: Values) -> Values:
        """An event from outside: only about what no node keeps, so that nothing of a node's own can be made up."""
        class_name, kind, name = (str(arguments.get(key) or "") for key in ("class", "kind", "object"))
        values = arguments.get("values") or {}
        known = [event.name for event in BY_NAME[class_name].events] if class_name in TOLD else []
        if kind not in known or not name or not isinstance(values, dict):
            raise Refused(f"an event has a class ({', '.join(TOLD)}), one of its kinds, an object and values", 400)
        self._manager.tell(class_name, kind, name, {str(key): value for key, value in values.items()})
        return {}

    def _drain(self, caller: Caller) -> Values:
        self._draining = True
        self._host.stop_listening()
        self._manager.events.tell("node", "draining", self._host.name, by=caller.user or None)
        conns = self._peers.conns()
        closing = [CloseConnection(conn, 320, DRAINED_TEXT) for conn in conns]
        asyncio.get_running_loop().call_later(ANSWER_S, self._host.apply, closing)
        return {"connections": len(conns)}
