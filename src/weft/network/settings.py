"""A node's settings from the directory: pulled at start, followed while it runs.

Owns which entries below `/nodes/NAME` were applied and which could not be yet. Differences of the directory come in;
calls of the broker, the policy and the network go out, the same that an operator would make.
It must not fail for an entry it cannot follow: that is said, and tried again with the next difference.
Rule: what an entry made is undone when the entry goes, but a queue that holds messages stays; losing the directory
changes nothing. Kinds: those of a configuration file, and exchanges, queues, bindings (docs/guides/network.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any
from urllib.parse import unquote

from weft.directory import Difference, Directory
from weft.federation import link_of, route_of
from weft.management import Host
from weft.model.errors import WeftError
from weft.network.runner import LOG, Network
from weft.store import ResourcePolicy

NODES = "/nodes"
ORDER = ("vhosts", "users", "permissions", "policies", "exchanges", "queues", "bindings", "links", "routes")
"""Later kinds need earlier ones."""

Value = dict[str, Any]


class Settings:
    """What the directory says this node should have."""

    def __init__(self, host: Host, network: Network, directory: Directory) -> None:
        self._host = host
        self._network = network
        self._directory = directory
        self._applied: dict[tuple[str, str], Value] = {}
        self._pending: dict[tuple[str, str], Value] = {}
        self._put: dict[str, Callable[[str, Value], None]] = {
            "vhosts": self._put_vhost,
            "users": self._put_user,
            "permissions": self._put_permission,
            "policies": self._put_policy,
            "exchanges": self._put_exchange,
            "queues": self._put_queue,
            "bindings": self._put_binding,
            "links": lambda name, value: network.add_link(link_of({**value, "name": name})),
            "routes": lambda name, value: network.add_route(route_of({**value, "name": name})),
        }
        self._drop: dict[str, Callable[[str, Value], None]] = {
            "permissions": self._drop_permission,
            "users": lambda name, _: host.apply(host.policy.delete_user(name)),
            "policies": self._drop_policy,
            "exchanges": lambda name, value: host.apply(host.topology.delete_exchange(_vhost(value), name)),
            "queues": lambda name, value: host.apply(
                host.topology.delete_queue(_vhost(value), name, if_empty=not value.get("force"))
            ),
            "bindings": self._drop_binding,
            "links": lambda name, _: network.remove_link(name),
            "routes": lambda name, _: network.remove_route(name),
        }

    async def start(self) -> None:
        """Apply what is there, then follow."""
        await self._directory.watch(f"{NODES}/{self._host.name}", self._on_entries)

    def _on_entries(self, differences: Sequence[Difference]) -> None:
        gone: list[tuple[str, str]] = []
        for difference in differences:
            parts = difference.path.split("/")
            if len(parts) != 5 or parts[3] not in ORDER:
                continue
            key = parts[3], unquote(parts[4])
            if difference.entry is None:
                self._pending.pop(key, None)
                gone.append(key)
            elif self._applied.get(key) != difference.entry.value:
                self._pending[key] = difference.entry.value
        for kind, name in sorted(gone, key=_rank, reverse=True):
            value = self._applied.pop((kind, name), None)
            if value is not None:
                self._try(f"without {kind} {name}", self._drop.get(kind), name, value)
        for kind, name in sorted(self._pending, key=_rank):
            value = self._pending[kind, name]
            if self._try(f"{kind} {name}", self._put[kind], name, value):
                self._applied[kind, name] = self._pending.pop((kind, name))

    def _try(self, what: str, act: Callable[[str, Value], None] | None, name: str, value: Value) -> bool:
        if act is None:
            return True
        try:
            act(name, value)
        except (WeftError, TypeError, ValueError, LookupError, AttributeError) as error:
            LOG.warning("the directory asks for %s, which does not work: %s", what, error)
            return False
        LOG.info("the directory asked for %s", what)
        return True

    # kinds

    def _put_vhost(self, name: str, _value: Value) -> None:
        self._host.apply(self._host.topology.add_vhost(name))

    def _put_user(self, name: str, value: Value) -> None:
        hashed, tags = value.get("password_hash"), value.get("tags", [])
        self._host.apply(self._host.policy.add_user(name, password_hash=hashed, tags=tags))

    def _put_permission(self, name: str, value: Value) -> None:
        patterns = {right: str(value.get(right, "")) for right in ("configure", "write", "read")}
        self._host.apply(self._host.policy.set_permission(value.get("user", name), _vhost(value), **patterns))

    def _drop_permission(self, name: str, value: Value) -> None:
        self._host.apply(self._host.policy.clear_permission(value.get("user", name), _vhost(value)))

    def _put_policy(self, name: str, value: Value) -> None:
        options = {key: value[key] for key in ("apply_to", "priority", "operator") if key in value}
        policy = ResourcePolicy(_vhost(value), name, str(value["pattern"]), value["definition"], **options)
        self._host.apply([*chain.from_iterable(self._host.topology.set_policy(policy))])

    def _drop_policy(self, name: str, value: Value) -> None:
        parts = self._host.topology.clear_policy(_vhost(value), name, operator=bool(value.get("operator")))
        self._host.apply([*chain.from_iterable(parts)])

    def _put_exchange(self, name: str, value: Value) -> None:
        flags = {"durable": value.get("durable", True), "auto_delete": False, "internal": False}
        type_, arguments = value.get("type", "direct"), value.get("arguments", {})
        changes = self._host.topology.declare_exchange(_vhost(value), name, type_, **flags, arguments=arguments)
        self._host.apply(changes)

    def _put_queue(self, name: str, value: Value) -> None:
        flags = {"durable": value.get("durable", True), "auto_delete": False}
        arguments = value.get("arguments", {})
        self._host.apply(self._host.topology.declare_queue(_vhost(value), name, **flags, arguments=arguments))

    def _put_binding(self, _name: str, value: Value) -> None:
        source, destination, key, rest = _ends(value)
        self._host.apply(self._host.topology.bind(_vhost(value), source, destination, key, **rest))

    def _drop_binding(self, _name: str, value: Value) -> None:
        source, destination, key, rest = _ends(value)
        self._host.apply(self._host.topology.unbind(_vhost(value), source, destination, key, **rest))


def _rank(key: tuple[str, str]) -> tuple[int, str]:
    return ORDER.index(key[0]), key[1]


def _vhost(value: Value) -> str:
    return str(value.get("vhost", "/"))


def _ends(value: Value) -> tuple[str, str, str, Any]:
    rest = {"kind": value.get("kind", "queue"), "arguments": value.get("arguments", {})}
    return str(value["source"]), str(value["destination"]), str(value.get("key", "")), rest
