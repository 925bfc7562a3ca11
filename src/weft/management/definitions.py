"""Definitions as one document, in RabbitMQ's form.

Owns the export and the import of users, virtual hosts, permissions, policies, exchanges, queues and bindings. The
manager comes in with a caller; a document goes out, or comes in and is made.
It must never delete or change what exists, but users, permissions and policies, which are replaced.
Rule: RabbitMQ's definitions guide: order of import, merge rules, partial import after an error; a document for one
virtual host leaves out its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, Literal

from weft.management.caller import Caller
from weft.management.classes.policies import policy_values
from weft.management.manager import Manager
from weft.model.errors import ConfigError, Refused
from weft.model.events import BindingChange, ExchangeDeclare, Operation, QueueDeclare
from weft.store import ResourcePolicy, User
from weft.store.tables import encode_table

VERSION = "3.13.0"
"""The RabbitMQ whose definitions these are like."""
CHUNK = 200
"""Objects made and stored together, before the loop turns."""
LOG = logging.getLogger("weft.management")
_LEFT_OUT = ("global_parameters", "topic_permissions")
OPERATOR_POLICY = "operator_policy"
"""The component under which RabbitMQ keeps operator policies among its parameters."""
Document = dict[str, Any]


def export(manager: Manager, caller: Caller, vhost: str | None) -> Document:
    """Everything that is defined, or what is in one virtual host."""
    caller.require("administrator" if vhost is None else "management")
    host = manager.host
    document: Document = {"rabbit_version": VERSION, "rabbitmq_version": VERSION}
    document |= {"product_name": "weft", "product_version": host.version}
    if vhost is None:
        document["users"] = [_told_user(user) for user in host.policy.users()]
        document["vhosts"] = [{"name": name} for name in host.policy.vhosts()]
        document["permissions"] = [
            {"user": row.user, "vhost": row.vhost, "configure": row.configure, "write": row.write, "read": row.read}
            for row in host.policy.permissions()
        ]
    vhosts = host.policy.vhosts() if vhost is None else [vhost]
    document |= {name: [] for name in _LEFT_OUT}
    policies = [policy for name in vhosts for policy in host.topology.policies(name)]
    document["policies"] = [_policy(policy) for policy in policies if not policy.operator]
    document["parameters"] = [_operator_policy(policy) for policy in policies if policy.operator]
    document["queues"] = [row for name in vhosts for row in _queues(manager, name)]
    document["exchanges"] = [row for name in vhosts for row in _exchanges(manager, name)]
    document["bindings"] = [row for name in vhosts for row in _bindings(manager, name)]
    if vhost is not None:
        for kind in ("policies", "parameters", "queues", "exchanges", "bindings"):
            for row in document[kind]:
                del row["vhost"]
    return document


def _told_user(user: User) -> Document:
    told: Document = {"name": user.name, "tags": list(user.tags), "limits": {}, "hashing_algorithm": "weft_scrypt"}
    return told if user.password_hash is None else told | {"password_hash": user.password_hash}


def _policy(policy: ResourcePolicy) -> Document:
    about = {"vhost": policy.vhost, "name": policy.name, "pattern": policy.pattern, "apply-to": policy.apply_to}
    return {**about, "definition": policy.definition, "priority": policy.priority}


def _operator_policy(policy: ResourcePolicy) -> Document:
    value = _policy(policy)
    key = {"component": OPERATOR_POLICY, "vhost": value.pop("vhost"), "name": value.pop("name")}
    return {**key, "value": value}


def _queues(manager: Manager, vhost: str) -> Iterator[Document]:
    for queue in manager.host.topology.queues(vhost):
        if not queue.exclusive and queue.durable:
            flags = {"durable": queue.durable, "auto_delete": queue.auto_delete, "arguments": queue.arguments}
            yield {"name": queue.name, "vhost": vhost, **flags}


def _exchanges(manager: Manager, vhost: str) -> Iterator[Document]:
    for exchange in manager.host.topology.exchanges(vhost):
        if exchange.durable and not exchange.name.startswith(("amq.", "weft.")):
            flags = {"durable": exchange.durable, "auto_delete": exchange.auto_delete, "internal": exchange.internal}
            yield {
                "name": exchange.name,
                "vhost": vhost,
                "type": exchange.type,
                **flags,
                "arguments": exchange.arguments,
            }


def _bindings(manager: Manager, vhost: str) -> Iterator[Document]:
    topology = manager.host.topology
    for binding in topology.bindings(vhost):
        queue = topology.find_queue(vhost, binding.destination) if binding.kind == "queue" else None
        if binding.kind == "exchange" or (queue is not None and queue.durable and not queue.exclusive):
            yield {
                "source": binding.source,
                "vhost": vhost,
                "destination": binding.destination,
                "destination_type": binding.kind,
                "routing_key": binding.routing_key,
                "arguments": binding.arguments,
            }


async def import_(manager: Manager, caller: Caller, document: Document, vhost: str | None) -> None:
    """Make what a document defines; Refused at the first thing that cannot be made, what came before it stays."""
    caller.require("administrator" if vhost is None else "policymaker")
    for kind in _LEFT_OUT:
        if document.get(kind):
            LOG.warning("import: %d %s left out: weft has none", len(document[kind]), kind.replace("_", " "))
    if vhost is None:
        for row in _rows(document, "users"):
            await _user(manager, caller, row)
        for row in _rows(document, "vhosts"):
            await manager.create(caller, "vhost", "/", _text(row, "name"), {})
        for row in _rows(document, "permissions"):
            values = {right: _text(row, right) for right in ("configure", "write", "read")}
            await manager.create(caller, "permission", _text(row, "vhost"), _text(row, "user"), values)
    for row in _rows(document, "policies"):
        place = vhost if vhost is not None else _text(row, "vhost")
        await manager.create(caller, "policy", place, _text(row, "name"), policy_values(row))
    await _parameters(manager, caller, document, vhost)
    for kind in ("exchanges", "queues", "bindings"):
        await _make(manager, kind, _rows(document, kind), vhost)


async def _user(manager: Manager, caller: Caller, row: Document) -> None:
    tags = row.get("tags") or []
    tags = [tag for tag in tags.split(",") if tag] if isinstance(tags, str) else [str(tag) for tag in tags]
    values: Document = {"tags": tags}
    encoded = row.get("password_hash")
    if isinstance(row.get("password"), str):
        values["password"] = row["password"]
    elif isinstance(encoded, str) and encoded.startswith("scrypt$"):
        values["password_hash"] = encoded
    elif encoded:
        LOG.warning("import: user %s has a hash of another kind, give it a password", row.get("name"))
    await manager.create(caller, "user", "/", _text(row, "name"), values)


async def _parameters(manager: Manager, caller: Caller, document: Document, vhost: str | None) -> None:
    for row in _rows(document, "parameters"):
        place = vhost if vhost is not None else _text(row, "vhost")
        component, name, value = _text(row, "component"), _text(row, "name"), row.get("value")
        if component == OPERATOR_POLICY:
            await manager.create(caller, "operator_policy", place, name, policy_values(_map(value)))
        else:
            LOG.warning("import: parameter %s of %s left out: weft has none", name, component)


def _map(value: object) -> Document:
    if not isinstance(value, dict):
        raise ConfigError(f"a JSON object was expected, not {value!r}")
    return value


async def _make(manager: Manager, kind: str, rows: list[Document], vhost: str | None) -> None:
    """Definitions are an administrator's: what they name is made without asking for permissions, many at a time."""
    host = manager.host
    by_vhost: dict[str, dict[object, Operation]] = {}
    for row in rows:
        place = vhost if vhost is not None else _text(row, "vhost")
        operation = _operation(manager, kind, row, place)
        if operation is not None:
            waiting = by_vhost.setdefault(place, {})
            waiting[encode_table(row)] = operation
    for place, waiting in by_vhost.items():
        operations = list(waiting.values())
        for start in range(0, len(operations), CHUNK):
            host.apply(host.topology.run(place, operations[start : start + CHUNK]))
            await asyncio.sleep(0)


