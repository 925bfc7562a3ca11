"""Addresses that a program answers itself: the container for node types written in Python.

Owns the registered types and the links attached to them. Attaches, ends of links, messages, credit and outcomes come
in; a `NodeType` gets them as calls and sends with `send`. A plug-in can so be an echo, a cache, a gateway.
It must never be on the way of messages that are not for such an address.
Rule: AMQP 1.0 section 2.1 (a container holds nodes of any kind); each type has a queue on either side, so that credit
and settlement are those of every queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from weft.model.changes import AcceptLink, Change
from weft.model.errors import LocalProtocolError
from weft.model.events import AttachRequested, ConnectionClosed, Event, LinkClosed, LinkFlow, Settled
from weft.node.local import CREDIT_DEFAULT, Message, Receiver

LOG = logging.getLogger("weft")
TYPES_MAX = 1_000
"""Registered at a time."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link that a peer attached to a node of ours. `sends`: the peer sends to it; else it receives from it."""

    name: str
    conn: int
    sends: bool


class NodeType:
    """What an address does. Every hook may stay as it is; `on_message` by default accepts and forgets."""

    credit = CREDIT_DEFAULT
    """Messages that may be given to it and not settled."""

    def __init__(self) -> None:
        self.address = ""
        self.links: set[Link] = set()
        self._send: Callable[..., Any] | None = None

    async def send(self, body: bytes | str, **properties: Any) -> None:
        """Send to whoever receives from this address; waits there until someone does."""
        if self._send is None:
            raise LocalProtocolError("this node type is not registered")
        await self._send(body, **properties)

    def on_create(self) -> None:
        """The address exists from now on."""

    def on_attach(self, link: Link) -> None:
        """A peer attached a link."""

    def on_detach(self, link: Link) -> None:
        """A link is gone, by the peer's will or with its connection."""

    async def on_message(self, message: Message) -> None:
        """A message came: accept, reject or release it, now or later."""
        message.accept()

    def on_flow(self, link: Link, credit: int) -> None:
        """A receiver may be sent so many messages from now on; what is sent beyond that waits."""

    def on_settled(self, message_id: str, outcome: str) -> None:
        """A receiver has decided on what was sent: accepted, rejected, released or modified (both: it goes out again).

        `message_id` is the one that was given to `send`, empty if there was none.
        """

    def on_destroy(self) -> None:
        """The address ends."""


class _Place:
    """A registered type: its two queues and the task that feeds it."""

    def __init__(self, vhost: str, address: str, kind: NodeType) -> None:
        self.vhost = vhost
        self.kind = kind
        self.incoming = address
        self.outgoing = f"{address}.out"
        own, plain = type(kind), NodeType
        self.reports = own.on_flow is not plain.on_flow or own.on_settled is not plain.on_settled
        """Whether it wants to hear of credit and outcomes: who does not is not called for each message."""
        self.task: asyncio.Task[None] | None = None


class Host(Protocol):
    """What a container needs of the node around it."""

    def declare_queue(self, name: str, *, durable: bool, vhost: str) -> None:
        """Make a queue."""
        ...

    def delete_queue(self, name: str, *, vhost: str) -> None:
        """Delete it."""
        ...

    async def send(self, address: str, body: bytes | str, *, vhost: str, **properties: Any) -> int:
        """Send to a queue."""
        ...

    def receive(self, address: str, *, credit: int, vhost: str) -> Receiver:
        """Receive from a queue."""
        ...


