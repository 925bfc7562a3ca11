"""Routes of the node, its connections and its health.

Owns what RabbitMQ's API has under `/api/overview`, `/api/nodes`, `/api/connections`, `/api/channels` and
`/api/health/checks`, and the lists it has for what weft does without.
Requests come in checked for who asks; each becomes a call of the manager.
It must not answer a health check from memory: each looks at the node as it is.
Rule: RabbitMQ's HTTP API reference; a failed health check is status 503.
"""

from __future__ import annotations

import os
import resource
from time import time
from typing import Any

from aiohttp import web

from weft.management.classes.tables import tallied
from weft.management.definitions import VERSION
from weft.management.http import rabbit
from weft.management.http.metrics import open_files
from weft.management.http.request import Ask, done, listed, told
from weft.management.http.route import PAGED, Route
from weft.management.query import Query
from weft.model.errors import Refused

EXCHANGE_TYPES = ("direct", "fanout", "headers", "topic", "x-delayed-message")
CLUSTER_NAME = "cluster_name"
"""The global parameter that RabbitMQ keeps it in, too."""
PROTOCOLS = ("amqp", "amqp091", "amqp10")


def _counters(stats: dict[str, int]) -> dict[str, int]:
    return {
        "publish": stats["published"],
        "deliver_get": stats["delivered"],
        "deliver": stats["delivered"],
        "ack": stats["settled"],
        "redeliver": stats["redelivered"],
        "drop_unroutable": stats["unroutable"],
    }


def _listeners(ask: Ask) -> list[dict[str, Any]]:
    host = ask.site.manager.host
    return [
        {"node": host.name, "protocol": "amqp/ssl" if tls else "amqp", "ip_address": address, "port": port}
        for address, port, tls in host.listeners()
    ]


async def _overview(ask: Ask) -> web.Response:
    host = ask.site.manager.host
    stats = (await tallied(host.engine)).stats(host.engine)
    counters = _counters(stats)
    return told(
        {
            "management_version": VERSION,
            "rabbitmq_version": VERSION,
            "product_name": "weft",
            "product_version": host.version,
            "erlang_version": "0",
            "rates_mode": "basic",
            "cluster_name": _cluster_name_of(ask),
            "node": host.name,
            "object_totals": {
                "connections": stats["connections"],
                "channels": stats["channels"],
                "exchanges": stats["exchanges"],
                "queues": stats["queues"],
                "consumers": stats["consumers"],
            },
            "queue_totals": {
                "messages": stats["ready"] + stats["unsettled"],
                "messages_ready": stats["ready"],
                "messages_unacknowledged": stats["unsettled"],
            },
            "message_stats": rabbit.stats(counters, ask.site.rates.of("node", counters)),
            "churn_rates": {"connection_created": stats["connections_opened"]},
            "exchange_types": [{"name": name, "enabled": True} for name in EXCHANGE_TYPES],
            "listeners": _listeners(ask),
            "contexts": [],
            "disable_stats": False,
            "enable_queue_totals": True,
            "statistics_db_event_queue": 0,
        }
    )


async def _node(ask: Ask) -> dict[str, Any]:
    manager = ask.site.manager
    row = await manager.read(ask.caller, "node", "/", manager.host.name)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "name": row["name"],
        "type": "disc" if row["data_dir"] else "ram",
        "running": True,
        "os_pid": str(row["pid"]),
        "uptime": row["uptime_s"] * 1000,
        "mem_used": row["memory_bytes"],
        "mem_limit": row["memory_bytes_max"],
        "mem_alarm": "memory_alarm" in row["alarms"],
        "disk_free_alarm": "disk_alarm" in row["alarms"],
        "disk_free": _disk_free(row["data_dir"]),
        "disk_free_limit": 0,
        "fd_used": open_files(),
        "fd_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "sockets_used": row["connections"],
        "sockets_total": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "proc_used": 1,
        "proc_total": 1,
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "partitions": [],
        "being_drained": row["state"] == "draining",
        "rates_mode": "basic",
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "weft": row | {"cpu_s": round(usage.ru_utime + usage.ru_stime, 3)},
    }


def _disk_free(folder: str | None) -> int:
    if folder is None:
        return 0
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize


async def _list_nodes(ask: Ask) -> web.Response:
    return told([await _node(ask)])


