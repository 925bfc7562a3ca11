"""Messages to and from this very process: the embedded half of a node, with no socket between.

Owns receivers and the messages they hand out. Deliveries come from the engine in batches, once per turn of the loop,
and wait in the receiver's inbox; its credit bounds how many. Outcomes go back one by one.
It must never declare or decide: names are settled by the caller (see `weft.server`).
Rule: a message that was not settled goes back to its queue when its receiver closes, as on the wire.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, Self

from weft._kernel import Engine
from weft.model.errors import Unavailable

CREDIT_DEFAULT = 100
"""Messages a receiver may hold unsettled: enough to hide a turn of the loop, few enough that a slow reader leaves work
to others.
"""

SEND_BYTES_PER_TURN = 262_144
"""What a sender may send before the loop turns, though nothing makes it wait: as much as one read of a socket."""

SEND_OVERHEAD_BYTES = 4_096
"""What a message counts for beside its body, so that small ones let the loop turn too."""


@dataclass(slots=True)
class Message:
    """A message as it was taken from a queue. Settle it once: `accept`, `reject` or `release`."""

    body: bytes
    properties: dict[str, Any]
    exchange: str
    routing_key: str
    redelivered: bool
    publisher: int
    """The connection it came by; 0 if it was sent by this process or stored before the node was started."""
    _tag: int = field(repr=False)
    _inbox: Inbox | None = field(repr=False)

    @property
    def offset(self) -> int | None:
        """Its place in the stream it was read from."""
        offset = self.properties.get("headers", {}).get("x-stream-offset")
        return offset if isinstance(offset, int) else None

    def accept(self) -> None:
        """Done: the queue forgets it."""
        self._settle("accepted")

    def reject(self) -> None:
        """It cannot be handled: to the dead letters, if the queue has such a place."""
        self._settle("rejected")

    def release(self) -> None:
        """Someone else, or later: back to its place in the queue."""
        self._settle("released")

    def _settle(self, outcome: str) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None and inbox.open:
            inbox.settle(self._tag, outcome)


class Inbox:
    """What one local consumer was given and has not handed out yet."""

    __slots__ = ("_arrived", "_messages", "_post", "credit", "handle", "open")

    def __init__(self, post: Post, handle: int, credit: int) -> None:
        self._post = post
        self._messages: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self.handle = handle
        self.credit = credit
        self.open = True

    def fill(self, deliveries: list[tuple[int, str, str, bool, dict[str, Any], bytes, int]]) -> None:
        for tag, exchange, routing_key, redelivered, properties, body, publisher in deliveries:
            self._messages.append(Message(body, properties, exchange, routing_key, redelivered, publisher, tag, self))
        self._arrived.set()

    def settle(self, tag: int, outcome: str) -> None:
        self._post.settle(self.handle, tag, outcome)

    async def next(self) -> Message:
        while not self._messages:
            if not self.open:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._messages.popleft()

    def close(self) -> None:
        """Nothing more comes; messages not handed out are the queue's again."""
        self._messages.clear()
        self.end()

    def end(self) -> None:
        """Nothing more comes."""
        self.open = False
        self._arrived.set()


class Receiver:
    """Messages of one queue, in order: `async for message in receiver`. Close it, leave its `async with`, or drop
    it.
    """

    __slots__ = ("_inbox", "_post")

    def __init__(self, post: Post, inbox: Inbox) -> None:
        self._post = post
        self._inbox = inbox

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self._inbox.next()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop receiving; what was not settled goes back to the queue."""
        self._post.unsubscribe(self._inbox)

    def __del__(self) -> None:
        if self._inbox.open:
            self._post.unsubscribe_soon(self._inbox)


class Post:
    """Every local sender and receiver of a node."""

    def __init__(self, engine: Engine, changed: Callable[[], None]) -> None:
        self._engine = engine
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._inboxes: dict[int, Inbox] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._sent_bytes = 0
        self._unsafe: deque[tuple[tuple[int, int], asyncio.Future[None]]] = deque()
        """Senders that wait for the disk, in order: how far it must be."""

    async def send(self, vhost: str, exchange: str, routing_key: str, body: bytes, properties: dict[str, Any]) -> int:
        """Route a message; how many queues took it. Waits while messages take more memory than they may, and until the
        disk has a message that is to be kept.
        """
        self._sent_bytes += SEND_OVERHEAD_BYTES + len(body)
        if self._sent_bytes > SEND_BYTES_PER_TURN:
            self._sent_bytes = 0
            await asyncio.sleep(0)
        await self._room.wait()
        self._engine.at(monotonic_ns())
        taken = self._engine.publish(vhost, exchange, routing_key, body, properties)
        needs = self._engine.stored()
        self._changed()
        if needs is not None:
            safe = self._loop.create_future()
            self._unsafe.append((needs, safe))
            await safe
        return taken

    def disk_moved(self) -> None:
        """The disk has more: senders whose messages are safe go on."""
        if self._unsafe:
            written, synced = self._engine.reached()
            while self._unsafe and self._unsafe[0][0][0] <= written and self._unsafe[0][0][1] <= synced:
                _, safe = self._unsafe.popleft()
                if not safe.done():
                    safe.set_result(None)

    def abandon(self) -> None:
        """The disk will say no more: who still waits for it is told so."""
        for _, safe in self._unsafe:
            if not safe.done():
                safe.set_exception(Unavailable("the node ended before the message was on disk"))
        self._unsafe.clear()

    def put(self, vhost: str, queue: str, body: bytes) -> int:
        """Put a message of the node's own into a queue, at once; how many queues took it (0: it is not there)."""
        taken = self._engine.publish(vhost, "", queue, body, None)
        self._changed()
        return taken

    def hold(self, on: bool) -> None:
        """Let senders wait, or go on."""
        if on:
            self._room.clear()
        else:
            self._room.set()

    def subscribe(self, vhost: str, queue: str, credit: int, offset: int | str | None = None) -> Receiver:
        """A receiver on a queue that exists; on a stream, from an offset on."""
        self._engine.at(monotonic_ns())
        handle = self._engine.subscribe(vhost, queue, credit, offset)
        inbox = self._inboxes[handle] = Inbox(self, handle, credit)
        self._changed()
        return Receiver(self, inbox)

    def unsubscribe(self, inbox: Inbox) -> None:
        if self._inboxes.pop(inbox.handle, None) is not None:
            inbox.close()
            self._engine.unsubscribe(inbox.handle)
            self._changed()

    def ended(self, handle: int) -> None:
        """The queue of a receiver is gone: what it holds can still be read, then its loop ends."""
        inbox = self._inboxes.pop(handle, None)
        if inbox is not None:
            inbox.end()

    def unsubscribe_soon(self, inbox: Inbox) -> None:
        """From a finaliser, which may run in any thread and after the loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.unsubscribe, inbox)

    def settle(self, handle: int, tag: int, outcome: str) -> None:
        self._engine.at(monotonic_ns())
        self._engine.settle(handle, tag, outcome)
        self._changed()

    def deliver(self) -> None:
        """Move what the engine has for this process into the inboxes."""
        for handle in self._engine.poll_local():
            inbox = self._inboxes.get(handle)
            if inbox is not None:
                inbox.fill(self._engine.take(handle, inbox.credit))

    def close(self) -> None:
        self._room.set()
        for inbox in list(self._inboxes.values()):
            self.unsubscribe(inbox)
