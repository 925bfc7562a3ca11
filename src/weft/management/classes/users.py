"""Managed users and permissions.

Owns reading, making, changing and deleting them by request. The policy's controller keeps them; a password's slow hash
runs beside the loop.
It must never tell a password or its hash.
Rule: schema/management.json, classes `user` and `permission`; both need the tag `administrator`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from weft.management.caller import Caller
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
        connections = Counter(peer.user for _, peer in self._peers.items())
        for user in self._host.policy.users():
            yield {"name": user.name, "tags": list(user.tags), "connections": connections[user.name]}

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:  # noqa: ARG002
        known = self._find(name)
        tags = values.get("tags") if values.get("tags") is not None else known.tags if known else ()
        encoded = await self._hash(values)
        if known is not None and encoded is None:
            encoded = known.password_hash
        self._host.apply(self._host.policy.add_user(name, password_hash=encoded, tags=tags or ()))
        self._manager.events.tell("user", "changed" if known else "created", name, tags=list(tags or ()))
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

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._host = manager.host

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - administrators see all
        for row in self._host.policy.permissions():
            if vhost is None or row.vhost == vhost:
                rights = {"configure": row.configure, "write": row.write, "read": row.read}
                yield {"name": row.user, "vhost": row.vhost, **rights}

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
