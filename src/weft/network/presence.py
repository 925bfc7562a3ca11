"""Who serves here: the links by which instances of services take their requests, for as long as they are attached.

Owns the instances at this node, by connection and link. A receiver that says it is an instance (the capability
`weft:service`) comes in when it is attached and goes when its link or its connection does, however that ended: a
process that is killed is gone as soon as its socket is.
It must not know what becomes of that: whoever follows is told of each instance that came or left.
Rule: an instance has the name of its connection's container (docs/guides/network.md, "Services").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weft.model.changes import AcceptLink, Change
from weft.model.events import AttachRequested, ConnectionClosed, Event, LinkClosed
from weft.model.services import INSTANCE


@dataclass(frozen=True, slots=True)
class Instance:
    """One receiver that serves."""

    vhost: str
    queue: str
    name: str
    """Of the process, as its client calls itself."""


class Presence:
    """The instances at one node. It is a controller of the driver, too."""

    def __init__(
        self, container_of: Callable[[int], str], came: Callable[[Instance], None], left: Callable[[Instance], None]
    ) -> None:
        """`container_of` names the peer of a connection."""
        self._container_of = container_of
        self._came = came
        self._left = left
        self._instances: dict[int, dict[str, list[Instance]]] = {}
        """By connection and name; two sessions may have links of one name."""

    def claim(self, vhost: str, event: AttachRequested, link: AcceptLink) -> AcceptLink:
        """A link was accepted: the node is to hear of its end if it serves."""
        if event.peer_sends or link.queue is None or INSTANCE not in event.terminus.capabilities:
            return link
        instance = Instance(vhost, link.queue, self._container_of(event.conn))
        self._instances.setdefault(event.conn, {}).setdefault(event.link, []).append(instance)
        self._came(instance)
        return replace(link, watch=True, capabilities=(*link.capabilities, INSTANCE))

    wants = frozenset({LinkClosed, ConnectionClosed})

    def on_events(self, events: Sequence[Event], now_ns: int) -> list[Change]:  # noqa: ARG002 - nothing here has a time
        """See links and connections go."""
        for event in events:
            if isinstance(event, LinkClosed):
                self._end(event.conn, event.link)
            elif isinstance(event, ConnectionClosed):
                for instances in self._instances.pop(event.conn, {}).values():
                    for instance in instances:
                        self._left(instance)
        return []

    def _end(self, conn: int, link: str) -> None:
        links = self._instances.get(conn, {})
        if link in links:
            self._left(links[link].pop(0))
            if not links[link]:
                del links[link]
