"""Managed connections, sessions and links.

Owns reading connections, their channels and the consumers on them, and closing a connection by request. The kernel's
counters and what `peers` remembers make a row.
It must not keep anything of its own.
Rule: schema/management.json, classes `connection`, `session` and `link`; a caller without `monitoring` sees its own
connections only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.management.caller import Caller
from weft.management.classes.tables import kernel_page
from weft.management.manager import Manager
from weft.management.peers import Peers, session_name
from weft.management.provider import Provider, Values
from weft.management.query import RUN, Page, Query, Row
from weft.management.turns import Turns
from weft.model.changes import CloseConnection
from weft.model.errors import Refused

CLOSED_BY_ORDER = 320


class Connections(Provider):
    """Every connection that entered a virtual host."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._host = manager.host
        self._peers = peers

    async def query(self, caller: Caller, query: Query) -> Page:
        word, pattern = (query.contains or "").lower(), query.pattern
        sees_all = caller.sees_all
        ids, turns = [], Turns()
        for conn, peer in list(self._peers.items()):
            if (
                (sees_all or peer.user == caller.user)
                and (not word or word in peer.name.lower())
                and (pattern is None or pattern.search(peer.name))
            ):
                ids.append(conn)
            await turns.next_row()
        asked = replace(query, contains=None, pattern=None)
        return await kernel_page(self._host, "connections", caller, asked, self._finish, ids)

    def read(self, caller: Caller, vhost: str, name: str) -> Row:  # noqa: ARG002 - names are the node's
        conn = self._find(name)
        peer = None if conn is None else self._peers.get(conn)
        if conn is None or peer is None or not (caller.sees_all or peer.user == caller.user):
            raise Refused(f"no connection '{name}'", 404)
        rows = self._host.engine.rows("connections", [conn])
        if not rows:
            raise Refused(f"no connection '{name}'", 404)
        return self._finish(rows[0])

    def _find(self, name: str) -> int | None:
        """By name or by number."""
        return int(name) if name.isdecimal() else self._peers.find(name)

    def _finish(self, row: Row) -> Row:
        peer = self._peers.get(row["conn"])
        if peer is not None:
            row["name"] = peer.name
            row["peer"] = peer.address
            row["container"] = peer.container
            row["mechanism"] = peer.mechanism
            row["client_properties"] = peer.properties
            row["connected_at_ms"] = peer.since_ms
        row["state"] = "blocked" if row["blocked"] else "running"
        return row

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:
        await self.call(caller, vhost, name, "close", options)

    async def call(self, caller: Caller, vhost: str, name: str, operation: str, arguments: Values) -> Values:
        if operation != "close":
            return await super().call(caller, vhost, name, operation, arguments)
        row = self.read(caller, vhost, name)
        if row["user"] != caller.user:
            caller.require("administrator")
        text = f"CONNECTION_FORCED - {arguments.get('reason') or 'closed by management'}"
        self._host.apply([CloseConnection(row["conn"], CLOSED_BY_ORDER, text)])
        return {}


class Sessions(Provider):
    """Every channel and session."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._host = manager.host
        self._peers = peers

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:
        sees_all, peers = caller.sees_all, list(self._peers.items())
        for start in range(0, len(peers), RUN):
            mine = {
                conn: peer
                for conn, peer in peers[start : start + RUN]
                if (sees_all or peer.user == caller.user) and vhost in (None, peer.vhost)
            }
            for row in self._host.engine.sessions(list(mine)):
                peer = mine[row["conn"]]
                name = session_name(peer, row["number"])
                yield {"name": name, "connection": peer.name, "vhost": peer.vhost, "user": peer.user, **row}


class Links(Provider):
    """Every consumer and receiving link."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._host = manager.host
        self._peers = peers

    async def query(self, caller: Caller, query: Query) -> Page:
        return await kernel_page(self._host, "consumers", caller, query, self._finish)

    def read(self, caller: Caller, vhost: str, name: str) -> Row:  # noqa: ARG002 - who may enter the host sees it
        rows = self._host.engine.rows("consumers", [int(name)]) if name.isdecimal() else []
        if not rows or rows[0]["vhost"] != vhost:
            raise Refused(f"no link '{name}' in virtual host '{vhost}'", 404)
        return self._finish(rows[0])

    def _finish(self, row: Row) -> Row:
        row["name"] = str(row["consumer"])
        peer = self._peers.get(row["conn"])
        row["connection"] = None if peer is None else peer.name
        row["user"] = None if peer is None else peer.user
        return row
