"""The relays of a node: made, remembered, and told as one thing.

Owns which relays there are, and their place in the store. Wishes come in; the link and the routes of each are held by
the network, and rows that say how they are doing go out.
It must decide nothing of what a link or a route does: federation does.
Rule: what belongs to a relay is changed by the relay alone.
"""

from __future__ import annotations

from typing import Any

from weft.federation import Relay, relay_of, to_table
from weft.model.errors import Refused
from weft.network.runner import Network
from weft.store import Store

KIND = "relay"
STATES = ("refused", "waiting", "attaching", "comparing", "flowing")
"""From worst to best: a relay is as well as its worst route."""


class Relays:
    """Every relay of one node."""

    def __init__(self, network: Network, store: Store) -> None:
        self._network = network
        self._store = store
        self._relays: dict[str, Relay] = {}

    def start(self) -> None:
        """Those of the store."""
        for table in self._store.objects(KIND).values():
            self._hold(relay_of(table))

    def get(self, name: str) -> Relay | None:
        """A relay as it was asked for."""
        return self._relays.get(name)

    def put(self, relay: Relay) -> None:
        """Make a relay, or change it."""
        self._hold(relay)
        with self._store.transaction():
            self._store.put_object(KIND, relay.name, to_table(relay))
        self._store.sync()

    def remove(self, name: str) -> None:
        """Take a relay away, with its routes and its link."""
        relay = self._relays.get(name)
        if relay is None:
            raise Refused(f"no relay '{name}'", 404)
        self._network.let_go(relay.link, relay.routes)
        del self._relays[name]
        with self._store.transaction():
            self._store.delete_object(KIND, name)
        self._store.sync()

    def rows(self) -> list[dict[str, Any]]:
        """Every relay with what is really flowing."""
        routes = {row["name"]: row for row in self._network.federation.routes()}
        return [self._row(relay, [routes[route.name] for route in relay.routes]) for relay in self._relays.values()]

    def _hold(self, relay: Relay) -> None:
        known = self._relays.get(relay.name)
        if known is not None:
            gone = {route.name for route in known.routes} - {route.name for route in relay.routes}
            self._network.let_go(None, [route for route in known.routes if route.name in gone])
        self._network.hold(relay.link, relay.routes)
        self._relays[relay.name] = relay

    @staticmethod
    def _row(relay: Relay, routes: list[dict[str, Any]]) -> dict[str, Any]:
        worst = min(routes, key=lambda row: STATES.index(row["state"]))
        table = to_table(relay)
        told = {name: table[name] for name in ("name", "vhost", "exchange", "queue", "mode", "role")}
        places = [str(peer) for peer in relay.link.peers]  # without passwords
        return told | {"urls": places, "peer": worst["peer"], "state": worst["state"], "cause": worst["cause"]}
