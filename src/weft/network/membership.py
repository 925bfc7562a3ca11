"""All of a node that makes it a member of a fabric, put together.

Owns the parts and their order of birth and end: network, directory, services, settings. The node's own parts come in;
one controller for its driver goes out.
It must decide nothing itself.
Rule: a directory that cannot be reached stops nothing: the node serves with what it has, and follows once it answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from weft.broker import FabricDesk, Topology
from weft.directory import Directory, Embedded, open_directory
from weft.federation import Federation
from weft.management import Host, Management
from weft.model.errors import Unavailable
from weft.network import classes, gossip
from weft.network.presence import Presence
from weft.network.relays import Relays
from weft.network.reports import Reports
from weft.network.runner import LOG, Network
from weft.network.services import Services
from weft.network.settings import Settings
from weft.network.states import States
from weft.network.targets import Targets
from weft.network.voices import Voices
from weft.store import Store

RETRY_S = 1.0
MEMBERS = "/members"


class Membership:
    """One node in a fabric."""

    def __init__(self, node: str, topology: Topology, store: Store, directory_url: str, *, epoch: int) -> None:
        """`epoch` is higher than in any life of this node before: so are its announcements newer."""
        self._topology = topology
        self._desk = FabricDesk(topology)
        federation = Federation(node, self._desk, random.random, epoch)
        self.network = Network(federation, self._desk, store)
        self.relays = Relays(self.network, store)
        topology.appear = self.network.appear
        self.directory: Directory = open_directory(directory_url, node, store)
        self.services: Services | None = None
        self._follower: asyncio.Task[None] | None = None
        self._states: States | None = None

    async def start(self, host: Host, management: Management) -> None:
        """Join; what a directory says comes as soon as it answers."""
        network = self.network
        network.voice = Voices(host.policy, host.driver.has_dialled).of
        self._desk.watch(network.on_binding)
        services = self.services = Services(network, self.directory, self._desk.make_exchange, host.engine.queue_stats)
        self._watch_instances(host, services)
        if isinstance(self.directory, Embedded):
            gossip.join(self.directory, network)
        classes.register(management.manager, network, self.directory, services, self.relays)
        on_edits = management.on_edits

        def both(edits: list[tuple[bool, object]]) -> None:
            on_edits(edits)  # type: ignore[arg-type]
            self._desk.on_edits(edits)  # type: ignore[arg-type]

        self._topology.on_edits = both  # type: ignore[assignment]
        self._states = States(network.federation, management.events)
        network.on_turn = self._states.look_soon
        network.start(host.driver)
        self.relays.start()
        Targets(network, self._desk).start()
        self._desk.watch_queues(services.on_queue)
        settings = Settings(host, network, self.directory)
        reports = Reports(self.directory, management.events)
        if isinstance(self.directory, Embedded):
            await self._follow(settings, services, reports)
        else:
            self._follower = asyncio.get_running_loop().create_task(self._follow_soon(settings, services, reports))

    def _watch_instances(self, host: Host, services: Services) -> None:
        topology = self._topology
        presence = Presence(topology.container_of, services.on_came, services.on_left)
        claim = topology.claim
        topology.claim = lambda vhost, event, link: presence.claim(vhost, event, claim(vhost, event, link))
        host.driver.add_controller(presence)

    async def _follow(self, settings: Settings, services: Services, reports: Reports) -> None:
        await self.directory.start()
        await services.start()
        await settings.start()
        await reports.start()

    async def _follow_soon(self, settings: Settings, services: Services, reports: Reports) -> None:
        """For a directory elsewhere: it may not be there yet."""
        steps = [self.directory.start, services.start, settings.start, reports.start]
        while steps:
            try:
                await steps[0]()
                steps.pop(0)
            except Unavailable as error:
                LOG.warning("the directory does not answer, the node goes on without: %s", error)
                await asyncio.sleep(RETRY_S)

    async def announce(self, urls: Sequence[str]) -> None:
        """Tell the fabric where this node listens, as soon as the directory answers."""
        if self._follower is None:
            await self._put_member(urls)
        else:
            self.network.spawn(self._announce_later(self._follower, urls))

    async def _announce_later(self, follower: asyncio.Task[None], urls: Sequence[str]) -> None:
        await asyncio.wait([follower])
        if not follower.cancelled():
            await self._put_member(urls)

    async def _put_member(self, urls: Sequence[str]) -> None:
        try:
            await self.directory.put(f"{MEMBERS}/{self.network.federation.node}", {"urls": list(urls)}, ephemeral=True)
        except Unavailable as error:
            LOG.warning("the directory did not hear of this node: %s", error)

    async def stop(self) -> None:
        """Leave: what is ephemeral is taken back, links are let go."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
        if self.services is not None:
            self.services.stop()
        await self.directory.stop()
        await self.network.stop()
        if self._states is not None:
            self._states.stop()
