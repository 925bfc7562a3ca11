"""Definitions as one document, in RabbitMQ's form.

Owns the export and the import of users, virtual hosts, permissions, policies, parameters, limits, exchanges, queues and
bindings. The manager comes in with a caller; a document goes out, or comes in and is made.
It must never delete what exists, nor change exchanges, queues and bindings; everything else is replaced.
Rule: RabbitMQ's definitions guide: order of import, merge rules, partial import after an error; a document for one
virtual host leaves out its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, islice
from typing import Any, Literal

from weft.management.caller import Caller
from weft.management.classes.limits import limits_of
from weft.management.classes.parameters import OPERATOR_POLICY, VHOST_LIMITS, parameter_name
from weft.management.classes.policies import policy_values
from weft.management.classes.users import topic_name
from weft.management.foreign import refuse_unknown, without_effect
from weft.management.manager import Manager
from weft.management.query import Row, each
from weft.management.turns import Turns
from weft.model.errors import ConfigError, Refused
from weft.model.events import BindingChange, ExchangeDeclare, Operation, QueueDeclare
from weft.store import ResourcePolicy, User
from weft.store.tables import encode_table

VERSION = "3.13.0"
"""The RabbitMQ whose definitions these are like."""
CHUNK = 20
"""Objects made and stored together, before the loop turns: about a millisecond's work."""
OWN_HASH = "weft_password_hash"
RABBITMQ_HASHES = "rabbit_password_hashing_"
RABBITMQ_HASH_DEFAULT = "rabbit_password_hashing_sha256"
QUEUE_TYPE_DEFAULT = "classic"
UNDEFINED = "undefined"
"""How some RabbitMQ write that a virtual host has no type of queues of its own."""
_OF_CLUSTERS = ("cluster_name", "internal_cluster_id")
"""Parameters that name another cluster: those of a node are its own."""
KINDS = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "global_parameters",
    "policies",
    "parameters",
    "exchanges",
    "queues",
    "bindings",
)
LOG = logging.getLogger("weft.management")
Document = dict[str, Any]


async def export(manager: Manager, caller: Caller, vhost: str | None) -> Document:
    """Everything that is defined, or what is in one virtual host; other work has its turn in between."""
    caller.require("administrator" if vhost is None else "management")
    host = manager.host
    document: Document = {"rabbit_version": VERSION, "rabbitmq_version": VERSION}
    document |= {"product_name": "weft", "product_version": host.version}
    if vhost is None:
        limits = limits_of(host.policy, "user")
        document["users"] = [_told_user(user, limits.get(user.name, {})) for user in host.policy.users()]
        document["vhosts"] = [_told_vhost(manager, name) for name in host.policy.vhosts()]
        document["permissions"] = [
            {"user": row.user, "vhost": row.vhost, "configure": row.configure, "write": row.write, "read": row.read}
            for row in host.policy.permissions()
        ]
        document["global_parameters"] = [
            {"name": one.name, "value": one.value} for one in host.parameters.parameters() if not one.component
        ]
    vhosts = host.policy.vhosts() if vhost is None else [vhost]
    for kind, rows in _sections(manager, vhosts).items():
        document[kind] = await each(rows, (lambda row: row) if vhost is None else _without_vhost)
    return document


def _sections(manager: Manager, vhosts: list[str]) -> dict[str, Iterable[Document]]:
    """What lies in virtual hosts, by kind; each row is made when it is asked for."""
    host = manager.host
    policies = [policy for name in vhosts for policy in host.topology.policies(name)]
    return {
        "topic_permissions": (asdict(row) for row in host.policy.topic_permissions() if row.vhost in vhosts),
        "policies": (_policy(policy) for policy in policies if not policy.operator),
        "parameters": chain(
            (asdict(one) for one in host.parameters.parameters() if one.component and one.vhost in vhosts),
            (_operator_policy(policy) for policy in policies if policy.operator),
            _vhost_limits(manager, vhosts),
        ),
        "queues": _within(vhosts, manager, _queues),
        "exchanges": _within(vhosts, manager, _exchanges),
        "bindings": _within(vhosts, manager, _bindings),
    }


def _within(
    vhosts: list[str], manager: Manager, rows: Callable[[Manager, str], Iterator[Document]]
) -> Iterator[Document]:
    for vhost in vhosts:
        with suppress(Refused):  # it was deleted meanwhile
            yield from rows(manager, vhost)


