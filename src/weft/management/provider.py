"""What the node knows of one class: the interface between requests and objects.

Owns `Provider`, whose methods refuse whatever a class cannot do. A caller, a name and plain values come in; rows and
counts go out.
It must not know how a request arrived.
Rule: one provider per class of schema/management.json; a part of the node that keeps objects of its own (routes,
directory, rules) brings its provider to `Manager.register`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.management.caller import Caller
from weft.management.query import Page, Query, Row, page_of
from weft.model.errors import Refused

Values = dict[str, Any]


class Provider:
    """Objects of one class. A subclass overrides what its class can do."""

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - an empty table needs neither
        """Every object that the caller may see, whole."""
        return ()

    async def query(self, caller: Caller, query: Query) -> Page:
        """Those of them that fit the query."""
        return await page_of(self.rows(caller, query.vhost), query)

    def read(self, caller: Caller, vhost: str, name: str) -> Row:
        """One object, or Refused(404)."""
        for row in self.rows(caller, vhost):
            if row["name"] == name and row.get("vhost", vhost) == vhost:
                return row
        raise Refused(f"there is no '{name}'", 404)

    async def fetch(self, caller: Caller, vhost: str, name: str) -> Row:
        """The same, of classes whose rows take longer than a part."""
        return self.read(caller, vhost, name)

    def heard(self, kind: str, name: str, values: Values) -> None:
        """Somebody outside told of an object that no node keeps."""

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:  # noqa: ARG002
        """Make an object, or see that it is there as asked for; its name."""
        raise Refused("objects of this class cannot be made", 405)

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:  # noqa: ARG002
        """Change an object."""
        raise Refused("objects of this class cannot be changed", 405)

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        """Delete an object."""
        raise Refused("objects of this class cannot be deleted", 405)

    async def call(
        self,
        caller: Caller,  # noqa: ARG002
        vhost: str,  # noqa: ARG002
        name: str,  # noqa: ARG002
        operation: str,
        arguments: Values,  # noqa: ARG002
    ) -> Values:
        """Carry out an operation of the schema."""
        raise Refused(f"this class cannot {operation}", 405)
