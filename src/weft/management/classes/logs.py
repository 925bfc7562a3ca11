"""Managed logs: what the parts of the process say in words, and from which severity on.

Owns reading and changing the level of each log below `weft`. Python's own table of logs comes in, with the counts of
`weft.management.logs`.
It must not keep a level itself: who embeds a node sets levels in Python's way, and both see the same.
Rule: schema/management.json, class `log`; docs/guides/management.md, "Logs".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from weft.management.caller import Caller
from weft.management.logs import LEVELS, ROOT, Logs
from weft.management.manager import Manager
from weft.management.provider import Provider, Values
from weft.management.query import Row
from weft.model.errors import Refused


class LogsClass(Provider):
    """Every log that a part of the process has opened."""

    def __init__(self, manager: Manager, logs: Logs, on_levels: Callable[[], None]) -> None:
        """`on_levels` is called when a level was changed."""
        self._manager = manager
        self._logs = logs
        self._on_levels = on_levels

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - logs are the process's
        logs, known = self._logs, logging.root.manager.loggerDict
        names = [name for name, log in list(known.items()) if isinstance(log, logging.Logger)]
        for name in sorted(name for name in names if name == ROOT.name or name.startswith(f"{ROOT.name}.")):
            counted = {"lines": logs.lines[name], "told": logs.told[name], "dropped": logs.dropped[name]}
            yield {"name": name, "level": level_name(logging.getLogger(name)), **counted}

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        caller.require("administrator")
        self.read(caller, vhost, name)
        level = values.get("level")
        if level not in LEVELS:
            raise Refused(f"a level is one of {', '.join(LEVELS)}", 400)
        logging.getLogger(name).setLevel(LEVELS[level])
        self._on_levels()
        self._manager.events.tell("log", "changed", name, level=level)


def level_name(log: logging.Logger) -> str:
    """The level from which on a log's lines are written; one that has no name is told as the next that has."""
    level = log.getEffectiveLevel()
    return next((name for name, number in LEVELS.items() if level <= number), "error")