def _operation(manager: Manager, kind: str, row: Document, vhost: str) -> Operation | None:
    """What makes an object; None if it is there, whatever it is like."""
    topology = manager.host.topology
    arguments = row.get("arguments")
    arguments = arguments if isinstance(arguments, dict) else {}
    if kind == "bindings":
        ends = _text(row, "source"), _text(row, "destination"), _text(row, "routing_key")
        of: Literal["queue", "exchange"] = "exchange" if row.get("destination_type") == "exchange" else "queue"
        return BindingChange("bind", of, *ends, arguments) if ends[0] else None
    name = _text(row, "name")
    durable, auto_delete = bool(row.get("durable", True)), bool(row.get("auto_delete"))
    if kind == "queues":
        is_new = topology.find_queue(vhost, name) is None
        return QueueDeclare(name, False, durable, False, auto_delete, arguments) if is_new and name else None
    if not name or topology.find_exchange(vhost, name) is not None:
        return None
    internal = bool(row.get("internal"))
    return ExchangeDeclare(name, _text(row, "type"), False, durable, auto_delete, internal, arguments)


def _rows(document: Document, kind: str) -> list[Document]:
    rows = document.get(kind) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Refused(f"'{kind}' must be a list of objects", 400)
    return rows


def _text(row: Document, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"'{name}' must be text in {row}")
    return value
