"""Routes of virtual hosts, users, permissions and definitions.

Owns what RabbitMQ's API has under `/api/vhosts`, `/api/users`, `/api/permissions`, `/api/topic-permissions` and
`/api/definitions`.
Requests come in checked for who asks; each becomes a call of the manager.
It must never tell a password hash but in an export to an administrator.
Rule: RabbitMQ's HTTP API reference; its rules of import are in `definitions`.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from weft.management.classes.users import topic_name
from weft.management.definitions import export, import_, read_hash, read_tags, read_vhost
from weft.management.http import rabbit
from weft.management.http.request import BODY_BYTES_MAX, Ask, document, done, listed, told
from weft.management.http.route import PAGED, Route
from weft.management.query import Query
from weft.management.reading import json_object
from weft.model.errors import Refused

# virtual hosts


async def _list_vhosts(ask: Ask) -> web.Response:
    page = await ask.site.manager.query(ask.caller, "vhost", ask.query({}))
    return await ask.answer(page, rabbit.vhost)


async def _get_vhost(ask: Ask) -> web.Response:
    return told(rabbit.vhost(await ask.site.manager.read(ask.caller, "vhost", "/", ask.vhost)))


async def _put_vhost(ask: Ask) -> web.Response:
    name = ask.part("vhost")
    values = read_vhost(await ask.body())
    is_new = name not in ask.site.manager.host.policy.vhosts()
    await ask.site.manager.create(ask.caller, "vhost", "/", name, values)
    if is_new:
        # Whoever makes a virtual host can use it, as in RabbitMQ.
        await ask.site.manager.create(
            ask.site.manager.node,
            "permission",
            name,
            ask.caller.user,
            dict.fromkeys(("configure", "write", "read"), ".*"),
        )
    return done(is_new)


async def _delete_vhost(ask: Ask) -> web.Response:
    await ask.site.manager.delete(ask.caller, "vhost", "/", ask.part("vhost"), {})
    return done()


async def _vhost_permissions(ask: Ask) -> web.Response:
    rows = (await ask.site.manager.query(ask.caller, "permission", Query(ask.vhost))).rows
    return await listed(rows, rabbit.permission)


# users


async def _list_users(ask: Ask) -> web.Response:
    page = await ask.site.manager.query(ask.caller, "user", ask.query({}))
    return await ask.answer(page, rabbit.user)


async def _get_user(ask: Ask) -> web.Response:
    row = await ask.site.manager.read(ask.caller, "user", "/", ask.part("name"))
    return told(rabbit.user(row))


async def _put_user(ask: Ask) -> web.Response:
    body, name = await ask.body(), ask.part("name")
    if "password" not in body and "password_hash" not in body and "tags" not in body:
        raise Refused("the body needs tags, and password or password_hash", 400)
    tags = read_tags(body.get("tags", []))
    values = {"tags": tags, "password": ask.field(body, "password", str, None)}
    if values["password"] is None and body.get("password_hash"):
        encoded = read_hash(ask.field(body, "password_hash", str, ""), body.get("hashing_algorithm"))
        values = {"tags": tags, "password_hash": encoded}
    is_new = name not in [user.name for user in ask.site.manager.host.policy.users()]
    await ask.site.manager.create(ask.caller, "user", "/", name, values)
    return done(is_new)


async def _delete_user(ask: Ask) -> web.Response:
    await ask.site.manager.delete(ask.caller, "user", "/", ask.part("name"), {})
    return done()


async def _delete_users(ask: Ask) -> web.Response:
    names = ask.field(await ask.body(), "users", list, [])
    for name in names:
        if isinstance(name, str):
            await ask.site.manager.delete(ask.caller, "user", "/", name, {})
    return done()


async def _user_permissions(ask: Ask) -> web.Response:
    name = ask.part("name")
    await ask.site.manager.read(ask.caller, "user", "/", name)
    rows = (await ask.site.manager.query(ask.caller, "permission", Query(where={"name": name}))).rows
    return await listed(rows, rabbit.permission)


async def _without_permissions(ask: Ask) -> web.Response:
    rows = (await ask.site.manager.query(ask.caller, "permission", Query())).rows
    permitted = {row["name"] for row in rows}
    users = (await ask.site.manager.query(ask.caller, "user", Query())).rows
    return told([rabbit.user(row) for row in users if row["name"] not in permitted])


# permissions


async def _list_permissions(ask: Ask) -> web.Response:
    page = await ask.site.manager.query(ask.caller, "permission", ask.query({}))
    return await ask.answer(page, rabbit.permission)


async def _get_permission(ask: Ask) -> web.Response:
    return told(rabbit.permission(await ask.site.manager.read(ask.caller, "permission", ask.vhost, ask.part("user"))))


async def _put_permission(ask: Ask) -> web.Response:
    body, vhost, user = await ask.body(), ask.vhost, ask.part("user")
    missing = [name for name in ("configure", "write", "read") if name not in body]
    if missing:
        raise Refused(f"the body lacks {', '.join(missing)}", 400)
    values = {name: ask.field(body, name, str, "") for name in ("configure", "write", "read")}
    is_new = not ask.site.manager.host.policy.may_enter(user, vhost)
    await ask.site.manager.create(ask.caller, "permission", vhost, user, values)
    return done(is_new)


async def _delete_permission(ask: Ask) -> web.Response:
    await ask.site.manager.delete(ask.caller, "permission", ask.vhost, ask.part("user"), {})
    return done()


# permissions on topics


async def _list_topics(ask: Ask) -> web.Response:
    page = await ask.site.manager.query(ask.caller, "topic_permission", ask.query({}))
    return await ask.answer(page, rabbit.topic_permission)


async def _topics_in(ask: Ask) -> web.Response:
    where: dict[str, object] = {"user": ask.part("user")} if "user" in ask.request.match_info else {}
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    rows = (await ask.site.manager.query(ask.caller, "topic_permission", Query(vhost, where=where))).rows
    if vhost is not None and where and not rows:
        raise Refused(f"user '{ask.part('user')}' has no permissions on topics in '{vhost}'", 404)
    return told([rabbit.topic_permission(row) for row in rows])


async def _put_topics(ask: Ask) -> web.Response:
    body, vhost, user = await ask.body(), ask.vhost, ask.part("user")
    missing = [name for name in ("exchange", "write", "read") if name not in body]
    if missing:
        raise Refused(f"the body lacks {', '.join(missing)}", 400)
    values = {name: ask.field(body, name, str, "") for name in ("write", "read")}
    name = topic_name(user, ask.field(body, "exchange", str, ""))
    rows = (await ask.site.manager.query(ask.caller, "topic_permission", Query(vhost))).rows
    known = [row["name"] for row in rows]
    await ask.site.manager.create(ask.caller, "topic_permission", vhost, name, values)
    return done(name not in known)


async def _delete_topics(ask: Ask) -> web.Response:
    query = Query(ask.vhost, where={"user": ask.part("user")})
    rows = (await ask.site.manager.query(ask.caller, "topic_permission", query)).rows
    if not rows:
        raise Refused(f"user '{ask.part('user')}' has no permissions on topics in '{ask.vhost}'", 404)
    for row in rows:
        await ask.site.manager.delete(ask.caller, "topic_permission", ask.vhost, row["name"], {})
    return done()


async def _delete_topic(ask: Ask) -> web.Response:
    name = topic_name(ask.part("user"), ask.part("exchange"))
    await ask.site.manager.delete(ask.caller, "topic_permission", ask.vhost, name, {})
    return done()


# definitions


async def _get_definitions(ask: Ask) -> web.Response:
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    return await document(await export(ask.site.manager, ask.caller, vhost))


async def _post_definitions(ask: Ask) -> web.Response:
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    if ask.request.content_type == "multipart/form-data":
        body = await _uploaded(ask)
    else:
        body = await ask.body()
    await import_(ask.site.manager, ask.caller, body, vhost)
    return done()


async def _uploaded(ask: Ask) -> dict[str, Any]:
    form = await ask.request.post()
    part = form.get("file")
    data = part.file.read(BODY_BYTES_MAX) if isinstance(part, web.FileField) else str(part or "").encode()
    return await json_object(data, "the file")


_USER = (("password", "string"), ("password_hash", "string"), ("tags", "string"))
_TOPICS = (("exchange", "string"), ("write", "string"), ("read", "string"))
_VHOST = (("description", "string"), ("tags", "array"), ("default_queue_type", "string"))
_RIGHTS = (("configure", "string"), ("write", "string"), ("read", "string"))

ROUTES = (
    Route("GET", "/api/vhosts", _list_vhosts, "Virtual hosts that the user may see.", PAGED),
    Route("GET", "/api/vhosts/{vhost}", _get_vhost, "One virtual host."),
    Route(
        "PUT",
        "/api/vhosts/{vhost}",
        _put_vhost,
        "Make a virtual host, which the user may use, or describe it.",
        body=_VHOST,
    ),
    Route("DELETE", "/api/vhosts/{vhost}", _delete_vhost, "Delete a virtual host and all that is in it."),
    Route("GET", "/api/vhosts/{vhost}/permissions", _vhost_permissions, "Permissions in a virtual host."),
    Route("GET", "/api/users", _list_users, "All users.", PAGED),
    Route("GET", "/api/users/without-permissions", _without_permissions, "Users that may enter nowhere."),
    Route("POST", "/api/users/bulk-delete", _delete_users, "Delete users.", body=(("users", "array"),)),
    Route("GET", "/api/users/{name}", _get_user, "One user."),
    Route("PUT", "/api/users/{name}", _put_user, "Make or change a user.", body=_USER),
    Route("DELETE", "/api/users/{name}", _delete_user, "Delete a user; its connections are closed."),
    Route("GET", "/api/users/{name}/permissions", _user_permissions, "Permissions of a user."),
    Route("GET", "/api/permissions", _list_permissions, "All permissions.", PAGED),
    Route("GET", "/api/permissions/{vhost}/{user}", _get_permission, "One permission."),
    Route("PUT", "/api/permissions/{vhost}/{user}", _put_permission, "Set a permission.", body=_RIGHTS),
    Route("DELETE", "/api/permissions/{vhost}/{user}", _delete_permission, "Clear a permission."),
    Route("GET", "/api/topic-permissions", _list_topics, "All permissions on topics.", PAGED),
    Route("GET", "/api/topic-permissions/{vhost}/{user}", _topics_in, "Permissions on topics of a user."),
    Route("PUT", "/api/topic-permissions/{vhost}/{user}", _put_topics, "Set one of them.", body=_TOPICS),
    Route("DELETE", "/api/topic-permissions/{vhost}/{user}", _delete_topics, "Clear all of them."),
    Route("DELETE", "/api/topic-permissions/{vhost}/{user}/{exchange}", _delete_topic, "Clear one of them."),
    Route("GET", "/api/vhosts/{vhost}/topic-permissions", _topics_in, "Permissions on topics in a virtual host."),
    Route("GET", "/api/users/{user}/topic-permissions", _topics_in, "Permissions on topics of a user."),
    Route("GET", "/api/definitions", _get_definitions, "Everything that is defined."),
    Route("POST", "/api/definitions", _post_definitions, "Make what is defined, and keep what is there."),
    Route("GET", "/api/definitions/{vhost}", _get_definitions, "Everything that is defined in a virtual host."),
    Route("POST", "/api/definitions/{vhost}", _post_definitions, "Make what is defined in a virtual host."),
)
