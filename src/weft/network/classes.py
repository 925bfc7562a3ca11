"""Managed uplinks, routes, relays, directory entries and services: their providers for management.

Owns how requests about these classes become calls of the network and the directory, and how their state becomes rows.
Callers and plain values come in; rows go out.
It must not decide what a link or a route means: federation does.
Rule: schema/management.json, classes `uplink`, `route`, `relay`, `directory`, `service`; changes need the tag
`administrator`.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft._kernel import Engine
from weft.directory import Directory, Entry
from weft.federation import link_of, relay_of, route_of, to_table
from weft.management.caller import Caller
from weft.management.manager import Manager
from weft.management.provider import Provider, Values
from weft.management.query import Row
from weft.model.errors import Refused
from weft.network.relays import Relays
from weft.network.runner import Network
from weft.network.services import Services

ADMINISTRATOR = "administrator"
_ROUND_TRIPS = {f"settle_{how}_us": f"round_trip_{how}_us" for how in ("p50", "p90", "p99", "max")}


def register(manager: Manager, network: Network, directory: Directory, services: Services, relays: Relays) -> None:
    """Let a manager answer for the fabric."""
    manager.register("uplink", Uplinks(manager, network))
    manager.register("route", Routes(manager, network))
    manager.register("relay", RelaysClass(manager, network, relays))
    manager.register("directory", Entries(manager, directory))
    manager.register("service", ServicesClass(manager, services))


class Uplinks(Provider):
    """Links to other nodes."""

    def __init__(self, manager: Manager, network: Network) -> None:
        self._manager = manager
        self._network = network

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - links are the node's
        return self._network.federation.links()

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:  # noqa: ARG002
        caller.require(ADMINISTRATOR)
        link = link_of({**values, "name": name})
        known = [row["name"] for row in self._network.federation.links()]
        self._network.add_link(link)
        self._manager.events.tell("uplink", "changed" if name in known else "created", name)
        return name

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        known = self._network.federation.link(name)
        if known is None:
            raise Refused(f"no link '{name}'", 404)
        await self.create(caller, vhost, name, {**to_table(known), **values})

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        caller.require(ADMINISTRATOR)
        self._network.remove_link(name)
        self._manager.events.tell("uplink", "deleted", name)


class Routes(Provider):
    """What links carry."""

    def __init__(self, manager: Manager, network: Network) -> None:
        self._manager = manager
        self._network = network

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:
        carried = _carried(self._manager.host.engine)
        for row in self._network.federation.routes():
            if row["vhost"] == vhost or (vhost is None and row["vhost"] in caller.vhosts()):
                told = {name: value for name, value in row.items() if name not in ("numbers", "conn")}
                yield told | {"carried": _sum(carried, [row])} | self._round_trips(row["vhost"], row["name"])

    def _round_trips(self, vhost: str, name: str) -> Row:
        """How long the peer took to answer for what was sent to it: what waits for that is in a queue here."""
        engine, queue = self._manager.host.engine, self._network.federation.pushed_from(name)
        number = None if queue is None else engine.queue_id(vhost, queue)
        found = [] if number is None else engine.rows("queues", [number], list(_ROUND_TRIPS))
        return {told: found[0][column] if found else None for column, told in _ROUND_TRIPS.items()}

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:
        caller.require(ADMINISTRATOR)
        route = route_of({**values, "name": name, "vhost": vhost})
        known = [row["name"] for row in self._network.federation.routes()]
        self._network.add_route(route)
        about = {"link": route.link, "carries": route.kind, "direction": route.direction}
        self._manager.events.tell("route", "changed" if route.name in known else "created", route.name, vhost, **about)
        return route.name

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        known = self._network.federation.route(name)
        if known is None:
            raise Refused(f"no route '{name}'", 404)
        await self.create(caller, vhost, name, {**to_table(known), **values})

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        caller.require(ADMINISTRATOR)
        self._network.remove_route(name)
        self._manager.events.tell("route", "deleted", name, vhost)


class RelaysClass(Provider):
    """What this node and others keep in step."""

    def __init__(self, manager: Manager, network: Network, relays: Relays) -> None:
        self._manager = manager
        self._network = network
        self._relays = relays

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:
        carried = _carried(self._manager.host.engine)
        for row in self._relays.rows():
            if row["vhost"] == vhost or (vhost is None and row["vhost"] in caller.vhosts()):
                own = {f"{row['name']}.{way}" for way in ("in", "out")}
                routes = [route for route in self._network.federation.routes() if route["name"] in own]
                mended = sum(route["mended"] for route in routes)
                yield row | {"carried": _sum(carried, routes), "mended": mended}

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:
        caller.require(ADMINISTRATOR)
        is_new = self._relays.get(name) is None
        self._relays.put(relay_of({**values, "name": name, "vhost": vhost}))
        self._manager.events.tell("relay", "created" if is_new else "changed", name, vhost)
        return name

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        known = self._relays.get(name)
        if known is None:
            raise Refused(f"no relay '{name}'", 404)
        await self.create(caller, vhost, name, {**to_table(known), **values})

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        caller.require(ADMINISTRATOR)
        self._relays.remove(name)
        self._manager.events.tell("relay", "deleted", name, vhost)


def _carried(engine: Engine) -> dict[tuple[int, int], int]:
    """Messages that went over each link to another node, by connection and number."""
    _, _, rows = engine.page("links", columns=["conn", "link", "messages"])
    return {(row["conn"], row["link"]): row["messages"] for row in rows}


def _sum(carried: dict[tuple[int, int], int], routes: Iterable[Row]) -> int:
    """What went over these routes."""
    return sum(carried.get((route["conn"], number), 0) for route in routes for number in route["numbers"])


class Entries(Provider):
    """The directory, as far as this node knows it."""

    def __init__(self, manager: Manager, directory: Directory) -> None:
        self._manager = manager
        self._directory = directory

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - entries are the fabric's
        return [_row(entry) for entry in self._directory.known()]

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:  # noqa: ARG002
        caller.require(ADMINISTRATOR)
        await self._directory.put(name, values.get("value") or {}, ephemeral=bool(values.get("ephemeral")))
        return name

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        await self.create(caller, vhost, name, values)

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        caller.require(ADMINISTRATOR)
        if not await self._directory.delete(name):
            raise Refused(f"no entry '{name}'", 404)


def _row(entry: Entry) -> Row:
    return {
        "name": entry.path,
        "value": entry.value,
        "ephemeral": entry.ephemeral,
        "node": entry.owner,
        "version": entry.version,
    }


class ServicesClass(Provider):
    """Instances of services, wherever they are."""

    def __init__(self, manager: Manager, services: Services) -> None:
        self._host = manager.host
        self._services = services

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:  # noqa: ARG002 - services are the fabric's
        told = ({name: row[name] for name in ("name", "service", "node", "state")} for row in self._services.rows())
        return [row | {"served": self._served(row)} for row in told]

    def _served(self, row: Row) -> int | None:
        """Requests that it has answered; the node where it runs knows."""
        place = self._services.queue_of(row["service"]) if row["node"] == self._host.name else None
        queue = None if place is None else self._host.engine.queue_id(*place)
        found = [] if queue is None else self._host.engine.rows("queues", [queue], ["settled"])
        return found[0]["settled"] if found else None