async def _get_node(ask: Ask) -> web.Response:
    if ask.part("name") != ask.site.manager.host.name:
        raise Refused(f"no node '{ask.part('name')}'", 404)
    return told(await _node(ask))


def _cluster_name_of(ask: Ask) -> str:
    host = ask.site.manager.host
    given = (one.value for one in host.parameters.parameters() if not one.component and one.name == CLUSTER_NAME)
    return str(next(given, host.name))


async def _cluster_name(ask: Ask) -> web.Response:
    return told({"name": _cluster_name_of(ask)})


async def _put_cluster_name(ask: Ask) -> web.Response:
    value = {"value": ask.field(await ask.body(), "name", str, "")}
    await ask.site.manager.create(ask.caller, "global_parameter", "/", CLUSTER_NAME, value)
    return done()


async def _nothing(_ask: Ask) -> web.Response:
    return told([])


async def _whoami(ask: Ask) -> web.Response:
    tags = next(user.tags for user in ask.site.manager.host.policy.users() if user.name == ask.caller.user)
    return told({"name": ask.caller.user, "tags": list(tags), "is_internal_user": True})


# connections


def _connection(ask: Ask, row: dict[str, Any]) -> dict[str, Any]:
    counters = {"recv_oct": row["bytes_in"], "send_oct": row["bytes_out"]}
    return rabbit.connection(row, ask.site.manager.host.name, ask.site.rates.of(("connection", row["conn"]), counters))


async def _list_connections(ask: Ask) -> web.Response:
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    page = await ask.site.manager.query(ask.caller, "connection", ask.query(rabbit.CONNECTION_NAMES, vhost))
    return await ask.answer(page, lambda row: _connection(ask, row))


async def _connections_of(ask: Ask) -> web.Response:
    rows = (await ask.site.manager.query(ask.caller, "connection", Query(where={"user": ask.part("user")}))).rows
    return await listed(rows, lambda row: _connection(ask, row))


async def _get_connection(ask: Ask) -> web.Response:
    return told(_connection(ask, await ask.site.manager.read(ask.caller, "connection", "/", ask.part("name"))))


async def _close_connection(ask: Ask) -> web.Response:
    reason = {"reason": ask.request.headers.get("X-Reason", "Closed via management plugin")[:200]}
    await ask.site.manager.call(ask.caller, "connection", "/", ask.part("name"), "close", reason)
    return done()


async def _list_channels(ask: Ask) -> web.Response:
    vhost = ask.vhost if "vhost" in ask.request.match_info else None
    page = await ask.site.manager.query(ask.caller, "session", ask.query(rabbit.CHANNEL_NAMES, vhost))
    return await ask.answer(page, lambda row: rabbit.channel(row, ask.site.manager.host.name))


async def _channels_of(ask: Ask) -> web.Response:
    rows = (await ask.site.manager.query(ask.caller, "session", Query(where={"connection": ask.part("name")}))).rows
    return await listed(rows, lambda row: rabbit.channel(row, ask.site.manager.host.name))


async def _get_channel(ask: Ask) -> web.Response:
    rows = (await ask.site.manager.query(ask.caller, "session", Query(where={"name": ask.part("name")}))).rows
    if not rows:
        raise Refused(f"no channel '{ask.part('name')}'", 404)
    return told(rabbit.channel(rows[0], ask.site.manager.host.name))


# health


def _healthy(reason: str | None, **more: object) -> web.Response:
    if reason is None:
        return told({"status": "ok"} | more)
    return told({"status": "failed", "reason": reason} | more, 503)


async def _check_alarms(ask: Ask) -> web.Response:
    alarms = ask.site.peers.alarms
    reason = "; ".join(f"{name}: {text}" for name, text in alarms.items()) or None
    return _healthy(reason, **({"alarms": list(alarms)} if alarms else {}))


async def _check_service(ask: Ask) -> web.Response:
    is_out = not ask.site.manager.host.listeners()
    return _healthy("the node takes no connections" if is_out else None)


async def _check_vhosts(_ask: Ask) -> web.Response:
    return _healthy(None)


async def _check_port(ask: Ask) -> web.Response:
    ports = [port for _, port, _ in ask.site.manager.host.listeners()]
    found = ask.part("port") in map(str, ports)
    return _healthy(None if found else "no listener on this port", port=ask.part("port"), ports=ports)