def _without_vhost(row: Document) -> Document:
    del row["vhost"]
    return row


def _told_vhost(manager: Manager, name: str) -> Document:
    notes = manager.host.policy.notes(name)
    return told_vhost(name, notes.description, notes.tags, notes.queue_type)


def told_vhost(name: str, description: str, tags: Iterable[str], queue_type: str | None) -> Document:
    """A virtual host as RabbitMQ tells it: what is said of it stands there twice, for old readers and new ones."""
    notes = {"description": description, "tags": list(tags), "default_queue_type": queue_type or QUEUE_TYPE_DEFAULT}
    return {"name": name, **notes, "metadata": notes}


def read_tags(tags: object) -> list[str]:
    """Tags as a list; RabbitMQ's clients send text with commas as well."""
    if isinstance(tags, str):
        return [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Refused("'tags' must be a list of strings, or text with commas", 400)
    return tags


def read_vhost(row: Document) -> Document:
    """What a document or a request says of a virtual host, as properties; what it leaves out stays as it is."""
    said = _map(row.get("metadata") or {}) | row
    values = {what: said[what] for what in ("description", "tags") if said.get(what) is not None}
    if "tags" in values:
        values["tags"] = read_tags(values["tags"])
    queue_type = said.get("default_queue_type") or said.get("defaultqueuetype")
    return values | ({"default_queue_type": queue_type} if queue_type and queue_type != UNDEFINED else {})


def _told_user(user: User, limits: Row) -> Document:
    told: Document = {"name": user.name, "tags": list(user.tags)} | told_hash(user.password_hash)
    told["limits"] = {what.replace("_", "-"): value for what, value in limits.items()}
    return told


def told_hash(encoded: str | None) -> Document:
    """A password hash as RabbitMQ tells it. It would refuse one that it cannot read, so ours is beside an empty one."""
    algorithm, _, text = (encoded or "").partition("$")
    if algorithm.startswith(RABBITMQ_HASHES):
        return {"password_hash": text, "hashing_algorithm": algorithm}
    own = {OWN_HASH: encoded} if encoded else {}
    return {"password_hash": "", "hashing_algorithm": RABBITMQ_HASH_DEFAULT, **own}


def read_hash(text: str, algorithm: object) -> str:
    """A password hash as weft keeps it; RabbitMQ's are kept under the name of their algorithm."""
    return text if text.startswith("scrypt$") else f"{algorithm or RABBITMQ_HASH_DEFAULT}${text}"


def _policy(policy: ResourcePolicy) -> Document:
    about = {"vhost": policy.vhost, "name": policy.name, "pattern": policy.pattern, "apply-to": policy.apply_to}
    return {**about, "definition": policy.definition, "priority": policy.priority}


def _operator_policy(policy: ResourcePolicy) -> Document:
    value = _policy(policy)
    key = {"component": OPERATOR_POLICY, "vhost": value.pop("vhost"), "name": value.pop("name")}
    return {**key, "value": value}


def _vhost_limits(manager: Manager, vhosts: list[str]) -> Iterator[Document]:
    for vhost, limits in limits_of(manager.host.policy, "vhost").items():
        if vhost in vhosts:
            value = {what.replace("_", "-"): value for what, value in limits.items()}
            yield {"component": VHOST_LIMITS, "vhost": vhost, "name": "limits", "value": value}


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


async def import_(manager: Manager, caller: Caller, document: Document, vhost: str | None) -> Row:
    """Make what a document defines; Refused at the first thing that cannot be made, what came before it stays. The
    answer counts what was taken over, and tells what of it has no effect here.
    """
    caller.require("administrator" if vhost is None else "policymaker")
    refuse_unknown(manager.host.topology, document, vhost)
    if vhost is None:
        await _access(manager, caller, document)
    if vhost is None or caller.rank >= manager.node.rank:
        for row in _rows(document, "topic_permissions"):
            place = vhost if vhost is not None else _text(row, "vhost")
            values = {right: _text(row, right) for right in ("write", "read")}
            name = topic_name(_text(row, "user"), _text(row, "exchange"))
            await manager.create(caller, "topic_permission", place, name, values)
    for row in _rows(document, "policies"):
        place = vhost if vhost is not None else _text(row, "vhost")
        await manager.create(caller, "policy", place, _text(row, "name"), policy_values(row))
    await _parameters(manager, caller, document, vhost)
    for kind in ("exchanges", "queues", "bindings"):
        await _make(manager, kind, _rows(document, kind), vhost)
    idle = list(without_effect(manager.host.topology, document, vhost))
    for line in idle:
        LOG.warning("imported definitions: without effect here: %s", line)
    return {"taken": {kind: len(document[kind]) for kind in KINDS if document.get(kind)}, "without_effect": idle}


async def _access(manager: Manager, caller: Caller, document: Document) -> None:
    """What belongs to the node as a whole."""
    for row in _rows(document, "users"):
        await _user(manager, caller, row)
    for row in _rows(document, "vhosts"):
        values = read_vhost(row) | _limits(row.get("limits"))
        await manager.create(caller, "vhost", "/", _text(row, "name"), values)
    for row in _rows(document, "permissions"):
        values = {right: _text(row, right) for right in ("configure", "write", "read")}
        await manager.create(caller, "permission", _text(row, "vhost"), _text(row, "user"), values)
    for row in _rows(document, "global_parameters"):
        if row.get("name") not in _OF_CLUSTERS:
            await manager.create(caller, "global_parameter", "/", _text(row, "name"), {"value": row.get("value")})


def _limits(value: object) -> Document:
    """Limits as properties; RabbitMQ writes none as an empty list."""
    return {what.replace("-", "_"): bound for what, bound in _map(value or {}).items()}


async def _user(manager: Manager, caller: Caller, row: Document) -> None:
    values: Document = {"tags": read_tags(row.get("tags") or [])} | _limits(row.get("limits"))
    encoded = row.get(OWN_HASH) or row.get("password_hash")
    if isinstance(row.get("password"), str):
        values["password"] = row["password"]
    elif isinstance(encoded, str) and encoded:
        values["password_hash"] = read_hash(encoded, row.get("hashing_algorithm"))
    await manager.create(caller, "user", "/", _text(row, "name"), values)


async def _parameters(manager: Manager, caller: Caller, document: Document, vhost: str | None) -> None:
    for row in _rows(document, "parameters"):
        place = vhost if vhost is not None else _text(row, "vhost")
        component, name, value = _text(row, "component"), _text(row, "name"), row.get("value")
        if component == OPERATOR_POLICY:
            await manager.create(caller, "operator_policy", place, name, policy_values(_map(value)))
        elif component == VHOST_LIMITS:
            caller.require("administrator")
            await manager.update(caller, "vhost", "/", place, _limits(value))
        else:
            await manager.create(caller, "parameter", place, parameter_name(component, name), {"value": value})


def _map(value: object) -> Document:
    if not isinstance(value, dict):
        raise ConfigError(f"a JSON object was expected, not {value!r}")
    return value


async def _make(manager: Manager, kind: str, rows: Iterable[Document], vhost: str | None) -> None:
    """Definitions are an administrator's: what they name is made without asking for permissions, some at a time, and is
    on disk in the end. Of what is named twice the first holds.
    """
    host = manager.host
    by_vhost: dict[str, dict[object, Operation]] = {}

    def plan(row: Document) -> None:
        place = vhost if vhost is not None else _text(row, "vhost")
        operation = _operation(manager, kind, row, place)
        if operation is not None:
            by_vhost.setdefault(place, {}).setdefault(_identity(operation), operation)

    await each(rows, plan)
    turns = Turns()
    try:
        for place, waiting in by_vhost.items():
            rest = iter(waiting.values())
            while some := list(islice(rest, CHUNK)):
                host.apply(host.topology.run(place, some, sync=False))
                await turns.give_way()
    finally:
        await asyncio.to_thread(host.parameters.write_out)
        host.parameters.sync()


def _identity(operation: Operation) -> object:
    if isinstance(operation, BindingChange):
        ends = operation.kind, operation.source, operation.destination
        return *ends, operation.routing_key, encode_table(operation.arguments)
    return operation.name


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


def _rows(document: Document, kind: str) -> Iterator[Document]:
    rows = document.get(kind) or []
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, dict) or not isinstance(rows, list):
            raise Refused(f"'{kind}' must be a list of objects", 400)
        yield row


def _text(row: Document, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"'{name}' must be text in {row}")
    return value
