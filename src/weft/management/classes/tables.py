"""Queries that the kernel answers from its own tables.

Owns the translation of a `Query` into a question to the kernel, and finishing the few rows of its answer.
It must not make a row that is not on the page.
Rule: `Engine.page` sorts and cuts; only regular expressions and conditions on single values are looked at here first.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.management.caller import Caller
from weft.management.host import Host
from weft.management.query import Page, Query, Row, cut


def kernel_page(
    host: Host, table: str, caller: Caller, query: Query, finish: Callable[[Row], Row], ids: list[int] | None = None
) -> Page:
    """A page of one of the kernel's tables; `ids` bounds it to rows that were chosen already."""
    vhosts = [query.vhost] if query.vhost is not None else None if caller.sees_all else caller.vhosts()
    known = None
    if query.pattern is not None and ids is None:
        search = query.pattern.search
        wanted = None if vhosts is None else set(vhosts)
        names = [row for row in host.engine.names(table) if wanted is None or row[1] in wanted]
        ids, known = [number for number, _, name in names if search(name)], len(names)
    total, matched, rows = host.engine.page(
        table,
        vhosts=vhosts,
        contains=query.contains,
        ids=ids,
        sort=query.sort,
        descending=query.descending,
        offset=0 if query.where else query.offset,
        count=None if query.where else query.count,
    )
    finished = [finish(row) for row in rows]
    if query.where:
        finished = [row for row in finished if all(row.get(key) == value for key, value in query.where.items())]
        matched = len(finished)
        end = None if query.count is None else query.offset + query.count
        finished = finished[query.offset : end]
    return Page(total if known is None else known, matched, [cut(row, query.columns) for row in finished])
