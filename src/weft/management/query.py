"""Questions about many objects, and pages of answers.

Owns `Query` and `Page`, and answering a query from rows that are all there already. Providers of large tables answer
it elsewhere: in the kernel, without making the rows that are not asked for.
It must not know any class.
Rule: RabbitMQ's pagination (page, page_size, name, use_regex, sort, sort_reverse, columns).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
COUNT_MAX = 500
"""Rows on one page: RabbitMQ's bound, so that no page holds the loop for long."""


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


def page_of(rows: Iterable[Row], query: Query) -> Page:
    """Answer a query from all rows."""
    inside = [row for row in rows if query.vhost is None or row.get("vhost", query.vhost) == query.vhost]
    pattern = query.pattern
    word = query.contains.lower() if query.contains else None
    found = [
        row
        for row in inside
        if (word is None or word in str(row.get("name", "")).lower())
        and (pattern is None or pattern.search(str(row.get("name", ""))))
        and all(row.get(key) == value for key, value in query.where.items())
    ]
    found.sort(key=lambda row: _order(row, query.sort), reverse=query.descending)
    end = None if query.count is None else query.offset + query.count
    return Page(len(inside), len(found), [cut(row, query.columns) for row in found[query.offset : end]])


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
