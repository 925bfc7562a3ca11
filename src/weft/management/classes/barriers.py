"""Managed barriers: what holds duplicates back.

Owns reading them. A barrier belongs to a queue, an exchange or the node's own links; it is found among those that have
one, never by looking at every queue.
It must not make or change one: a declaration does.
Rule: schema/management.json, class `barrier`; docs/guides/idempotency.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.management.caller import Caller
from weft.management.manager import Manager
from weft.management.provider import Provider
from weft.management.query import Row
from weft.store import Exchange, Queue

KEYS = ("x-barrier", "x-message-deduplication")
COLUMNS = ["vhost", "name", "duplicate", "barrier_ids"]


class Barriers(Provider):
    """Every barrier on a queue or an exchange."""

    def __init__(self, manager: Manager) -> None:
        self._host = manager.host

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:
        for name in caller.vhosts() if vhost is None else [vhost]:
            queues = [queue for queue in self._host.topology.queues(name) if has_barrier(queue)]
            numbers = [self._host.engine.queue_id(name, queue.name) for queue in queues]
            ids = [number for number in numbers if number is not None]
            _, _, counts = self._host.engine.page("queues", ids=ids, columns=COLUMNS)
            yield from self._told(name, queues, counts)
            exchanges = [one for one in self._host.topology.exchanges(name) if has_barrier(one)]
            if exchanges:
                _, _, counts = self._host.engine.page("exchanges", vhosts=[name], columns=COLUMNS)
                yield from self._told(name, exchanges, counts)

    @staticmethod
    def _told(vhost: str, owners: Iterable[Queue | Exchange], counts: list[Row]) -> Iterable[Row]:
        by_name = {row["name"]: row for row in counts}
        for owner in owners:
            row = by_name.get(owner.name, {})
            yield {
                "name": barrier_name(owner),
                "vhost": vhost,
                "key": owner.arguments.get("x-barrier", "message-id"),
                "window_ms": owner.arguments.get("x-barrier-window", owner.arguments.get("x-cache-ttl")),
                "ids_max": owner.arguments.get("x-barrier-ids-max", owner.arguments.get("x-cache-size")),
                "ids": row.get("barrier_ids"),
                "duplicate": row.get("duplicate"),
            }


def has_barrier(owner: Queue | Exchange) -> bool:
    """Does it hold duplicates back?"""
    return any(key in owner.arguments for key in KEYS)


def barrier_name(owner: Queue | Exchange) -> str:
    """The name of its barrier."""
    return f"{'queue' if isinstance(owner, Queue) else 'exchange'}/{owner.name}"
