"""Services that announce themselves, and gateways that take requests for them.

Owns, at a node where a service runs, its queue, exchange and routes to the gateways; at a gateway, the queue where
requests wait for whoever serves. A queue with the argument `x-weft-service` is all a service makes; entries of the
directory tell everyone else; what was made goes when the service does.
It must not know who calls a service, or move a request itself.
Rule: the talk's names. Clients publish to `service_gateway.direct` with the key `NAME.request`; implementations consume
from `NAME.request.impl`, bound to `service_impl.direct` (docs/guides/network.md, "Services").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.directory import Difference, Directory
from weft.federation import Route
from weft.model.changes import Change
from weft.model.errors import Refused, Unavailable
from weft.model.services import GATEWAY_EXCHANGE, IMPL_EXCHANGE, request_name
from weft.network.runner import LOG, Network

SERVICES = "/services"
GATEWAY = "gateway"
"""Role of the links by which services are announced."""
PRESENCE_S = 0.2
"""How often a node looks whether its services still have someone who serves."""
BACKLOG_MAX = 10
"""Requests of one route that wait at a node for its service: few, so that whoever is free gets the next one."""
PLAIN = "{}"


@dataclass(slots=True)
class _Served:
    """A service with a queue at this node."""

    service: str
    vhost: str
    queue: str
    is_present: bool = False


class Services:
    """The services of one node, and what it does for those of others."""

    def __init__(
        self,
        network: Network,
        directory: Directory,
        make_exchange: Callable[[str, str], list[Change]],
        counts: Callable[[str, str], tuple[int, int, int] | None],
    ) -> None:
        """`make_exchange` (virtual host, name) sees that a direct exchange is there; `counts` is of a queue."""
        self._network = network
        self._directory = directory
        self._make_exchange = make_exchange
        self._counts = counts
        self._served: dict[tuple[str, str], _Served] = {}
        self._known: dict[str, dict[str, dict[str, object]]] = {}
        """Instances by service: the node of each with what it says."""
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Follow the services of the fabric."""
        await self._directory.watch(SERVICES, self._on_entries)
        self._rearm()

    def stop(self) -> None:
        """Look after nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def rows(self) -> list[dict[str, object]]:
        """Every instance that is known, with its node and state."""
        return [
            {"name": f"{service}@{node}", "service": service, "node": node, "state": "up", **facts}
            for service, instances in sorted(self._known.items())
            for node, facts in sorted(instances.items())
        ]

    # a service here

    def on_queue(self, vhost: str, queue: str, service: object, is_made: bool) -> None:
        """A queue of a service is being made or deleted: seen to in the next turn, when the kernel has done it."""
        asyncio.get_running_loop().call_soon(self._on_queue, vhost, queue, service, is_made)

    def _on_queue(self, vhost: str, queue: str, service: object, is_made: bool) -> None:
        key = (vhost, queue)
        if is_made and isinstance(service, str) and service and "/" not in service:
            if key not in self._served:
                self._served[key] = _Served(service, vhost, queue)
                self._bind(self._served[key])
        elif not is_made and key in self._served:
            served = self._served.pop(key)
            if served.is_present:
                self._withdraw(served)

    def _bind(self, served: _Served) -> None:
        network = self._network
        network.apply(self._make_exchange(served.vhost, IMPL_EXCHANGE))
        key = (request_name(served.service), PLAIN)
        network.apply(network.desk.rebind(served.vhost, IMPL_EXCHANGE, served.queue, [key], []))

    def _look(self) -> None:
        """Presence: a service is there while somebody consumes from its queue."""
        self._rearm()
        for served in self._served.values():
            counts = self._counts(served.vhost, served.queue)
            is_present = counts is not None and counts[2] > 0
            if is_present and not served.is_present:
                served.is_present = True
                self._announce(served)
            elif served.is_present and not is_present:
                served.is_present = False
                self._withdraw(served)
            elif is_present:
                self._route(served)

    def _rearm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PRESENCE_S, self._look)

    def _announce(self, served: _Served) -> None:
        gateways = [row["peer"] for row in self._gateways()]
        value = {"node": self._network.federation.node, "queue": served.queue, "gateways": gateways}
        self._spawn(self._directory.put(self._path(served), value, ephemeral=True))
        self._route(served)
        LOG.info("service %s is here", served.service)

    def _withdraw(self, served: _Served) -> None:
        for route in self._network.federation.routes():
            if route["name"].startswith(f"service:{served.service}:"):
                self._network.remove_route(route["name"])
        self._spawn(self._directory.delete(self._path(served)))
        LOG.info("service %s has left", served.service)

    def _route(self, served: _Served) -> None:
        """Take requests from every gateway there is a link to."""
        names = {route["name"] for route in self._network.federation.routes()}
        for link in self._gateways():
            name = f"service:{served.service}:{link['name']}"
            if name not in names:
                route = Route(
                    name,
                    str(link["name"]),
                    "queue",
                    IMPL_EXCHANGE,
                    queue=request_name(served.service),
                    key=request_name(served.service),
                    vhost=served.vhost,
                    durable=False,
                    credit=BACKLOG_MAX,
                    backlog_max=BACKLOG_MAX,
                )
                self._network.add_route(route)

    def _gateways(self) -> list[dict[str, object]]:
        return [link for link in self._network.federation.links() if link["role"] == GATEWAY]

    def _path(self, served: _Served) -> str:
        return f"{SERVICES}/{served.service}/{self._network.federation.node}"

    # a gateway

    def _on_entries(self, differences: Sequence[Difference]) -> None:
        touched = set()
        for difference in differences:
            parts = difference.path.split("/")
            if len(parts) != 4:
                continue
            service, node = parts[2], parts[3]
            instances = self._known.setdefault(service, {})
            if difference.entry is None:
                instances.pop(node, None)
            else:
                instances[node] = difference.entry.value
            if not instances:
                del self._known[service]
            touched.add(service)
        for service in sorted(touched):
            self._serve_as_gateway(service)

    def _serve_as_gateway(self, service: str) -> None:
        """Requests wait here while somebody serves who takes them from here."""
        network = self._network
        me = network.federation.node
        wanted = any(_names(facts, me) for facts in self._known.get(service, {}).values())
        queue, key = request_name(service), (request_name(service), PLAIN)
        is_bound = key in network.desk.keys_of_queue("/", GATEWAY_EXCHANGE, queue)
        try:
            if wanted and not is_bound:
                network.apply(self._make_exchange("/", GATEWAY_EXCHANGE))
                network.apply(network.desk.make_queue("/", queue, durable=True, arguments={}))
                network.apply(network.desk.rebind("/", GATEWAY_EXCHANGE, queue, [key], []))
            elif is_bound and not wanted:
                network.apply(network.desk.rebind("/", GATEWAY_EXCHANGE, queue, [], [key]))
        except Refused as refused:
            LOG.warning("requests for service %s cannot be taken here: %s", service, refused)

    def _spawn(self, work: object) -> None:
        async def quietly() -> None:
            try:
                await work  # type: ignore[misc]
            except Unavailable as error:
                LOG.warning("the directory did not hear of a service: %s", error)

        self._network.spawn(quietly())


def _names(facts: dict[str, object], node: str) -> bool:
    """Does an instance take its requests from this gateway?"""
    gateways = facts.get("gateways")
    return isinstance(gateways, list) and node in gateways
