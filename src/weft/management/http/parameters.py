"""Routes of parameters and limits.

Owns what RabbitMQ's API has under `/api/parameters`, `/api/global-parameters`, `/api/vhost-limits` and
`/api/user-limits`.
Requests come in checked for who asks; each becomes a call of the manager.
It must not know what a value means.
Rule: RabbitMQ's HTTP API reference.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from aiohttp import web

from weft.management.classes.limits import LIMITS, UNLIMITED, Kind
from weft.management.classes.parameters import parameter_name
from weft.management.http import rabbit
from weft.management.http.request import Ask, done, told
from weft.management.http.route import PAGED, Route
from weft.management.query import Query, Row
from weft.model.errors import Refused

# parameters


def _parameter(row: Row) -> dict[str, Any]:
    name = unquote(row["name"].partition("/")[2])
    return {"component": row["component"], "vhost": row["vhost"], "name": name, "value": row["value"]}


async def _list(ask: Ask) -> web.Response:
    ask.caller.require("policymaker")
    parts = ask.request.match_info
    where: dict[str, object] = {"component": parts["component"]} if "component" in parts else {}
    query = Query(ask.vhost if "vhost" in parts else None, where=where)
    return told([_parameter(row) for row in (await ask.site.manager.query(ask.caller, "parameter", query)).rows])


async def _get(ask: Ask) -> web.Response:
    ask.caller.require("policymaker")
    return told(_parameter(await ask.site.manager.read(ask.caller, "parameter", ask.vhost, _name(ask))))


async def _put(ask: Ask) -> web.Response:
    values, vhost, name = await _value(ask), ask.vhost, _name(ask)
    known = [row["name"] for row in (await ask.site.manager.query(ask.caller, "parameter", Query(vhost))).rows]
    await ask.site.manager.create(ask.caller, "parameter", vhost, name, values)
    return done(name not in known)


async def _delete(ask: Ask) -> web.Response:
    await ask.site.manager.delete(ask.caller, "parameter", ask.vhost, _name(ask), {})
    return done()


def _name(ask: Ask) -> str:
    return parameter_name(ask.part("component"), ask.part("name"))


async def _value(ask: Ask) -> dict[str, Any]:
    body = await ask.body()
    if "value" not in body:
        raise Refused("the body lacks value", 400)
    return {"value": body["value"]}


# parameters of the node


def _global(row: Row) -> dict[str, Any]:
    return {"name": row["name"], "value": row["value"]}


async def _list_global(ask: Ask) -> web.Response:
    page = await ask.site.manager.query(ask.caller, "global_parameter", ask.query({}))
    return await ask.answer(page, _global)


async def _get_global(ask: Ask) -> web.Response:
    return told(_global(await ask.site.manager.read(ask.caller, "global_parameter", "/", ask.part("name"))))


async def _put_global(ask: Ask) -> web.Response:
    values, name = await _value(ask), ask.part("name")
    known = [row["name"] for row in (await ask.site.manager.query(ask.caller, "global_parameter", Query())).rows]
    await ask.site.manager.create(ask.caller, "global_parameter", "/", name, values)
    return done(name not in known)


async def _delete_global(ask: Ask) -> web.Response:
    await ask.site.manager.delete(ask.caller, "global_parameter", "/", ask.part("name"), {})
    return done()


# limits


def _kind(ask: Ask) -> Kind:
    return "user" if ask.request.path.startswith("/api/user-limits") else "vhost"


async def _limits(ask: Ask) -> web.Response:
    kind = _kind(ask)
    if kind in ask.request.match_info:
        rows = [await ask.site.manager.read(ask.caller, kind, "/", ask.part(kind))]
    else:
        rows = (await ask.site.manager.query(ask.caller, kind, Query())).rows
    told_limits = [rabbit.limits(row, kind) for row in rows]
    return told([row for row in told_limits if row["value"]])


async def _put_limit(ask: Ask) -> web.Response:
    value = (await _value(ask))["value"]
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        value = int(value[:12])
    await _set_limit(ask, value)
    return done()


async def _delete_limit(ask: Ask) -> web.Response:
    await _set_limit(ask, UNLIMITED)
    return done()


async def _set_limit(ask: Ask, value: object) -> None:
    kind = _kind(ask)
    what = ask.part("limit").replace("-", "_")
    if what not in LIMITS[kind]:
        raise Refused(f"no limit '{ask.part('limit')}'", 400)
    ask.caller.require("administrator")
    await ask.site.manager.update(ask.caller, kind, "/", ask.part(kind), {what: value})


_VALUE = (("value", "object"),)
_NUMBER = (("value", "integer"),)
_ONE = "/api/parameters/{component}/{vhost}/{name}"

ROUTES = (
    Route("GET", "/api/parameters", _list, "Parameters that the user may see."),
    Route("GET", "/api/parameters/{component}", _list, "Parameters of a component."),
    Route("GET", "/api/parameters/{component}/{vhost}", _list, "Parameters of a component in a virtual host."),
    Route("GET", _ONE, _get, "One parameter."),
    Route("PUT", _ONE, _put, "Set a parameter.", body=_VALUE),
    Route("DELETE", _ONE, _delete, "Clear a parameter."),
    Route("GET", "/api/global-parameters", _list_global, "Parameters of the node.", PAGED),
    Route("GET", "/api/global-parameters/{name}", _get_global, "One of them."),
    Route("PUT", "/api/global-parameters/{name}", _put_global, "Set one of them.", body=_VALUE),
    Route("DELETE", "/api/global-parameters/{name}", _delete_global, "Clear one of them."),
    Route("GET", "/api/vhost-limits", _limits, "Limits of virtual hosts."),
    Route("GET", "/api/vhost-limits/{vhost}", _limits, "Limits of a virtual host."),
    Route(
        "PUT", "/api/vhost-limits/{vhost}/{limit}", _put_limit, "Set `max-connections` or `max-queues`.", body=_NUMBER
    ),
    Route("DELETE", "/api/vhost-limits/{vhost}/{limit}", _delete_limit, "Clear a limit."),
    Route("GET", "/api/user-limits", _limits, "Limits of users."),
    Route("GET", "/api/user-limits/{user}", _limits, "Limits of a user."),
    Route(
        "PUT", "/api/user-limits/{user}/{limit}", _put_limit, "Set `max-connections` or `max-channels`.", body=_NUMBER
    ),
    Route("DELETE", "/api/user-limits/{user}/{limit}", _delete_limit, "Clear a limit."),
)
