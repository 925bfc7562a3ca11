"""The API described in OpenAPI 3.1, from the tables it is served by.

Owns the document at `/api/openapi.json`. Routes and the classes of the schema come in, the description goes out.
It must not describe what is not served: there is no other source than the tables.
Rule: https://spec.openapis.org/oas/v3.1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from weft.management.http.route import Route
from weft.management.manager import BY_NAME
from weft.management.schema import Field

_TYPES = {"strings": "array", "list": "array", "map": "object"}
_PART = re.compile(r"\{(\w+)(?::([^}]*))?\}")
_NUMBERS = ("page", "page_size")
_FLAGS = ("use_regex", "sort_reverse", "if-unused", "if-empty")
ERRORS = {
    "400": "the request makes no sense",
    "401": "no user, or not the right password",
    "403": "the user may not do this",
    "404": "there is no such thing",
    "405": "not possible for this class",
    "409": "not possible now",
    "413": "the body is too large",
    "501": "no such operation",
    "503": "not healthy, or not available",
}


def describe(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PART.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "weft", "version": version, "description": "Management of a weft node."},
        "security": [{"basic": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": {name: _class(name) for name in BY_NAME},
        },
    }


def _operation(route: Route, path: str) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _part_schema(pattern)}
        for name, pattern in _PART.findall(route.path)
    ]
    parameters += [{"name": name, "in": "query", "schema": _query_schema(name)} for name in route.query]
    name = f"{route.method.lower()}{re.sub(r'[^A-Za-z0-9]+', '_', path).rstrip('_')}"
    told: dict[str, Any] = {"summary": route.doc, "operationId": name, "parameters": parameters}
    if route.body:
        properties = {key: {"type": kind} for key, kind in route.body}
        schema = {"type": "object", "properties": properties}
        told["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    told["responses"] = {code: {"description": text} for code, text in _successes(route).items()}
    told["responses"] |= {code: {"description": text} for code, text in ERRORS.items()}
    return told


def _successes(route: Route) -> dict[str, str]:
    match route.method:
        case "GET":
            return {"200": "what was asked for"}
        case "PUT":
            return {"201": "made", "204": "it was there, and is as asked for"}
        case "DELETE":
            return {"204": "gone"}
        case _:
            return {"200": "done, with what came of it", "201": "made", "204": "done"}


def _part_schema(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"} if pattern else {"type": "string", "minLength": 1}


def _query_schema(name: str) -> dict[str, Any]:
    if name in _NUMBERS:
        return {"type": "integer", "minimum": 1}
    return {"type": "string", "enum": ["true", "false"]} if name in _FLAGS else {"type": "string"}


def _class(name: str) -> dict[str, Any]:
    item = BY_NAME[name]
    fields = (*item.properties, *item.statistics)
    return {"type": "object", "description": item.doc, "properties": {field.name: _field(field) for field in fields}}


def _field(field: Field) -> dict[str, Any]:
    kind = _TYPES.get(field.type, field.type)
    told: dict[str, Any] = {"description": field.doc} | ({} if kind == "any" else {"type": [kind, "null"]})
    if field.how == "secret":
        told["writeOnly"] = True
    elif field.how not in ("create", "write", "key"):
        told["readOnly"] = True
    if field.type == "strings":
        told["items"] = {"type": "string"}
    return told
