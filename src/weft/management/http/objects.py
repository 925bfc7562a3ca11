"""Routes of queues, exchanges and bindings.

Owns what RabbitMQ's API has under `/api/queues`, `/api/exchanges`, `/api/bindings` and `/api/consumers`.
Requests come in checked for who asks; each becomes a call of the manager.
It must not decide what a declaration means or whether it is allowed.
Rule: RabbitMQ's HTTP API reference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote

from aiohttp import web

from weft.management.http import rabbit
from weft.management.http.request import Ask, done, listed, told
from weft.management.http.route import PAGED, Route
from weft.management.query import Query, Row
from weft.model.errors import Refused

DEFAULT_EXCHANGE = "amq.default"
"""How an address names the exchange whose name is empty."""
_FLAGS = {"durable": bool, "auto_delete": bool, "internal": bool, "arguments": dict, "type": str}


def _exchange_name(text: str) -> str:
    return "" if text == DEFAULT_EXCHANGE else text


# queues


def _queue(ask: Ask, row: Row) -> dict[str, Any]:
    rates = ask.site.rates.of(("queue", row["vhost"], row["name"]), rabbit.queue_counters(row))
    return rabbit.queue(row, ask.site.manager.host.name, rates)


async def _list_queues(ask: Ask) -> web.Response:
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    page = await ask.site.manager.query(ask.caller, "queue", ask.query(rabbit.QUEUE_NAMES, vhost))
    return await ask.answer(page, lambda row: _queue(ask, row))


async def _get_queue(ask: Ask) -> web.Response:
    vhost, name = ask.vhost, ask.part("name")
    item = _queue(ask, await ask.site.manager.read(ask.caller, "queue", vhost, name))
    links = (await ask.site.manager.query(ask.caller, "link", Query(vhost, where={"queue": name}))).rows
    item["consumer_details"] = [rabbit.consumer(row, ask.site.manager.host.name) for row in links]
    return told(item)


def _declaration(ask: Ask, body: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: ask.field(body, name, _FLAGS[name], None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


async def _put_queue(ask: Ask) -> web.Response:
    vhost, name = ask.vhost, ask.part("name")
    body = await ask.body()
    values = _declaration(ask, body, ("durable", "auto_delete", "arguments"))
    values.setdefault("durable", True)
    is_new = ask.site.manager.host.topology.find_queue(vhost, name) is None
    await ask.site.manager.create(ask.caller, "queue", vhost, name, values)
    return done(is_new)


async def _delete_queue(ask: Ask) -> web.Response:
    query = ask.request.query
    options = {"if_unused": query.get("if-unused") == "true", "if_empty": query.get("if-empty") == "true"}
    await ask.site.manager.delete(ask.caller, "queue", ask.vhost, ask.part("name"), options)
    return done()


async def _purge_queue(ask: Ask) -> web.Response:
    await ask.site.manager.call(ask.caller, "queue", ask.vhost, ask.part("name"), "purge", {})
    return done()


async def _get_messages(ask: Ask) -> web.Response:
    body = await ask.body()
    count = body.get("count", 1)
    if isinstance(count, str) and count.isascii() and count.isdecimal():
        count = int(count[:9])  # rabbitmqadmin sends text
    truncate = body.get("truncate")
    if isinstance(truncate, str) and truncate.isascii() and truncate.isdecimal():
        truncate = int(truncate[:12])
    arguments = {
        "count": count,
        "ackmode": ask.field(body, "ackmode", str, "ack_requeue_true"),
        "encoding": ask.field(body, "encoding", str, "auto"),
        "truncate": truncate,
    }
    result = await ask.site.manager.call(ask.caller, "queue", ask.vhost, ask.part("name"), "get", arguments)
    return told(result["messages"])


async def _queue_bindings(ask: Ask) -> web.Response:
    vhost, name = ask.vhost, ask.part("name")
    await ask.site.manager.read(ask.caller, "queue", vhost, name)
    where = {"destination": name, "kind": "queue"}
    rows = (await ask.site.manager.query(ask.caller, "binding", Query(vhost, where=where))).rows
    return told([rabbit.default_binding(vhost, name), *map(rabbit.binding, rows)])


async def _list_consumers(ask: Ask) -> web.Response:
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    rows = (await ask.site.manager.query(ask.caller, "link", Query(vhost))).rows
    return await listed(rows, lambda row: rabbit.consumer(row, ask.site.manager.host.name))


# exchanges


def _exchange(ask: Ask, row: Row) -> dict[str, Any]:
    counters = {"publish_in": row["messages_in"], "publish_out": row["messages_out"]}
    return rabbit.exchange(row, ask.site.rates.of(("exchange", row["vhost"], row["name"]), counters))


async def _list_exchanges(ask: Ask) -> web.Response:
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    page = await ask.site.manager.query(ask.caller, "exchange", ask.query({}, vhost))
    return await ask.answer(page, lambda row: _exchange(ask, row))


async def _get_exchange(ask: Ask) -> web.Response:
    name = _exchange_name(ask.part("name"))
    return told(_exchange(ask, await ask.site.manager.read(ask.caller, "exchange", ask.vhost, name)))


async def _put_exchange(ask: Ask) -> web.Response:
    vhost, name = ask.vhost, _exchange_name(ask.part("name"))
    values = _declaration(ask, await ask.body(), ("type", "durable", "auto_delete", "internal", "arguments"))
    values.setdefault("durable", True)
    is_new = ask.site.manager.host.topology.find_exchange(vhost, name) is None
    await ask.site.manager.create(ask.caller, "exchange", vhost, name, values)
    return done(is_new)


async def _delete_exchange(ask: Ask) -> web.Response:
    options = {"if_unused": ask.request.query.get("if-unused") == "true"}
    name = _exchange_name(ask.part("name"))
    await ask.site.manager.delete(ask.caller, "exchange", ask.vhost, name, options)
    return done()


async def _publish(ask: Ask) -> web.Response:
    body = await ask.body()
    missing = [name for name in ("routing_key", "payload", "payload_encoding", "properties") if name not in body]
    if missing:
        raise Refused(f"the body lacks {', '.join(missing)}", 400)
    arguments = {
        "routing_key": ask.field(body, "routing_key", str, ""),
        "payload": ask.field(body, "payload", str, ""),
        "payload_encoding": ask.field(body, "payload_encoding", str, "string"),
        "properties": ask.field(body, "properties", dict, {}) if body["properties"] != [] else {},
    }
    name = _exchange_name(ask.part("name"))
    return told(await ask.site.manager.call(ask.caller, "exchange", ask.vhost, name, "publish", arguments))


async def _bindings_from(ask: Ask) -> web.Response:
    vhost, name = ask.vhost, _exchange_name(ask.part("name"))
    await ask.site.manager.read(ask.caller, "exchange", vhost, name)
    if not name:
        queues = (await ask.site.manager.query(ask.caller, "queue", Query(vhost))).rows
        return await listed(queues, lambda row: rabbit.default_binding(vhost, row["name"]))
    rows = (await ask.site.manager.query(ask.caller, "binding", Query(vhost, where={"source": name}))).rows
    return await listed(rows, rabbit.binding)


async def _bindings_to(ask: Ask) -> web.Response:
    vhost, name = ask.vhost, _exchange_name(ask.part("name"))
    await ask.site.manager.read(ask.caller, "exchange", vhost, name)
    where = {"destination": name, "kind": "exchange"}
    rows = (await ask.site.manager.query(ask.caller, "binding", Query(vhost, where=where))).rows
    return await listed(rows, rabbit.binding)


# bindings


async def _list_bindings(ask: Ask) -> web.Response:
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    page = await ask.site.manager.query(ask.caller, "binding", ask.query({}, vhost))
    if not ask.is_paged:
        queues = (await ask.site.manager.query(ask.caller, "queue", Query(vhost))).rows
        page = replace(page, rows=[*queues, *page.rows])
    return await ask.answer(page, _binding)


def _binding(row: Row) -> dict[str, Any]:
    """A binding, or the one that every queue has to the default exchange."""
    return rabbit.binding(row) if "source" in row else rabbit.default_binding(row["vhost"], row["name"])


def _ends(ask: Ask) -> dict[str, str]:
    kind = {"q": "queue", "e": "exchange"}[ask.part("kind")]
    return {"source": _exchange_name(ask.part("source")), "kind": kind, "destination": ask.part("destination")}


async def _list_between(ask: Ask) -> web.Response:
    where: dict[str, object] = dict(_ends(ask))
    rows = (await ask.site.manager.query(ask.caller, "binding", Query(ask.vhost, where=where))).rows
    return await listed(rows, rabbit.binding)


async def _bind(ask: Ask) -> web.Response:
    body, ends = await ask.body(), _ends(ask)
    values = ends | {
        "routing_key": ask.field(body, "routing_key", str, ""),
        "arguments": ask.field(body, "arguments", dict, {}),
    }
    name = await ask.site.manager.create(ask.caller, "binding", ask.vhost, "", values)
    response = done(made=True)
    # Relative to the request, and the key quoted as in a path: clients take it from there.
    words = ends["destination"], name.rsplit("/", 1)[1]
    response.headers["Location"] = "/".join(quote(word, safe="") for word in words)
    return response


async def _found(ask: Ask) -> Row:
    key = ask.part("key")
    where: dict[str, object] = dict(_ends(ask))
    for row in (await ask.site.manager.query(ask.caller, "binding", Query(ask.vhost, where=where))).rows:
        # A client may send the key as it was told, or decoded once more on the way.
        if key in (row["properties_key"], row["routing_key"]) or quote(key, safe="") == row["properties_key"]:
            return row
    raise Refused("no such binding", 404)


async def _get_binding(ask: Ask) -> web.Response:
    return told(rabbit.binding(await _found(ask)))


async def _unbind(ask: Ask) -> web.Response:
    row = await _found(ask)
    await ask.site.manager.delete(ask.caller, "binding", ask.vhost, row["name"], {})
    return done()


_DECLARE_QUEUE = (("durable", "boolean"), ("auto_delete", "boolean"), ("arguments", "object"))
_DECLARE_EXCHANGE = (("type", "string"), ("internal", "boolean"), *_DECLARE_QUEUE)
_GET = (("count", "integer"), ("ackmode", "string"), ("encoding", "string"), ("truncate", "integer"))
_PUBLISH = (("routing_key", "string"), ("payload", "string"), ("payload_encoding", "string"), ("properties", "object"))
_BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}"

ROUTES = (
    Route("GET", "/api/queues", _list_queues, "All queues that the user may see.", PAGED),
    Route("GET", "/api/queues/{vhost}", _list_queues, "All queues of a virtual host.", PAGED),
    Route("GET", "/api/queues/{vhost}/{name}", _get_queue, "One queue."),
    Route("PUT", "/api/queues/{vhost}/{name}", _put_queue, "Declare a queue.", body=_DECLARE_QUEUE),
    Route("DELETE", "/api/queues/{vhost}/{name}", _delete_queue, "Delete a queue.", ("if-unused", "if-empty")),
    Route("DELETE", "/api/queues/{vhost}/{name}/contents", _purge_queue, "Drop the ready messages of a queue."),
    Route("POST", "/api/queues/{vhost}/{name}/get", _get_messages, "Look at messages, or take them.", body=_GET),
    Route("GET", "/api/queues/{vhost}/{name}/bindings", _queue_bindings, "Bindings to a queue."),
    Route("GET", "/api/consumers", _list_consumers, "All consumers."),
    Route("GET", "/api/consumers/{vhost}", _list_consumers, "All consumers of a virtual host."),
    Route("GET", "/api/exchanges", _list_exchanges, "All exchanges that the user may see.", PAGED),
    Route("GET", "/api/exchanges/{vhost}", _list_exchanges, "All exchanges of a virtual host.", PAGED),
    Route("GET", "/api/exchanges/{vhost}/{name}", _get_exchange, "One exchange."),
    Route("PUT", "/api/exchanges/{vhost}/{name}", _put_exchange, "Declare an exchange.", body=_DECLARE_EXCHANGE),
    Route("DELETE", "/api/exchanges/{vhost}/{name}", _delete_exchange, "Delete an exchange.", ("if-unused",)),
    Route("POST", "/api/exchanges/{vhost}/{name}/publish", _publish, "Send one message.", body=_PUBLISH),
    Route("GET", "/api/exchanges/{vhost}/{name}/bindings/source", _bindings_from, "Bindings from an exchange."),
    Route("GET", "/api/exchanges/{vhost}/{name}/bindings/destination", _bindings_to, "Bindings to an exchange."),
    Route("GET", "/api/bindings", _list_bindings, "All bindings that the user may see.", PAGED),
    Route("GET", "/api/bindings/{vhost}", _list_bindings, "All bindings of a virtual host.", PAGED),
    Route("GET", _BETWEEN, _list_between, "Bindings between an exchange and a queue (q) or an exchange (e)."),
    Route("POST", _BETWEEN, _bind, "Bind.", body=(("routing_key", "string"), ("arguments", "object"))),
    Route("GET", _BETWEEN + "/{key}", _get_binding, "One binding."),
    Route("DELETE", _BETWEEN + "/{key}", _unbind, "Unbind."),
)