class Container:
    """Every node type of one node."""

    def __init__(self, node: Host) -> None:
        self._node = node
        self._places: dict[tuple[str, str], _Place] = {}
        self._outgoing: dict[tuple[str, str], _Place] = {}
        """The same by the queue that they send to."""

    def register(self, address: str, kind: NodeType, vhost: str = "/") -> None:
        """Let `kind` answer at `address`."""
        if len(self._places) >= TYPES_MAX:
            raise LocalProtocolError(f"more than {TYPES_MAX} node types")
        place = _Place(vhost, address, kind)
        if {(vhost, place.incoming), (vhost, place.outgoing)} & (self._places.keys() | self._outgoing.keys()):
            raise LocalProtocolError(f"there is a node type at {address!r} already")
        for queue in (place.incoming, place.outgoing):
            self._node.declare_queue(queue, durable=False, vhost=vhost)
        kind.address = address

        async def send(body: bytes | str, **properties: Any) -> None:
            await self._node.send(place.outgoing, body, vhost=vhost, **properties)

        kind._send = send
        self._places[vhost, address] = self._outgoing[vhost, place.outgoing] = place
        _call(kind.on_create)
        place.task = asyncio.create_task(self._feed(place))

    async def unregister(self, address: str, vhost: str = "/") -> None:
        """End the address: its links are detached, what waits in it is dropped."""
        place = self._places.pop((vhost, address), None)
        if place is None:
            raise LocalProtocolError(f"there is no node type at {address!r}")
        del self._outgoing[vhost, place.outgoing]
        if place.task is not None:
            place.task.cancel()
            await asyncio.gather(place.task, return_exceptions=True)
        for link in sorted(place.kind.links, key=lambda link: link.name):
            self._detach(place.kind, link)
        for queue in (place.incoming, place.outgoing):
            self._node.delete_queue(queue, vhost=vhost)
        place.kind._send = None
        _call(place.kind.on_destroy)

    async def close(self) -> None:
        """End all."""
        for vhost, address in list(self._places):
            await self.unregister(address, vhost)

    # the controller's side

    def claim(self, vhost: str, event: AttachRequested, link: AcceptLink) -> AcceptLink:
        """An attach was accepted: if it is to one of our addresses, it ends at the right side of it, and is watched."""
        place = self._places.get((vhost, link.queue or ""))
        if place is None:
            return link
        attached = Link(event.link, event.conn, event.peer_sends)
        place.kind.links.add(attached)
        _call(place.kind.on_attach, attached)
        queue = place.incoming if event.peer_sends else place.outgoing
        return replace(link, queue=queue, watch=True, report=place.reports)

    wants = frozenset({LinkClosed, LinkFlow, Settled, ConnectionClosed})

    def on_events(self, events: Sequence[Event], now_ns: int) -> list[Change]:  # noqa: ARG002 - nothing here has a time
        """See what becomes of links, and of what left by them."""
        for event in events:
            match event:
                case LinkClosed():
                    self._drop(event.conn, event.link)
                case ConnectionClosed():
                    self._drop(event.conn, None)
                case LinkFlow():
                    self._flow(event)
                case Settled():
                    place = self._outgoing.get((event.vhost, event.queue))
                    if place is not None:
                        _call(place.kind.on_settled, event.message_id, event.outcome)
        return []

    def _flow(self, event: LinkFlow) -> None:
        place = self._outgoing.get((event.vhost, event.queue))
        link = Link(event.link, event.conn, sends=False)
        if place is not None and link in place.kind.links:
            _call(place.kind.on_flow, link, event.credit)

    def _drop(self, conn: int, name: str | None) -> None:
        for place in self._places.values():
            for link in [link for link in place.kind.links if link.conn == conn and name in (None, link.name)]:
                self._detach(place.kind, link)

    def _detach(self, kind: NodeType, link: Link) -> None:
        kind.links.discard(link)
        _call(kind.on_detach, link)

    async def _feed(self, place: _Place) -> None:
        async with self._node.receive(place.incoming, credit=place.kind.credit, vhost=place.vhost) as receiver:
            async for message in receiver:
                try:
                    await place.kind.on_message(message)
                except Exception:
                    LOG.exception("the node type at %s failed; the message is rejected", place.incoming)
                    message.reject()


def _call(hook: Callable[..., None], *arguments: object) -> None:
    """A hook that fails must not take the node with it."""
    try:
        hook(*arguments)
    except Exception:
        LOG.exception("a hook of a node type failed")
