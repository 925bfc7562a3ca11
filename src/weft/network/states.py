"""Links and routes that come up and go down, told as events of this node.

Owns which of them were up when it last looked. Their states come in from federation, events of the classes `uplink` and
`route` go out.
It must not act on what it sees.
Rule: schema/management.json; what never was up does not go down, and what is taken away says `deleted` only. Changes
within `LOOK_S` of each other are told together, so that hundreds of links that a network loses cost one look.
"""

from __future__ import annotations

import asyncio

from weft.federation import Federation
from weft.management.events import Events

LOOK_S = 0.02
OPERATIONAL, FLOWING = "operational", "flowing"


class States:
    """Tells of links and routes that are up, and no longer."""

    def __init__(self, federation: Federation, events: Events) -> None:
        self._federation = federation
        self._events = events
        self._links: dict[str, tuple[bool, int]] = {}
        """Is it up, and how often did it become so?"""
        self._routes: dict[str, bool] = {}
        self._timer: asyncio.TimerHandle | None = None

    def look_soon(self) -> None:
        """Something may have changed."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def stop(self) -> None:
        """Tell no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        links = {row["name"]: row for row in self._federation.links()}
        for name, row in links.items():
            was_up, connects = self._links.get(name, (False, 0))
            is_up = row["state"] == OPERATIONAL
            about = {"peer": row["peer"], "address": row["address"], "cause": row["cause"]}
            if was_up and (not is_up or row["connects"] != connects):
                self._events.tell("uplink", "down", name, **about)
            if is_up and (not was_up or row["connects"] != connects):
                self._events.tell("uplink", "up", name, **about)
            self._links[name] = is_up, row["connects"]
        routes = {name: (vhost, state == FLOWING, cause) for name, vhost, state, cause in self._federation.standing()}
        for name, (vhost, is_up, cause) in routes.items():
            if is_up != self._routes.get(name, False):
                self._events.tell("route", "up" if is_up else "down", name, vhost, cause=cause)
            self._routes[name] = is_up
        for gone in self._links.keys() - links.keys():
            del self._links[gone]
        for gone in self._routes.keys() - routes.keys():
            del self._routes[gone]
