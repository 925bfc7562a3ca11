"""Routes of policies, those of operators too.

Owns what RabbitMQ's API has under `/api/policies` and `/api/operator-policies`.
Requests come in checked for who asks; each becomes a call of the manager.
It must not decide what a policy means or applies to.
Rule: RabbitMQ's HTTP API reference.
"""

from __future__ import annotations

from aiohttp import web

from weft.management.classes.policies import policy_values
from weft.management.http import rabbit
from weft.management.http.request import Ask, done, told
from weft.management.http.route import PAGED, Route
from weft.management.query import Query


def _class(ask: Ask) -> str:
    return "operator_policy" if ask.request.path.startswith("/api/operator-policies") else "policy"


async def _list(ask: Ask) -> web.Response:
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    page = await ask.site.manager.query(ask.caller, _class(ask), ask.query({}, vhost))
    return await ask.answer(page, rabbit.policy)


async def _get(ask: Ask) -> web.Response:
    return told(rabbit.policy(await ask.site.manager.read(ask.caller, _class(ask), ask.vhost, ask.part("name"))))


async def _put(ask: Ask) -> web.Response:
    vhost, name = ask.vhost, ask.part("name")
    values = policy_values(await ask.body())
    known = [row["name"] for row in (await ask.site.manager.query(ask.caller, _class(ask), Query(vhost))).rows]
    await ask.site.manager.create(ask.caller, _class(ask), vhost, name, values)
    return done(name not in known)


async def _delete(ask: Ask) -> web.Response:
    await ask.site.manager.delete(ask.caller, _class(ask), ask.vhost, ask.part("name"), {})
    return done()


def _routes(path: str, what: str) -> tuple[Route, ...]:
    fields = (("pattern", "string"), ("definition", "object"), ("priority", "integer"), ("apply-to", "string"))
    one = f"/api/{path}/{{vhost}}/{{name}}"
    return (
        Route("GET", f"/api/{path}", _list, f"{what} that the user may see.", PAGED),
        Route("GET", f"/api/{path}/{{vhost}}", _list, f"{what} of a virtual host.", PAGED),
        Route("GET", one, _get, f"One of the {what[0].lower()}{what[1:]}."),
        Route("PUT", one, _put, "Set it; it holds at once for what it matches.", body=fields),
        Route("DELETE", one, _delete, "Clear it."),
    )


ROUTES = (*_routes("policies", "Policies"), *_routes("operator-policies", "Operator policies"))