async def _check_protocol(ask: Ask) -> web.Response:
    asked = ask.part("protocol").lower().replace("-", "").replace("/", "")
    found = bool(_listeners(ask)) and (asked in PROTOCOLS or asked in {"amqpssl", "amqps"})
    return _healthy(None if found else "no listener for this protocol", protocols=list(PROTOCOLS))


async def _check_certificates(ask: Ask) -> web.Response:
    within, unit = ask.part("within"), ask.part("unit")
    if not within.isdecimal() or len(within) > WITHIN_DIGITS_MAX or unit not in UNITS_S:
        raise Refused(f"a time is a number and one of {', '.join(UNITS_S)}", 400)
    end = time() + int(within) * UNITS_S[unit]
    expiring = [file for file, expires_s in ask.site.manager.host.certificates().items() if expires_s <= end]
    reason = "certificates expire within this time" if expiring else None
    return _healthy(reason, **({"expired": expiring} if expiring else {}))


async def _aliveness(ask: Ask) -> web.Response:
    ask.caller.enter(ask.vhost)
    return told({"status": "ok"})


DAY_S = 86_400
UNITS_S = {"days": DAY_S, "weeks": 7 * DAY_S, "months": 30 * DAY_S, "years": 365 * DAY_S}
WITHIN_DIGITS_MAX = 6
_HEALTH = "/api/health/checks/"
_EMPTY = (
    "extensions",
    "feature-flags",
    "deprecated-features",
    "federation-links",
    "shovels",
)

ROUTES = (
    Route("GET", "/api/overview", _overview, "The node in figures."),
    Route("GET", "/api/cluster-name", _cluster_name, "The name of the cluster; at first that of the node."),
    Route("PUT", "/api/cluster-name", _put_cluster_name, "Call it something else.", body=(("name", "string"),)),
    Route("GET", "/api/nodes", _list_nodes, "The node, in a list."),
    Route("GET", "/api/nodes/{name}", _get_node, "The node."),
    Route("GET", "/api/whoami", _whoami, "Who asks."),
    Route("GET", "/api/connections", _list_connections, "Connections that the user may see.", PAGED),
    Route("GET", "/api/vhosts/{vhost}/connections", _list_connections, "Connections to a virtual host.", PAGED),
    Route("GET", "/api/connections/username/{user}", _connections_of, "Connections of a user."),
    Route("GET", "/api/connections/{name}", _get_connection, "One connection."),
    Route("DELETE", "/api/connections/{name}", _close_connection, "Close a connection; `X-Reason` tells why."),
    Route("GET", "/api/connections/{name}/channels", _channels_of, "Channels of a connection."),
    Route("GET", "/api/channels", _list_channels, "Channels that the user may see.", PAGED),
    Route("GET", "/api/vhosts/{vhost}/channels", _list_channels, "Channels in a virtual host.", PAGED),
    Route("GET", "/api/channels/{name}", _get_channel, "One channel."),
    Route("GET", "/api/aliveness-test/{vhost}", _aliveness, "Does the virtual host answer?"),
    Route("GET", _HEALTH + "alarms", _check_alarms, "Is no alarm on?"),
    Route("GET", _HEALTH + "local-alarms", _check_alarms, "Is no alarm on?"),
    Route("GET", _HEALTH + "virtual-hosts", _check_vhosts, "Do all virtual hosts run?"),
    Route("GET", _HEALTH + "node-is-quorum-critical", _check_vhosts, "May the node be stopped? Always."),
    Route("GET", _HEALTH + "is-in-service", _check_service, "Does the node take connections?"),
    Route("GET", _HEALTH + "ready-to-serve-clients", _check_service, "Does the node take connections?"),
    Route(
        "GET",
        _HEALTH + "certificate-expiration/{within}/{unit}",
        _check_certificates,
        "Are all certificates good for so many `days`, `weeks`, `months` or `years` more?",
    ),
    Route("GET", _HEALTH + "port-listener/{port}", _check_port, "Is there a listener on this port?"),
    Route("GET", _HEALTH + "protocol-listener/{protocol}", _check_protocol, "Is there one for this protocol?"),
    *(Route("GET", f"/api/{path}", _nothing, "Always empty: weft has no such thing.") for path in _EMPTY),
)
