"""What happens in the directory, told as events of this node.

Owns which entries were there when it last looked. Differences of the directory come in, wherever in the fabric they
were made; events of the classes `directory` and `service` go out.
It must not act on what it sees.
Rule: schema/management.json; what was there before the node came is no event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.directory import Difference, Directory
from weft.management.events import Events
from weft.network.services import SERVICES

ROOT = "/"


class Reports:
    """Tells of entries that come, change and go."""

    def __init__(self, directory: Directory, events: Events) -> None:
        self._directory = directory
        self._events = events
        self._known: set[str] = set()
        self._is_first = True

    async def start(self) -> None:
        """From now on."""
        await self._directory.watch(ROOT, self._on_entries)
        self._is_first = False

    def _on_entries(self, differences: Sequence[Difference]) -> None:
        for difference in differences:
            path, entry = difference.path, difference.entry
            is_known = path in self._known
            if entry is None:
                self._known.discard(path)
            else:
                self._known.add(path)
            if self._is_first or (entry is None and not is_known):
                continue
            kind = "deleted" if entry is None else "changed" if is_known else "created"
            about: dict[str, Any] = {}
            if entry is not None:
                about = {"value": entry.value, "ephemeral": entry.ephemeral}
            self._events.tell("directory", kind, path, **about)
            parts = path.split("/")
            if path.startswith(f"{SERVICES}/") and len(parts) == 4 and kind != "changed":
                self._events.tell("service", "gone" if entry is None else "up", f"{parts[2]}@{parts[3]}")
