"""Managed users and permissions.

Owns reading, making, changing and deleting them by request. The policy's controller keeps them; a password's slow hash
runs beside the loop.
It must never tell a password or its hash.
Rule: schema/management.json, classes `user`, `permission` and `topic_permission`; all need the tag `administrator`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from urllib.parse import quote, unquote

from weft.management.caller import Caller
from weft.management.classes.limits import limits_of, set_limits
from weft.management.manager import Manager
from weft.management.peers import Peers
from weft.management.provider import Provider, Values
from weft.management.query import Row
from weft.model.errors import Refused
from weft.store import User


class Users(Provider):
    """Everyone who may enter."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._manager = manager
        self._host = manager.host
        self._peers = peers

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - users are the node's
        connections: Counter[str] = Counter()
        for (name, _), count in self._peers.counts.items():
            connections[name] += count
        limits = limits_of(self._host.policy, "user")
        for user in self._host.policy.users():
            known = {"name": user.name, "tags": list(user.tags), "connections": connections[user.name]}
            yield known | limits.get(user.name, {})

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:  # noqa: ARG002
        known = self._find(name)
        tags = values.get("tags") if values.get("tags") is not None else known.tags if known else ()
        encoded = await self._hash(values)
        if known is not None and encoded is None:
            encoded = known.password_hash
        self._host.apply(self._host.policy.add_user(name, password_hash=encoded, tags=tags or ()))
        limits = set_limits(self._host, "user", name, values)
        self._manager.events.tell("user", "changed" if known else "created", name, tags=list(tags or ()), **limits)
        return name

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        if self._find(name) is None:
            raise Refused(f"no user '{name}'", 404)
        await self.create(caller, vhost, name, values)

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        self._host.apply(self._host.policy.delete_user(name))
        self._manager.events.tell("user", "deleted", name)

    async def _hash(self, values: Values) -> str | None:
        if values.get("password") is None:
            return values.get("password_hash")
        return await asyncio.to_thread(self._host.policy.hash_password, values["password"])

    def _find(self, name: str) -> User | None:
        return next((user for user in self._host.policy.users() if user.name == name), None)


class PermissionsClass(Provider):
    """What everyone may do where; named by the user."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._manager = manager
        self._host = manager.host
        self._peers = peers

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - administrators see all
        connections = self._peers.counts
        for row in self._host.policy.permissions():
            if vhost is None or row.vhost == vhost:
                rights = {"configure": row.configure, "write": row.write, "read": row.read}
                checked, refused = self._host.policy.asked(row.user, row.vhost)
                counted = {"connections": connections[row.user, row.vhost], "checked": checked, "refused": refused}
                yield {"name": row.user, "vhost": row.vhost, **rights, **counted}

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:
        rights = {right: values.get(right) or "" for right in ("configure", "write", "read")}
        known = any(row["name"] == name for row in self.rows(caller, vhost))
        self._host.apply(self._host.policy.set_permission(name, vhost, **rights))
        self._manager.events.tell("permission", "changed" if known else "created", name, vhost, **rights)
        return name

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        before = self.read(caller, vhost, name)
        await self.create(caller, vhost, name, before | values)

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        self._host.apply(self._host.policy.clear_permission(name, vhost))
        self._manager.events.tell("permission", "deleted", name, vhost)


def topic_name(user: str, exchange: str) -> str:
    """How a permission on topics is named among those of a virtual host."""
    return f"{quote(user, safe='')}/{quote(exchange, safe='')}"


class TopicPermissions(Provider):
    """Which keys everyone may use with topic exchanges, named `USER/EXCHANGE`."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._manager = manager
        self._host = manager.host
        self._peers = peers

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - administrators see all
        connections = self._peers.counts
        for row in self._host.policy.topic_permissions():
            if vhost is None or row.vhost == vhost:
                about = {"user": row.user, "exchange": row.exchange, "write": row.write, "read": row.read}
                checked, refused = self._host.policy.asked(row.user, row.vhost, row.exchange)
                counted = {"connections": connections[row.user, row.vhost], "checked": checked, "refused": refused}
                yield {"name": topic_name(row.user, row.exchange), "vhost": row.vhost, **about, **counted}

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:
        user, exchange = _split(name)
        rights = {right: values.get(right) or "" for right in ("write", "read")}
        known = any(row["name"] == name for row in self.rows(caller, vhost))
        self._host.apply(self._host.policy.set_topic_permission(user, vhost, exchange, **rights))
        self._manager.events.tell("topic_permission", "changed" if known else "created", name, vhost, **rights)
        return topic_name(user, exchange)

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        before = self.read(caller, vhost, name)
        await self.create(caller, vhost, name, before | values)

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        user, exchange = _split(self.read(caller, vhost, name)["name"])
        self._host.apply(self._host.policy.clear_topic_permission(user, vhost, exchange))
        self._manager.events.tell("topic_permission", "deleted", name, vhost)


def _split(name: str) -> tuple[str, str]:
    user, slash, exchange = name.partition("/")
    if not slash or not exchange:
        raise Refused("a permission on topics is named USER/EXCHANGE", 400)
    return unquote(user), unquote(exchange)
