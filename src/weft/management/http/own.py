"""weft's own routes: every class of the schema, and the description of the whole API.

Owns `/api/weft/…`, which serves each managed class in the same way, and `/api/openapi.json`.
Requests come in checked for who asks; each becomes a call of the manager.
It must not know a class by name.
Rule: schema/management.json; the answers have its names.
"""

from __future__ import annotations

from aiohttp import web

from weft.management.http.request import Ask, done, told
from weft.management.http.route import PAGED, Route
from weft.management.manager import BY_NAME
from weft.model.errors import Refused


def _class(ask: Ask) -> str:
    name = ask.part("class")
    if name not in BY_NAME:
        raise Refused(f"no class '{name}'; there are {', '.join(BY_NAME)}", 404)
    return name


def _place(ask: Ask) -> tuple[str, str]:
    """(virtual host, name): `vhost` in the address, `/` without."""
    return ask.request.query.get("vhost", "/"), ask.part("name")


async def _list_objects(ask: Ask) -> web.Response:
    class_name = _class(ask)
    names = {name: name for name in BY_NAME[class_name].attributes}
    page = await ask.site.manager.query(ask.caller, class_name, ask.query(names, ask.request.query.get("vhost")))
    return await ask.answer(page, dict)


async def _get_object(ask: Ask) -> web.Response:
    vhost, name = _place(ask)
    return told(await ask.site.manager.read(ask.caller, _class(ask), vhost, name))


async def _put_object(ask: Ask) -> web.Response:
    vhost, name = _place(ask)
    await ask.site.manager.create(ask.caller, _class(ask), vhost, name, await ask.body())
    return done()


async def _delete_object(ask: Ask) -> web.Response:
    vhost, name = _place(ask)
    await ask.site.manager.delete(ask.caller, _class(ask), vhost, name, {})
    return done()


async def _call_operation(ask: Ask) -> web.Response:
    vhost, name = _place(ask)
    operation, arguments = ask.part("operation"), await ask.body()
    return told(await ask.site.manager.call(ask.caller, _class(ask), vhost, name, operation, arguments))


_OBJECT = "/api/weft/{class}/{name}"

ROUTES = (
    Route("GET", "/api/weft/{class}", _list_objects, "Objects of a class.", (*PAGED, "vhost")),
    Route("GET", _OBJECT, _get_object, "One object.", ("vhost",)),
    Route("PUT", _OBJECT, _put_object, "Make an object.", ("vhost",)),
    Route("DELETE", _OBJECT, _delete_object, "Delete an object.", ("vhost",)),
    Route("POST", _OBJECT + "/{operation}", _call_operation, "Carry out an operation.", ("vhost",)),
)
