"""Where a policy sends what comes to an address: queues and exchanges whose messages go on over a link.

Owns the routes that policies with the key `target` ask for. Changes of policies, queues and links come in; routes held
by the network go out. It decides once per queue or exchange and change; messages cross in the kernel.
It must not read a policy's other keys: those are the broker's.
Rule: docs/guides/policies.md, "Address policies". A link that is not there is waited for.
"""

from __future__ import annotations

import asyncio
import logging

from weft.broker import FabricDesk
from weft.federation import Route
from weft.model.errors import ConfigError, Refused
from weft.network.runner import Network

LOG = logging.getLogger("weft.network")
Place = tuple[str, str, str]
"""Virtual host, kind (`queue` or `exchange`) and name."""


class Targets:
    """The routes of one node that policies ask for."""

    def __init__(self, network: Network, desk: FabricDesk) -> None:
        self._network = network
        self._desk = desk
        self._routes: dict[Place, Route] = {}
        self._is_due = False

    def start(self) -> None:
        """Follow policies from now on."""
        self._desk.watch_targets(self._look_soon)
        self._network.on_link = self._look_soon
        self._look_soon()

    def _look_soon(self) -> None:
        """Not now: what has changed, the kernel is told in this turn."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """Have exactly the routes that policies ask for now."""
        self._is_due = False
        wanted = {place: _route(place, link) for place, link in self._desk.targets().items()}
        for place in [place for place, route in self._routes.items() if wanted.get(place) != route]:
            self._network.let_go(None, [self._routes.pop(place)])
        for place, route in wanted.items():
            if place not in self._routes and route is not None and self._network.has_link(route.link):
                self._make(place, route)

    def _make(self, place: Place, route: Route) -> None:
        try:
            self._network.hold(None, [route])
        except Refused as refused:
            LOG.warning("a policy's target cannot be followed: %s", refused)
            return
        self._routes[place] = route


def _route(place: Place, link: str) -> Route | None:
    vhost, kind, name = place
    title = f"target:{vhost}:{kind}:{name}"
    try:
        if kind == "queue":
            return Route(title, link, "queue", queue=name, key=name, direction="push", vhost=vhost)
        return Route(title, link, "dynamic", exchange=name, direction="push", vhost=vhost)
    except ConfigError as error:
        LOG.warning("a policy's target cannot be followed: %s", error)
        return None
