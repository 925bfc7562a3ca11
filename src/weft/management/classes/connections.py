"""Managed connections, sessions and links.

Owns reading connections, their channels and the consumers on them, and closing a connection by request. The kernel's
counters and what `peers` remembers make a row.
It must not keep anything of its own.
Rule: schema/management.json, classes `connection`, `session` and `link`; a caller without `monitoring` sees its own
connections only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from weft.management.caller import Caller
from weft.management.classes.tables import kernel_page
from weft.management.manager import Manager
from weft.management.peers import Peer, Peers, session_name
from weft.management.provider import Provider, Values
from weft.management.query import RUN, Page, Query, Row, chosen, cut, each, page_of
from weft.management.turns import Turns
from weft.model.changes import CloseConnection
from weft.model.errors import Refused

CLOSED_BY_ORDER = 320
_OF_PEERS = frozenset({"name", "peer", "container", "mechanism", "connected_at_ms", "state"})
"""What the kernel cannot sort by, since it does not know it."""


class Connections(Provider):
    """Every connection that entered a virtual host."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._host = manager.host
        self._peers = peers

    async def query(self, caller: Caller, query: Query) -> Page:
        ids = self._peers.conns()
        if not caller.sees_all or query.contains or query.pattern is not None:
            ids = await self._fitting(ids, caller, query)
        asked = replace(query, contains=None, pattern=None)
        if query.sort not in _OF_PEERS:
            return await kernel_page(self._host, "connections", caller, asked, self._finish, ids)
        whole = replace(asked, sort=None, offset=0, count=None, where={}, columns=None)
        page = await kernel_page(self._host, "connections", caller, whole, self._finish, ids)
        return replace(await page_of(page.rows, asked), total=page.total)

    async def _fitting(self, conns: list[int], caller: Caller, query: Query) -> list[int]:
        """Those that the caller may see, and whose names are as asked."""
        word, pattern, sees_all = (query.contains or "").lower(), query.pattern, caller.sees_all
        found, turns = [], Turns()
        for conn in conns:
            peer = self._peers.get(conn)
            if (
                peer is not None
                and (sees_all or peer.user == caller.user)
                and (not word or word in peer.name.lower())
                and (pattern is None or pattern.search(peer.name))
            ):
                found.append(conn)
            await turns.next_row()
        return found

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
        row["state"] = "running" if row.get("blocked_by") is None else "blocked"
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
    """Every channel and session. Only those on a page become rows: a node has many, and each takes a while."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._host = manager.host
        self._peers = peers

    async def query(self, caller: Caller, query: Query) -> Page:
        if query.where:
            only = query.where.get("connection", _connection_of(query.where.get("name")))
            return await page_of(self._rows(caller, query.vhost, only), query)
        total = 0

        def keys() -> Iterator[list[tuple[Any, tuple[int, int]]]]:
            nonlocal total
            for part in self._parts(caller, query.vhost):
                found = self._host.engine.session_keys(list(part), query.sort)
                total += len(found)
                yield [
                    (_order(part[conn], number, value, query.sort), (conn, number))
                    for conn, number, value in found
                    if _is_named(part[conn], number, query)
                ]

        matched, places = await chosen(keys(), query)
        rows = [row for row in await each(places, self._row) if row is not None]
        return Page(total, matched, [cut(row, query.columns) for row in rows])

    def read(self, caller: Caller, vhost: str, name: str) -> Row:
        for row in self._rows(caller, vhost, _connection_of(name)):
            if row["name"] == name:
                return row
        raise Refused(f"no session '{name}'", 404)

    def _rows(self, caller: Caller, vhost: str | None, only: object) -> Iterator[Row]:
        for part in self._parts(caller, vhost, only):
            for row in self._host.engine.sessions(list(part)):
                yield _session(part[row["conn"]], row)

    def _parts(self, caller: Caller, vhost: str | None, only: object = None) -> Iterator[dict[int, Peer]]:
        """The connections whose sessions the caller may see, or the one of this name, a few at a time."""
        sees_all, conns, known = caller.sees_all, self._peers.conns(), self._peers.get
        for start in range(0, len(conns), RUN):
            yield {
                conn: peer
                for conn in conns[start : start + RUN]
                if (peer := known(conn)) is not None
                and (sees_all or peer.user == caller.user)
                and vhost in (None, peer.vhost)
                and (only is None or peer.name == only)
            }

    def _row(self, place: tuple[int, int]) -> Row | None:
        """One of them, if it is still there."""
        peer = self._peers.get(place[0])
        found = [row for row in self._host.engine.sessions([place[0]]) if row["number"] == place[1]]
        return _session(peer, found[0]) if peer is not None and found else None


def _session(peer: Peer, row: Row) -> Row:
    name = session_name(peer, row["number"])
    return {"name": name, "connection": peer.name, "vhost": peer.vhost, "user": peer.user, **row}


def _connection_of(name: object) -> str | None:
    """The name of its connection."""
    return None if name is None else str(name).rpartition(" (")[0]


def _order(peer: Peer, number: int, value: int | None, sort: str | None) -> tuple[Any, ...]:
    """By a number of the kernel's or a text of the peer's; then by virtual host, connection and number."""
    text = peer.user if sort == "user" else peer.name if sort in ("name", "connection") else ""
    return value is not None, value or 0, text, peer.vhost, peer.name, number


def _is_named(peer: Peer, number: int, query: Query) -> bool:
    if query.contains is None and query.pattern is None:
        return True
    name = session_name(peer, number)
    return (not query.contains or query.contains.lower() in name.lower()) and (
        query.pattern is None or query.pattern.search(name) is not None
    )


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
