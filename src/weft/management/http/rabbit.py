"""weft's objects in RabbitMQ's words.

Owns the translation of rows into the objects of RabbitMQ's management API, field by field, for the tools that read
them. Rows come in, dictionaries go out.
It must not ask anybody anything.
Rule: the fields that rabbitmqadmin, Flower, KEDA, Terraform and monitoring plug-ins read; what weft does not have is
left out or empty, what it has more is under `weft`.
"""

from __future__ import annotations

from typing import Any

from weft.management.definitions import told_vhost
from weft.management.query import Row

QUEUE_NAMES = {
    "messages": "ready",
    "messages_ready": "ready",
    "messages_unacknowledged": "unsettled",
    "message_bytes": "ready_bytes",
    "message_stats.publish": "published",
    "message_stats.publish_details.rate": "published",
    "message_stats.deliver_get": "delivered",
    "message_stats.ack": "settled",
    "consumers": "consumers",
}
CONNECTION_NAMES = {
    "name": "name",
    "state": "state",
    "connected_at": "connected_at_ms",
    "user": "user",
    "protocol": "protocol",
    "ssl": "tls",
    "channels": "channels",
    "recv_oct": "bytes_in",
    "send_oct": "bytes_out",
}
CHANNEL_NAMES = {
    "name": "name",
    "number": "number",
    "user": "user",
    "consumer_count": "consumers",
    "messages_unacknowledged": "unsettled",
    "prefetch_count": "prefetch",
}
"""Our columns for those that RabbitMQ's clients sort by."""
LIMITS = ("max_connections", "max_queues", "max_channels")
_OWN = ("oldest_ms", "expired", "dropped", "dead_lettered", "duplicate", "returned")
_LATENCIES = tuple(f"{what}_{how}_us" for what in ("time_in_queue", "settle") for how in ("p50", "p90", "p99", "max"))


def stats(counters: dict[str, int], rates: dict[str, float]) -> dict[str, Any]:
    """`message_stats`: each counter with its rate."""
    told: dict[str, Any] = {}
    for name, count in counters.items():
        told[name] = count
        told[f"{name}_details"] = {"rate": round(rates.get(name, 0.0), 2)}
    return told


def queue_counters(row: Row) -> dict[str, int]:
    """The counters of a queue in RabbitMQ's names."""
    delivered, redelivered = row["delivered"], row["redelivered"]
    counters = {"publish": row["published"], "deliver_get": delivered, "ack": row["settled"], "redeliver": redelivered}
    return counters | {"deliver": delivered}


def queue(row: Row, node: str, rates: dict[str, float]) -> dict[str, Any]:
    """A queue."""
    ready, unsettled = row["ready"], row["unsettled"]
    return {
        "name": row["name"],
        "vhost": row["vhost"],
        "type": row.get("type", "classic"),
        "durable": row.get("durable", False),
        "auto_delete": row.get("auto_delete", False),
        "exclusive": row.get("exclusive", False),
        "arguments": row.get("arguments", {}),
        "node": node,
        "state": "running",
        **_applied(row),
        "consumers": row["consumers"],
        "consumer_capacity": 1.0 if row["consumers"] and not ready else 0.0,
        "consumer_utilisation": 1.0 if row["consumers"] and not ready else 0.0,
        "messages": ready + unsettled,
        "messages_ready": ready,
        "messages_unacknowledged": unsettled,
        "messages_details": {"rate": rates.get("publish", 0.0) - rates.get("ack", 0.0)},
        "messages_ready_details": {"rate": rates.get("publish", 0.0) - rates.get("deliver", 0.0)},
        "messages_unacknowledged_details": {"rate": rates.get("deliver", 0.0) - rates.get("ack", 0.0)},
        "message_bytes": row["ready_bytes"],
        "message_bytes_ready": row["ready_bytes"],
        "memory": row["ready_bytes"],
        "message_stats": stats(queue_counters(row), rates),
        "weft": {name: row.get(name) for name in (*_OWN, *_LATENCIES, "types")},
    }


def _applied(row: Row) -> dict[str, Any]:
    names = {name: row.get(name) for name in ("policy", "operator_policy")}
    return {**names, "effective_policy_definition": row.get("effective_policy_definition") or {}}


def policy(row: Row) -> dict[str, Any]:
    """A policy, of either kind."""
    about = {"vhost": row["vhost"], "name": row["name"], "pattern": row["pattern"], "apply-to": row["apply_to"]}
    return {**about, "definition": row["definition"], "priority": row["priority"]}


def exchange(row: Row, rates: dict[str, float]) -> dict[str, Any]:
    """An exchange."""
    counters = {"publish_in": row["messages_in"], "publish_out": row["messages_out"]}
    return {
        "name": row["name"],
        "vhost": row["vhost"],
        "type": row["type"],
        "durable": row["durable"],
        "auto_delete": row["auto_delete"],
        "internal": row["internal"],
        "arguments": row["arguments"],
        "user_who_performed_action": "",
        **_applied(row),
        "message_stats": stats(counters, rates),
        "weft": {"unroutable": row["unroutable"], "duplicate": row.get("duplicate")},
    }


