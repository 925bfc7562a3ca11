"""Queries that the kernel answers from its own tables.

Owns the translation of a `Query` into a scan of the kernel's table, and finishing the few rows of its answer.
It must not make a row that is not on the page, nor hold the loop for longer than a part: fifty thousand queues are
looked at in parts, sorted on another thread, and messages flow in between.
Rule: docs/decisions/0017-pages-in-parts.md; regular expressions and conditions on single values are looked at here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from itertools import islice

from weft._kernel import Engine, Scan, Tally
from weft.management.caller import Caller
from weft.management.host import Host
from weft.management.query import Page, Query, Row, cut
from weft.management.turns import Turns

LOOK = 256
"""Rows of a table that are looked at together: a third of a part."""
CHOOSE_MAX = 4_096
"""More rows than this are sorted on another thread."""
MATCH = 64
"""Names that a regular expression is tried on together."""
READ = 2
"""Rows that are read and finished together."""


async def kernel_page(
    host: Host, table: str, caller: Caller, query: Query, finish: Callable[[Row], Row], ids: list[int] | None = None
) -> Page:
    """A page of one of the kernel's tables; `ids` bounds it to rows that were chosen already."""
    scan = Scan(
        table,
        vhosts=[query.vhost] if query.vhost is not None else None if caller.sees_all else caller.vhosts(),
        contains=query.contains,
        ids=ids,
        sort=query.sort,
        descending=query.descending,
        offset=0 if query.where else query.offset,
        count=None if query.where else query.count,
        whole=query.pattern is not None,
    )
    await looked(host.engine, scan)
    total, matched = scan.found()
    if query.pattern is not None:
        matched = await _keep(scan, query.pattern, matched)
    chosen = await picked(scan)
    rows: list[Row] = []
    turns = Turns()
    for start in range(0, len(chosen), READ):
        made = map(finish, host.engine.rows(table, chosen[start : start + READ]))
        rows += (row for row in made if all(row.get(key) == value for key, value in query.where.items()))
        await turns.next_row()
    if query.where:
        matched = len(rows)
        rows = list(islice(rows, query.offset, None if query.count is None else query.offset + query.count))
    return Page(total, matched, [cut(row, query.columns) for row in rows])


async def looked(engine: Engine, scan: Scan) -> None:
    """Look at the whole table, and let messages pass now and then."""
    turns = Turns()
    while engine.look(scan, LOOK):
        await turns.next_row()


async def picked(scan: Scan) -> list[int]:
    """The rows on the page, after the last look."""
    return await asyncio.to_thread(scan.choose) if scan.held() > CHOOSE_MAX else scan.choose()


async def tallied(engine: Engine) -> Tally:
    """Sums over all queues and connections, while messages pass now and then."""
    tally, turns = Tally(), Turns()
    while tally.count(engine, LOOK):
        await turns.next_row()
    return tally


async def _keep(scan: Scan, pattern: re.Pattern[str], found: int) -> int:
    """Keep what a regular expression finds; how many."""
    kept: list[int] = []
    turns = Turns()
    for start in range(0, found, MATCH):
        kept += (start + at for at, name in enumerate(scan.names(start, MATCH)) if pattern.search(name))
        await turns.next_row()
    scan.keep(kept)
    return len(kept)
