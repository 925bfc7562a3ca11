"""A route: an address, what it does, and how it is described.

Owns the value that the tables of routes are made of; the server serves them and the OpenAPI description is made from
them, so nothing is served that is not described.
It must not know any route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from weft.management.http.request import Ask

Handler = Callable[[Ask], Awaitable[web.Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one address."""

    method: Literal["GET", "PUT", "POST", "DELETE"]
    path: str
    handle: Handler
    doc: str
    query: tuple[str, ...] = ()
    """Names of what may be in the address; `PAGED` for lists."""
    body: tuple[tuple[str, str], ...] = ()
    """(name, JSON type) of what may be in the body."""


PAGED = ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns")
