"""Managed streaming queries: how far each said that it has come.

Owns a row for each query that told the node of its progress, at most `QUERIES_MAX`. Queries of Spark keep their place
themselves and tell it to a node they read from (`node`, operation `tell`).
It must not be taken for that place: what it has is gone when the node ends.
Rule: schema/management.json, class `query`; docs/guides/spark.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from time import time_ns

from weft.management.caller import Caller
from weft.management.provider import Provider, Values
from weft.management.query import Row

QUERIES_MAX = 1_000
"""With more, the one that was silent for longest is forgotten."""
STREAMS_MAX = 1_000
"""Of one query; the rest is in its events only."""


class Queries(Provider):
    """Every query that told the node of itself."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - queries are the node's
        return [dict(row) for row in self._rows.values()]

    def heard(self, kind: str, name: str, values: Values) -> None:  # noqa: ARG002 - there is one kind
        known = self._rows.pop(name, None)
        count = 0 if known is None else known["progressed"]
        if known is None and len(self._rows) >= QUERIES_MAX:
            del self._rows[next(iter(self._rows))]
        told = values.get("streams")
        streams = told.items() if isinstance(told, dict) else ()
        self._rows[name] = {
            "name": name,
            "streams": {str(key): at for key, at in islice(streams, STREAMS_MAX) if isinstance(at, int)},
            "told_at_ms": time_ns() // 1_000_000,
            "progressed": count + 1,
        }
