"""Services that announce themselves, and gateways that take requests for them.

Owns, at a node where a service runs, its queue, exchange and routes to the gateways; at a gateway, the queue where
requests wait for whoever serves. A queue with the argument `x-weft-service` is all a service makes; entries of the
directory tell everyone else; what was made goes when the service does. Instances that say who they are (`presence`)
are in the entry by name, whatever queue they serve from, and out of it in the turn in which they are lost.
It must not know who calls a service, or move a request itself.
Rule: the talk's names. Clients publish to `service_gateway.direct` with the key `NAME.request`; implementations consume
from `NAME.request.impl`, bound to `service_impl.direct` (docs/guides/network.md, "Services").
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from weft.directory import Difference, Directory, Value
from weft.directory.base import check_path
from weft.federation import Route
from weft.federation.records import check_name
from weft.model.changes import Change
from weft.model.errors import ConfigError, Refused, Unavailable
from weft.model.services import GATEWAY_EXCHANGE, IMPL_EXCHANGE, presence_topic, request_name
from weft.network.presence import Instance
from weft.network.runner import LOG, Network

SERVICES = "/services"
GATEWAY = "gateway"
"""Role of the links by which services are announced."""
PRESENCE_S = 0.2
"""How often a node looks whether services whose instances do not say who they are still have someone who serves."""
NOTE_S = 2.0
"""When the next word of an instance is due, in the note that the node writes for it: as often as clients write them."""
NOTE_EXCHANGE = "amq.topic"
BACKLOG_MAX = 10
"""Requests of one route that wait at a node for its service: few, so that whoever is free gets the next one."""
PLAIN = "{}"
ROUTES = "service:"
"""Begins the names of the routes that are made here."""
NAME_BYTES_MAX = 255
"""Of a queue and of a key."""


@dataclass(slots=True)
class _Served:
    """A service with a queue at this node."""

    service: str
    vhost: str
    queue: str
    is_routed: bool
    """Do requests come from gateways? Otherwise whoever knows its queue sends there."""
    instances: Counter[str] = field(default_factory=Counter)
    """Links of each instance that says who it is."""
    is_present: bool = False
    entry: Value | None = None
    """What the directory is to say; None: nothing."""
    is_told: bool = True
    is_telling: bool = False


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
        self._network.on_unlink = lambda link: self._unroute(lambda route: route["link"] == link)
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

    def queue_of(self, service: str) -> tuple[str, str] | None:
        """(virtual host, name) of the queue that a service at this node takes its requests from."""
        here = (served for served in self._served.values() if served.service == service)
        return next(((served.vhost, served.queue) for served in here), None)

    # a service here

    def on_queue(self, vhost: str, queue: str, service: object, is_made: bool) -> None:
        """A queue of a service is being made or deleted: seen to in the next turn, when the kernel has done it."""
        asyncio.get_running_loop().call_soon(self._on_queue, vhost, queue, service, is_made)

    def _on_queue(self, vhost: str, queue: str, service: object, is_made: bool) -> None:
        key = (vhost, queue)
        if is_made and isinstance(service, str) and _is_name(service):
            if key not in self._served:
                self._served[key] = _Served(service, vhost, queue, is_routed=True)
                self._bind(self._served[key])
                self._look_at(self._served[key])
        elif not is_made and key in self._served:
            served = self._served.pop(key)
            if served.is_present:
                self._withdraw(served)

    def on_came(self, instance: Instance) -> None:
        """An instance is about to be attached: seen to in the next turn."""
        asyncio.get_running_loop().call_soon(self._on_instance, instance, 1)

    def on_left(self, instance: Instance) -> None:
        """An instance is gone."""
        asyncio.get_running_loop().call_soon(self._on_instance, instance, -1)

    def _on_instance(self, instance: Instance, change: int) -> None:
        key = (instance.vhost, instance.queue)
        served = self._served.get(key)
        if served is None:
            if change < 0 or not _is_name(instance.queue) or not instance.name:
                return
            served = self._served[key] = _Served(instance.queue, *key, is_routed=False)
        before = served.instances[instance.name]
        if change < 0 and not before:
            return  # of a queue of the same name, that is gone
        served.instances[instance.name] += change
        after = served.instances[instance.name]
        if not after:
            del served.instances[instance.name]
        if bool(before) == bool(after):
            return
        self._look_at(served)
        if after or not self._is_elsewhere(served.service, instance.name):
            self._note(served, instance.name, "up" if after else "down")

    def _is_elsewhere(self, service: str, instance: str) -> bool:
        """Has an instance that left this node come to another?"""
        others = (facts for facts in self._known.get(service, {}).values() if facts.get("node") != self._name)
        return any(isinstance(names := facts.get("instances"), list) and instance in names for facts in others)

    def _note(self, served: _Served, instance: str, state: str) -> None:
        """Tell who watches a service, as the instance itself would."""
        note = {"service": served.service, "instance": instance, "state": state, "every_s": NOTE_S}
        properties = {"content_type": "application/json", "expiration": str(int(NOTE_S * 5_000))}
        topic = presence_topic(served.service)
        self._network.publish(served.vhost, NOTE_EXCHANGE, topic, json.dumps(note).encode(), properties)

    def _bind(self, served: _Served) -> None:
        network = self._network
        network.apply(self._make_exchange(served.vhost, IMPL_EXCHANGE))
        key = (request_name(served.service), PLAIN)
        network.apply(network.desk.rebind(served.vhost, IMPL_EXCHANGE, served.queue, [key], []))

    def _look(self) -> None:
        """Presence of those who do not say who they are, and what the directory could not be told."""
        self._rearm()
        for key, served in list(self._served.items()):
            self._look_at(served)
            if not (served.is_routed or served.is_present) and served.is_told:
                del self._served[key]

    def _look_at(self, served: _Served) -> None:
        """A service is there while an instance is, or somebody consumes from its queue."""
        is_present = bool(served.instances)
        if served.is_routed and not is_present:
            counts = self._counts(served.vhost, served.queue)
            is_present = counts is not None and counts[2] > 0
        if is_present:
            self._announce(served)
        elif served.is_present:
            self._withdraw(served)
        elif not served.is_told:
            self._tell(served)

    def _rearm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PRESENCE_S, self._look)

    def _announce(self, served: _Served) -> None:
        gateways = [row["peer"] for row in self._gateways()] if served.is_routed else []
        instances = sorted(served.instances)
        entry = {"node": self._name, "queue": served.queue, "gateways": gateways, "instances": instances}
        if not served.is_present:
            served.is_present = True
            LOG.info("service %s is here", served.service)
        if entry != served.entry or not served.is_told:
            served.entry = entry
            self._tell(served)
        if served.is_routed:
            self._route(served)

    def _withdraw(self, served: _Served) -> None:
        served.is_present = False
        served.entry = None
        others = [o for o in self._served.values() if o is not served and o.is_present and o.service == served.service]
        if served.is_routed and not any(other.is_routed for other in others):
            self._unroute(lambda route: route["queue"] == request_name(served.service))
        here = [other for other in others if other.vhost == served.vhost]
        for other in here:
            other.is_told = False  # their entry is the same one
            self._tell(other)
        if not here:
            self._tell(served)
        LOG.info("service %s has left", served.service)

    def _unroute(self, is_gone: Callable[[dict[str, object]], bool]) -> None:
        """Take no more requests by these routes."""
        for route in self._network.federation.routes():
            if route["name"].startswith(ROUTES) and is_gone(route):
                self._network.remove_route(route["name"])

    def _tell(self, served: _Served) -> None:
        """Have the directory say what is so now; one word after the other, for a late one must not win."""
        served.is_told = False
        if not served.is_telling:
            served.is_telling = True
            self._network.spawn(self._write(served))

    async def _write(self, served: _Served) -> None:
        try:
            while not served.is_told:
                entry = served.entry
                if entry is None:
                    await self._directory.delete(self._path(served))
                else:
                    await self._directory.put(self._path(served), entry, ephemeral=True)
                served.is_told = served.entry is entry
        except Unavailable as error:
            LOG.warning("the directory did not hear of a service: %s", error)
        finally:
            served.is_telling = False

    def _route(self, served: _Served) -> None:
        """Take requests from every gateway there is a link to."""
        names = {route["name"] for route in self._network.federation.routes()}
        for link in self._gateways():
            name = _route_name(served.service, str(link["name"]))
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
        place = self._name if served.vhost == "/" else f"{self._name}:{quote(served.vhost, safe='')}"
        return f"{SERVICES}/{served.service}/{place}"

    @property
    def _name(self) -> str:
        return self._network.federation.node

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


def _is_name(service: str) -> bool:
    """Can this be the name of a service, in the directory and in a key?"""
    try:
        check_path(f"{SERVICES}/{service}")
    except ConfigError:
        return False
    return "/" not in service and len(request_name(service).encode()) <= NAME_BYTES_MAX


def _route_name(service: str, link: str) -> str:
    """The route by which a service takes requests over a link: a name that says so, if that can be one."""
    name = f"{ROUTES}{service}:{link}"
    try:
        check_name("route", name)
    except ConfigError:
        return ROUTES + hashlib.sha256(name.encode()).hexdigest()[:32]
    return name


def _names(facts: dict[str, object], node: str) -> bool:
    """Does an instance take its requests from this gateway?"""
    gateways = facts.get("gateways")
    return isinstance(gateways, list) and node in gateways
