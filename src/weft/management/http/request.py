"""One request, as the routes see it: who asks, what is in the path, the query and the body.

Owns reading and checking what came from outside, and RabbitMQ's form of pages and errors.
It must not know any route.
Rule: wrong input is a `Refused` with a status and a sentence, never a traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from weft._kernel import encode_json
from weft.management.caller import Caller
from weft.management.manager import Manager
from weft.management.peers import Peers
from weft.management.query import COUNT_MAX, Page, Query, Row, each
from weft.management.rates import Rates
from weft.management.reading import json_object
from weft.management.turns import Turns
from weft.management.writing import LONG, json_document
from weft.model.errors import ConfigError, Refused

BODY_BYTES_MAX = 32 << 20
"""Definitions of a large broker fit; anything larger is no request."""
PAGE_ROWS_DEFAULT = 100
JSON = "application/json"
ALL_ROWS_MAX = 50_000
"""Objects told in one answer when nobody asked for a page."""


@dataclass(frozen=True, slots=True)
class Web:
    """What every route works with."""

    manager: Manager
    peers: Peers
    rates: Rates


@dataclass(frozen=True, slots=True)
class Ask:
    """A request from a caller who was let in."""

    site: Web
    caller: Caller
    request: web.Request

    def part(self, name: str) -> str:
        """A part of the path, decoded."""
        return self.request.match_info[name]

    @property
    def vhost(self) -> str:
        """The virtual host in the path, if the caller may see it."""
        return self.caller.enter(self.part("vhost"))

    async def body(self) -> dict[str, Any]:
        """The JSON object in the body; none is an empty one."""
        data = await self.request.read()
        if not data:
            return {}
        return await json_object(data, "the body")

    def field(self, body: dict[str, Any], name: str, kind: type, default: Any) -> Any:
        """A value of the body, checked for its type."""
        value = body.get(name)
        if value is None:
            return default
        if kind is bool and value in ("true", "false"):
            return value == "true"  # as rabbitmqadmin sends it
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise Refused(f"'{name}' must be a {_JSON[kind]}", 400)
        return value

    # pages

    @property
    def is_paged(self) -> bool:
        """Did the caller ask for a page?"""
        return "page" in self.request.query or "page_size" in self.request.query

    def query(self, names: dict[str, str], vhost: str | None = None) -> Query:
        """The query in the address; `names` tells our names for RabbitMQ's columns."""
        given = self.request.query
        sort = given.get("sort")
        if sort is not None and sort not in names and sort not in names.values():
            sort = None
        offset, count = 0, ALL_ROWS_MAX
        if self.is_paged:
            count = self.number("page_size", PAGE_ROWS_DEFAULT, 1, COUNT_MAX)
            offset = (self.number("page", 1, 1, 10**9) - 1) * count
        word, is_pattern = given.get("name") or None, given.get("use_regex") == "true"
        try:
            pattern = self.site.manager.host.policy.pattern(word) if word and is_pattern else None
        except ConfigError as error:
            raise Refused(str(error), 400) from None
        return Query(
            vhost=vhost,
            contains=None if is_pattern else word,
            pattern=pattern,
            sort=names.get(sort, sort) if sort else None,
            descending=given.get("sort_reverse") == "true",
            offset=offset,
            count=count,
        )

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A number in the address."""
        text = self.request.query.get(name, str(default))
        if not (text.isascii() and text.isdecimal() and low <= int(text[:12]) <= high):
            raise Refused(f"'{name}' must be a number from {low} to {high}", 400)
        return int(text)

    async def answer(self, page: Page, make: Callable[[Row], Row]) -> web.Response:
        """What is made of the rows, as a page if one was asked for, else as a plain list."""
        columns = self.request.query.get("columns")
        if columns:
            wanted = [name.split(".") for name in columns.split(",")]
            whole, make = make, lambda row: _cut(whole(row), wanted)
        if not self.is_paged:
            return await listed(page.rows, make)
        size = self.number("page_size", PAGE_ROWS_DEFAULT, 1, COUNT_MAX)
        count = max((page.matched + size - 1) // size, 1)
        number = self.number("page", 1, 1, 10**9)
        if number > count:
            raise Refused(f"page {number} is beyond the last one, {count}", 400)
        about = {
            "filtered_count": page.matched,
            "item_count": len(page.rows),
            "page": number,
            "page_count": count,
            "page_size": size,
            "total_count": page.total,
        }
        return await listed(page.rows, make, about)


_JSON = {str: "string", int: "whole number", bool: "boolean", dict: "object", list: "list"}


def told(value: object, status: int = 200) -> web.Response:
    """A value as JSON."""
    return web.Response(body=encode_json(value), status=status, content_type=JSON)


async def listed(rows: list[Row], make: Callable[[Row], Row], about: Row | None = None) -> web.Response:
    """What is made of the rows as a JSON list, or as `items` of a page; other work has its turn after every few. The
    list is used up: to free all rows at the end would take as long as two parts.
    """
    written = await each(_used_up(rows), lambda row: encode_json(make(row)))
    if len(written) > LONG:
        await Turns().give_way()  # a part of its own for joining and sending them
    items = b",".join(written)
    body = b"[" + items + b"]"
    if about is not None:
        body = encode_json(about)[:-1] + b',"items":' + body + b"}"
    return web.Response(body=body, content_type=JSON)


def _used_up(rows: list[Row]) -> Iterator[Row]:
    rows.reverse()
    while rows:
        yield rows.pop()


async def document(value: Row) -> web.Response:
    """A large map as JSON; other work has its turn in between."""
    return web.Response(body=await json_document(value), content_type=JSON)


def done(made: bool = False) -> web.Response:
    """Nothing to tell but that it was done."""
    return web.Response(status=201 if made else 204)


def failed(status: int, reason: str) -> web.Response:
    """An error as RabbitMQ tells it."""
    words = {400: "bad_request", 401: "not_authorized", 403: "access_refused", 404: "Object Not Found"}
    return told({"error": words.get(status, "error"), "reason": reason}, status)


def _cut(item: dict[str, Any], wanted: list[list[str]]) -> dict[str, Any]:
    """The columns of an item; `a.b` is column b inside a."""
    result: dict[str, Any] = {}
    for path in wanted:
        source: Any = item
        for word in path:
            source = source.get(word) if isinstance(source, dict) else None
        if source is None and path[0] not in item:
            continue
        place = result
        for word in path[:-1]:
            inner = place.setdefault(word, {})
            place = inner if isinstance(inner, dict) else {}
        place[path[-1]] = source
    return result