def binding(row: Row) -> dict[str, Any]:
    """A binding."""
    return {
        "source": row["source"],
        "vhost": row["vhost"],
        "destination": row["destination"],
        "destination_type": row["kind"],
        "routing_key": row["routing_key"],
        "arguments": row["arguments"],
        "properties_key": row["properties_key"],
        "weft": {"matched": row["matched"]},
    }


def default_binding(vhost: str, queue_name: str) -> dict[str, Any]:
    """The binding of every queue to the default exchange."""
    ends = {"source": "", "vhost": vhost, "destination": queue_name, "destination_type": "queue"}
    return ends | {"routing_key": queue_name, "arguments": {}, "properties_key": queue_name}


def connection(row: Row, node: str, rates: dict[str, float]) -> dict[str, Any]:
    """A connection."""
    peer_host, _, peer_port = str(row.get("peer", "")).rpartition(":")
    host, _, port = str(row.get("name", "")).rpartition(" -> ")[2].rpartition(":")
    protocol = "AMQP 0-9-1" if "0-9-1" in row["protocol"] else "AMQP 1-0"
    return {
        "name": row.get("name", str(row["conn"])),
        "user_provided_name": (row.get("client_properties") or {}).get("connection_name"),
        "node": node,
        "vhost": row["vhost"],
        "user": row["user"],
        "user_who_performed_action": row["user"],
        "protocol": protocol,
        "auth_mechanism": row.get("mechanism"),
        "client_properties": row.get("client_properties", {}),
        "connected_at": row.get("connected_at_ms"),
        "host": host,
        "port": int(port) if port.isdecimal() else 0,
        "peer_host": peer_host,
        "peer_port": int(peer_port) if peer_port.isdecimal() else 0,
        "ssl": row["tls"],
        "state": row["state"],
        "type": "network",
        "channels": row["channels"],
        "recv_oct": row["bytes_in"],
        "recv_oct_details": {"rate": round(rates.get("recv_oct", 0.0), 2)},
        "send_oct": row["bytes_out"],
        "send_oct_details": {"rate": round(rates.get("send_oct", 0.0), 2)},
        "weft": {"conn": row["conn"], "container": row.get("container"), "messages_in": row["messages_in"]},
    }


def channel(row: Row, node: str) -> dict[str, Any]:
    """A channel, or a session of AMQP 1.0."""
    return {
        "name": row["name"],
        "number": row["number"],
        "node": node,
        "vhost": row["vhost"],
        "user": row["user"],
        "connection_details": {"name": row["connection"]},
        "consumer_count": row["consumers"],
        "messages_unacknowledged": row["unsettled"],
        "messages_unconfirmed": 0,
        "prefetch_count": row["prefetch"],
        "global_prefetch_count": 0,
        "confirm": row["confirm"],
        "transactional": row["transactional"],
        "state": "running",
    }


def consumer(row: Row, node: str) -> dict[str, Any]:
    """A consumer, or a receiving link of AMQP 1.0."""
    return {
        "consumer_tag": row.get("tag") or row["name"],
        "queue": {"name": row["queue"], "vhost": row["vhost"]},
        "channel_details": {
            "connection_name": row.get("connection"),
            "name": f"{row.get('connection')} ({row.get('session')})",
            "number": row.get("session"),
            "node": node,
            "user": row.get("user"),
        },
        "ack_required": bool(row.get("acknowledges", True)),
        "exclusive": row["exclusive"],
        "prefetch_count": row.get("prefetch") or 0,
        "active": True,
        "activity_status": "up",
        "arguments": {},
        "weft": {"delivered": row["delivered"], "browse": row["browse"]},
    }


def user(row: Row) -> dict[str, Any]:
    """A user."""
    about: dict[str, Any] = {"name": row["name"], "tags": list(row["tags"]), "limits": limits(row, "user")["value"]}
    return about


def topic_permission(row: Row) -> dict[str, Any]:
    """A permission on topics."""
    about = {"user": row["user"], "vhost": row["vhost"], "exchange": row["exchange"]}
    return {**about, "write": row["write"], "read": row["read"]}


def limits(row: Row, kind: str) -> dict[str, Any]:
    """The limits of a user or a virtual host."""
    value = {name.replace("_", "-"): row[name] for name in LIMITS if row.get(name) is not None}
    return {kind: row["name"], "value": value}


def permission(row: Row) -> dict[str, Any]:
    """A permission."""
    rights = {right: row[right] for right in ("configure", "write", "read")}
    return {"user": row["name"], "vhost": row["vhost"], **rights}


def vhost(row: Row) -> dict[str, Any]:
    """A virtual host."""
    ready, unsettled = row["ready"], row["unsettled"]
    return {
        **told_vhost(row["name"], row["description"], row["tags"], row["default_queue_type"]),
        "messages": ready + unsettled,
        "messages_ready": ready,
        "messages_unacknowledged": unsettled,
        "tracing": False,
        "cluster_state": {},
        "weft": {"queues": row["queues"], "connections": row["connections"], "tag": row["tag"]},
    }
