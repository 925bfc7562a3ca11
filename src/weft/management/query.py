"""Questions about many objects, and pages of answers.

Owns `Query` and `Page`, and answering a query from rows that are all there already. Providers of large tables answer
it elsewhere: in the kernel, without making the rows that are not asked for.
It must not know any class, nor hold the loop for longer than a part (`turns`), since messages wait meanwhile.
Rule: RabbitMQ's pagination (page, page_size, name, use_regex, sort, sort_reverse, columns).
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeVar

from weft.management.turns import Turns

Row = dict[str, Any]
COUNT_MAX = 500
"""Rows on one page: RabbitMQ's bound."""
RUN = 32
"""Rows that are looked at and sorted together, which takes half a part."""

_Made = TypeVar("_Made")
_Given = TypeVar("_Given")


@dataclass(frozen=True, slots=True)
class Query:
    """Which objects of a class are wanted, in which order, and what of them."""

    vhost: str | None = None
    contains: str | None = None
    pattern: re.Pattern[str] | None = None
    where: Mapping[str, object] = field(default_factory=dict)
    sort: str | None = None
    descending: bool = False
    offset: int = 0
    count: int | None = None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the objects: how many there are, how many fit the question, and those on this page."""

    total: int
    matched: int
    rows: list[Row]


async def page_of(rows: Iterable[Row], query: Query) -> Page:
    """Answer a query from all rows."""
    total = 0

    def fitting() -> Iterator[list[tuple[Any, Row]]]:
        nonlocal total
        rest = iter(rows)
        while chunk := list(islice(rest, RUN)):
            inside = [row for row in chunk if query.vhost is None or row.get("vhost", query.vhost) == query.vhost]
            total += len(inside)
            yield [(_order(row, query.sort), row) for row in inside if _fits(row, query)]

    matched, page = await chosen(fitting(), query)
    return Page(total, matched, [cut(row, query.columns) for row in page])


async def chosen(runs: Iterable[list[tuple[Any, _Given]]], query: Query) -> tuple[int, list[_Given]]:
    """How many there are in all runs, and which of them are on the page. Each comes with what it is sorted by; a run
    has about `RUN` of them.
    """
    matched, kept, turns = 0, list[list[tuple[Any, _Given]]](), Turns()
    last = COUNT_MAX + 1 if query.count is None else query.offset + query.count
    for run in runs:
        run.sort(key=itemgetter(0), reverse=query.descending)
        matched += len(run)
        kept.append(run)
        if last <= COUNT_MAX and sum(map(len, kept)) > 2 * max(last, RUN):
            # What cannot be on the page goes now: to free thousands of rows at the end would take milliseconds.
            kept = [sorted(chain(*kept), key=itemgetter(0), reverse=query.descending)[:last]]
        await turns.next_row()
    merged = heapq.merge(*kept, key=itemgetter(0), reverse=query.descending)
    end = matched if query.count is None else min(query.offset + query.count, matched)
    return matched, (await each(islice(merged, end), itemgetter(1)))[query.offset :]


async def each(rows: Iterable[_Given], make: Callable[[_Given], _Made]) -> list[_Made]:
    """What is made of each, while others have their turn after every few."""
    made: list[_Made] = []
    turns = Turns()
    for row in rows:
        made.append(make(row))
        await turns.next_row()
    return made


def _fits(row: Row, query: Query) -> bool:
    name, pattern = str(row.get("name", "")), query.pattern
    return (
        (not query.contains or query.contains.lower() in name.lower())
        and (pattern is None or pattern.search(name) is not None)
        and all(row.get(key) == value for key, value in query.where.items())
    )


def cut(row: Row, columns: tuple[str, ...] | None) -> Row:
    """What was asked for of a row."""
    return row if columns is None else {name: row[name] for name in columns if name in row}


def _order(row: Row, sort: str | None) -> tuple[int, float, str, str, str]:
    """Numbers before text, as the kernel sorts; then by virtual host and name."""
    value = row.get(sort) if sort else None
    kind = 0 if value is None else 1 if isinstance(value, int | float) else 2
    number = float(value) if isinstance(value, int | float) else 0.0
    text = str(value) if kind == 2 else ""
    return kind, number, text, str(row.get("vhost", "")), str(row.get("name", ""))
