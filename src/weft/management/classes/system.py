"""The managed machine below a node, and the agent that answers for it.

Owns one row each: what `uname` says of the machine and how busy it is; what the agent serves and how much it has done.
The system and the manager come in.
It must not keep anything of its own, nor ask the machine for more than a few system calls.
Rule: schema/management.json, classes `system` and `agent`; in QMF both are classes beside the broker, which is the
class `node` here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from weft.management.caller import Caller
from weft.management.events import VERSION
from weft.management.manager import BY_NAME, Manager
from weft.management.provider import Provider
from weft.management.query import Row


class System(Provider):
    """The machine."""

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - there is one
        about, page_bytes = os.uname(), os.sysconf("SC_PAGE_SIZE")
        yield {
            "name": about.nodename,
            "os_name": about.sysname,
            "release": about.release,
            "version": about.version,
            "machine": about.machine,
            "cpus": os.cpu_count(),
            "memory_bytes": page_bytes * os.sysconf("SC_PHYS_PAGES"),
            "memory_free_bytes": page_bytes * os.sysconf("SC_AVPHYS_PAGES"),
            "load": os.getloadavg()[0],
        }


class Agent(Provider):
    """Whoever answers these requests and tells these events."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - there is one
        manager = self._manager
        yield {
            "name": manager.host.name,
            "version": manager.host.version,
            "schema": VERSION,
            "classes": list(BY_NAME),
            "requests": manager.requests,
            "told": manager.events.told,
        }
