# Made by tools/unasync.py from the module of the same name one folder up: edit that, never this.
"""Asking a node about its objects, and changing them, by messages alone.

Owns the client's side of management: one request per question, answered at the client's own reply address. Class names,
names and values come in; plain dictionaries go out, or `Refused` with the node's own words.
It must never interpret what a class means: the node's schema says that (docs/reference/management.md).
Rule: the AMQP management pattern; a page holds at most `PAGE_ROWS` objects, as many pages as it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.model.errors import Refused, Unavailable

if TYPE_CHECKING:
    from weft.client.sync.fabric import Fabric

ADDRESS = "$management"
PAGE_ROWS = 500
TIMEOUT_S = 10.0
DESCRIPTION = "statusDescription"
"""A header; where it is too long for one, the body has the whole of it."""
_UNAVAILABLE = 503
_FAILURES = 400

Row = dict[str, Any]


class Management:
    """A node's management: `management = Management(fabric)`."""

    def __init__(self, fabric: Fabric, *, vhost: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """Objects are those of `vhost`; by default of the one the client entered."""
        self._fabric = fabric
        self._vhost = vhost
        self._timeout_s = timeout_s

    def query(
        self,
        kind: str,
        *,
        columns: Sequence[str] = (),
        where: Mapping[str, object] | None = None,
        contains: str | None = None,
        sort: str | None = None,
        descending: bool = False,
        count: int | None = None,
    ) -> list[Row]:
        """The objects of a class, all of them or the first `count`."""
        wanted = {
            "attributeNames": list(columns),
            "where": dict(where or {}),
            "contains": contains,
            "sort": sort,
            "descending": descending,
        }
        rows: list[Row] = []
        for page in self._pages(kind, {key: value for key, value in wanted.items() if value}, count):
            rows += page
        return rows

    def _pages(self, kind: str, body: Row, count: int | None) -> Iterator[list[Row]]:
        offset, left = 0, count
        while left is None or left > 0:
            page = PAGE_ROWS if left is None else min(left, PAGE_ROWS)
            asked = {"entityType": kind, "offset": offset, "count": page}
            answer = self._ask("QUERY", asked, body)
            names, results = answer["attributeNames"], answer["results"]
            yield [
                {name: value for name, value in zip(names, row, strict=True) if value is not None} for row in results
            ]
            offset += len(results)
            left = None if left is None else left - len(results)
            if len(results) < page or offset >= answer.get("count", 0):
                return

    def read(self, kind: str, name: str | None = None) -> Row:
        """One object; the node itself needs no name."""
        row: Row = self._ask("READ", {"type": kind, "name": name})
        return row

    def find(self, kind: str, name: str) -> Row | None:
        """One object, or None if there is no such."""
        try:
            return self.read(kind, name)
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def create(self, kind: str, name: str, values: Mapping[str, object] | None = None) -> Row:
        """Make an object."""
        row: Row = self._ask("CREATE", {"type": kind, "name": name}, values)
        return row

    def update(self, kind: str, name: str, values: Mapping[str, object]) -> Row:
        """Change an object."""
        row: Row = self._ask("UPDATE", {"type": kind, "name": name}, values)
        return row

    def delete(self, kind: str, name: str, values: Mapping[str, object] | None = None) -> None:
        """Delete an object; `values` may hold conditions."""
        self._ask("DELETE", {"type": kind, "name": name}, values)

    def call(
        self,
        kind: str,
        name: str | None,
        operation: str,
        arguments: Mapping[str, object] | None = None,
    ) -> Any:
        """Call an operation of an object, such as `purge`."""
        return self._ask(operation, {"type": kind, "name": name}, arguments)

    def schema(self) -> Row:
        """What classes there are, and what each has."""
        classes: Row = self._ask("GET-SCHEMA", {})
        return classes

    def owns(self, queue: str) -> bool:
        """Is a queue the one where this client gets its answers? It is gone when the client is."""
        return queue.startswith(f"{self._fabric.name}_")

    def _ask(self, operation: str, asked: Row, body: Mapping[str, object] | None = None) -> Any:
        headers = {key: value for key, value in asked.items() if value is not None} | {"operation": operation}
        if self._vhost is not None:
            headers["vhost"] = self._vhost
        reply = self._fabric.request(
            ADDRESS, dict(body or {}), headers=headers, timeout_s=self._timeout_s, durable=False
        )
        status = int(reply.headers.get("statusCode", 0))
        told = reply.body if isinstance(reply.body, dict) else {}
        text = str(told.get(DESCRIPTION) or reply.headers.get(DESCRIPTION, ""))
        if status == _UNAVAILABLE:
            raise Unavailable(text)
        if status >= _FAILURES or status == 0:
            raise Refused(text or "the node's answer has no status", status or 500)
        return reply.body
