"""Statistics of the node and its queues as events, now and then, while somebody listens.

Owns the task that tells them and what it told last. The kernel's counters come in a slice at a time; one event goes out
for the node and one for each queue that changed since the last round.
It must never read a counter while nobody is bound to the exchange, nor hold the loop for more than a slice.
Rule: docs/guides/management.md, "Events"; `[events] statistics_s` is the pause between rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
from operator import itemgetter
from typing import Any

from weft._kernel import Scan
from weft.management.classes.queues import types_told
from weft.management.classes.tables import looked, picked
from weft.management.events import Events
from weft.management.manager import Manager
from weft.management.query import Query
from weft.management.turns import Turns

SLICE = 4
"""Queues that are read and told together."""
COUNTERS = (
    "published",
    "delivered",
    "settled",
    "returned",
    "expired",
    "dropped",
    "dead_lettered",
    "ready",
    "unsettled",
)
"""A queue in which none of these moved is not told again."""
_moved = itemgetter(*COUNTERS)
_NAMING = frozenset(("name", "vhost", "id"))


class Statistics:
    """Tells statistics in rounds."""

    def __init__(self, manager: Manager, events: Events, pause_s: float) -> None:
        self._manager = manager
        self._events = events
        self._pause_s = pause_s
        self._told: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Tell from now on, a first time after the first pause."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Tell nothing more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def tell(self, *, all_queues: bool = True) -> int:
        """One round; how many events were told."""
        if not self._events.is_heard:
            return 0
        manager, engine = self._manager, self._manager.host.engine
        count, seen = 0, {}
        for class_name in ("node", "system", "agent"):
            (row,) = (await manager.query(manager.node, class_name, Query())).rows
            self._events.tell(class_name, "statistics", row["name"], **_told(row))
            count += 1
        scan = Scan("queues")
        await looked(engine, scan)
        ids = await picked(scan)
        turns = Turns()
        for start in range(0, len(ids), SLICE):
            for queue in engine.rows("queues", ids[start : start + SLICE]):
                number, moved = queue["id"], hash(_moved(queue))
                seen[number] = moved
                if all_queues or self._told.get(number) != moved:
                    queue["types"] = types_told(engine.types(number)) if queue["types"] else None
                    self._events.publish("queue", "statistics", queue["name"], queue["vhost"], _told(queue))
                    count += 1
            await turns.next_row()
        self._told = seen
        return count

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            await self.tell(all_queues=False)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """What is worth telling: everything that has a value, but what names the object."""
    return {key: value for key, value in row.items() if value is not None and key not in _NAMING}
