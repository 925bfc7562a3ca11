"""The simple face: send, receive, publish, subscribe, request and serve, by address alone.

Owns what a program holds of the network: one connection to a node, restored as often as needed, and the links that its
calls have opened. Addresses and values come in; outcomes, messages and replies go out.
It must never name an exchange, a binding or a broker to the program: how topics are addressed is `dialect`'s to know.
Rule: every call ends, by its result or by an error that says why; a send is done when the node has the message safe.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from weft.client.codecs import encode
from weft.client.core import Core
from weft.client.dialect import Dialect, dialect
from weft.client.links import SELECTOR, STREAM_OFFSET, WINDOW, Inlet, Outlet
from weft.client.message import Message
from weft.client.receiving import Receiver
from weft.client.replies import Asking, Replies
from weft.client.service import PRESENCE_S, Service, presence, watch
from weft.client.sessions import Session
from weft.client.steps import Pipeline
from weft.client.tickets import Ticket, home_loop, near_loop, until_stopped, wait_for_all, within
from weft.client.url import arrange, targets
from weft.model.client_events import Opened
from weft.model.errors import DeadlineExceeded, LocalProtocolError, Unavailable, Undelivered

if TYPE_CHECKING:
    from weft.client.options import Options
    from weft.client.signing import Signer
    from weft.client.spool import Spool

OPEN_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 30.0
HEARTBEAT_S = 30.0
CREDIT = 100
"""Messages a receiver holds unsettled: a few round trips' worth for quick work, and not a queue's worth for slow."""
SPOOL_BYTES_MAX = 64 << 20
"""What a spool holds unless it is told otherwise: a day of small messages, and little beside a disk."""
OUTLETS_MAX = 128
"""Addresses that get a link of their own; more share one, if the node can do that."""


class Fabric:
    """A client's connection to the messaging fabric.

    >>> async def main() -> None:
    ...     async with weft.connect() as fabric:
    ...         await fabric.send("doc.greetings", {"hello": "world"})
    ...         async with fabric.receive("doc.greetings") as messages:
    ...             message = await anext(messages)
    ...             print(message.body)
    >>> asyncio.run(main())
    {'hello': 'world'}
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        name: str | None = None,
        timeout_s: float = OPEN_TIMEOUT_S,
        heartbeat_s: float = HEARTBEAT_S,
        tls: ssl.SSLContext | None = None,
        window: int = WINDOW,
        policy: Literal["failover", "random", "round-robin"] = "failover",
        signer: Signer | None = None,
        spool: str | os.PathLike[str] | None = None,
        spool_bytes_max: int = SPOOL_BYTES_MAX,
        patient: bool = True,
    ) -> None:
        self._signer, self._patient = signer, patient
        self._spooling = None if spool is None else (spool, spool_bytes_max)
        self._spool: Spool | None = None
        self._targets = arrange(targets(url), policy)
        # The name stays when the connection is made again, and no other process has it: replies find their way by it.
        self.name = f"{name or 'weft'}-{os.urandom(6).hex()}"
        self._timeout_s, self._heartbeat_s = timeout_s, heartbeat_s
        self._tls = tls
        self._window = window
        self._core: Core | None = None
        self._outlets: dict[str, Outlet] = {}
        self._links = 0
        # Threads that need the same link make it once.
        self._making = threading.Lock()
        self._replies: Replies | None = None
        self._spoken: tuple[Opened, Dialect] | None = None
        """The peer that was asked last how it wants to be spoken to, and the answer."""
        self._services: list[Service] = []

    # life

    async def open(self) -> Self:
        """Connect; Unavailable or Refused if that does not work in time."""
        if self._core is not None:
            raise LocalProtocolError("the client is open already")
        if self._spooling is not None:
            from weft.client.spool import Spool

            self._spool = Spool(self, *self._spooling)
        core = Core(
            self._targets,
            home_loop(self._targets),
            container=self.name,
            idle_ms=int(self._heartbeat_s * 1000),
            tls=self._tls,
            patient=self._patient or self._spool is not None,
            near=near_loop(),
            on_state=None if self._spool is None else self._spool.wake,
        )
        self._core = core
        core.signer = self._signer
        ticket = Ticket(monotonic() + self._timeout_s)
        core.when_open(ticket)
        core.start()
        try:
            await ticket.wait()
        except Unavailable:
            # With a spool there is work to do without a node.
            if self._spool is None:
                await self.close()
                raise
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Stop the services and close the connection; what was sent and not confirmed fails."""
        if self._core is None:
            return
        services, self._services = self._services, []
        for service in services:
            await service.stop()
        spool, self._spool = self._spool, None
        if spool is not None:
            ended = Ticket()
            spool.close(ended)
            await ended.wait()
        if self._replies is not None and not self._replies.has_asked_services:
            self._replies.close()  # a service may still answer what was given up; the node has answered all
        core, self._core, self._replies = self._core, None, None
        self._outlets.clear()
        ticket = Ticket()
        core.close(ticket)
        await ticket.wait()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """Is there a connection now? Calls wait for one by themselves."""
        return self._core is not None and self._core.peer is not None

    @property
    def waiting(self) -> int:
        """Messages in the spool that no node has accepted yet; 0 without one."""
        return 0 if self._spool is None else self._spool.waiting

    @property
    def is_resumed(self) -> bool:
        """Was the TLS session of this connection taken up from an earlier one?"""
        return self._core is not None and self._core.is_resumed

    @property
    def core(self) -> Core:
        """What the simple face is made of."""
        if self._core is None:
            raise LocalProtocolError("the client is not open: use it inside `async with`, or call open()")
        return self._core

    # sending

    async def send(
        self,
        address: str,
        body: Any,
        *,
        timeout_s: float = SEND_TIMEOUT_S,
        durable: bool = True,
        headers: Mapping[str, Any] | None = None,
        **properties: Any,
    ) -> None:
        """Send a message to an address; done when the node has it safe.

        Properties are those of AMQP: `content_type`, `subject`, `message_id`, `correlation_id`, `reply_to`, `priority`,
        `ttl_ms`, `expires_at`, `group_id`, `annotations`, …. Undelivered if the node does not take it.
        """
        data, content_type = encode(body)
        properties["durable"] = durable
        if content_type is not None:
            properties.setdefault("content_type", content_type)
        if headers:
            properties["headers"] = dict(headers)
        if self._spool is not None:
            await self._keep(address, [(data, properties)], timeout_s)
            return
        # The usual case without a call more than needed: this is what a program does most.
        deadline = monotonic() + timeout_s
        outlet = self._outlets.get(address)
        if outlet is None or outlet.is_busy:
            outlet = await self._free_outlet(address, properties, deadline)
        ticket = Ticket(deadline)
        outlet.send((data,), properties, ticket)
        await ticket.wait()

    async def _keep(
        self, address: str, messages: Sequence[tuple[Any, dict[str, Any]]], timeout_s: float, *, is_topic: bool = False
    ) -> None:
        """Have messages in the spool; done when they are on disk."""
        spool = self._spool
        if spool is None or (self.core.is_closed and self.core.error is not None):
            raise self.core.error or LocalProtocolError("the client has no spool")
        tickets = [Ticket() for _ in messages]
        for (data, properties), ticket in zip(messages, tickets, strict=True):
            spool.put(address, data, properties, ticket, is_topic=is_topic)
        try:
            await within(timeout_s, wait_for_all, tickets)
        except TimeoutError:
            raise DeadlineExceeded("the spool did not have a message on disk in time") from None

    async def send_many(
        self,
        address: str,
        bodies: Sequence[Any],
        *,
        timeout_s: float = SEND_TIMEOUT_S,
        durable: bool = True,
        **properties: Any,
    ) -> None:
        """Send many messages with the same properties; done when the node has all of them safe."""
        encoded = [encode(body) for body in bodies]
        properties["durable"] = durable
        if self._spool is not None:
            kept = [(data, ({"content_type": kind} if kind else {}) | properties) for data, kind in encoded]
            await self._keep(address, kept, timeout_s)
            return
        for start in range(0, len(encoded), self._window):
            for kind, part in groupby(encoded[start : start + self._window], key=itemgetter(1)):
                given = ({"content_type": kind} if kind else {}) | properties
                await self._send(address, [data for data, _ in part], given, timeout_s)

    async def _send(
        self,
        address: str,
        bodies: Sequence[Any],
        properties: dict[str, Any],
        timeout_s: float,
        capabilities: Sequence[str] = (),
    ) -> None:
        deadline = monotonic() + timeout_s
        outlet = await self._free_outlet(address, properties, deadline, capabilities)
        ticket = Ticket(deadline, len(bodies))
        outlet.send(bodies, properties, ticket)
        await ticket.wait()

    async def _free_outlet(
        self, address: str, properties: dict[str, Any], deadline: float, capabilities: Sequence[str] = ()
    ) -> Outlet:
        """The link to an address, once its window has room."""
        outlet = self._link_to(address, properties, capabilities)
        while outlet.is_full:
            room = Ticket(deadline)
            outlet.when_free(room)
            await room.wait()
        return outlet

    def _link_to(self, address: str, properties: dict[str, Any], capabilities: Sequence[str]) -> Outlet:
        if not isinstance(address, str):
            raise TypeError(f"an address is str, not {type(address).__name__}")
        key = " ".join([*capabilities, address])
        with self._making:
            outlet = self._outlets.get(key)
            if outlet is None or outlet.error is not None:
                outlet = self._outlet(key, address, capabilities)
        if outlet.is_shared:
            properties.setdefault("to", address)
        return outlet

    def outlet(self, address: str, properties: dict[str, Any], *, is_topic: bool) -> Outlet:
        """The link to an address or a topic, with the properties that a message needs on it."""
        if not is_topic:
            return self._link_to(address, properties, ())
        address, subject, capabilities = self.dialect.publishing(address)
        if subject is not None:
            properties["subject"] = subject
        return self._link_to(address, properties, capabilities)

    def _outlet(self, key: str, address: str, capabilities: Sequence[str]) -> Outlet:
        core = self.core
        target: str | None = address or None
        capabilities = capabilities or self.dialect.queues
        if len(self._outlets) >= OUTLETS_MAX and self.dialect.has_relay and not capabilities:
            target = None
            shared = self._outlets.get("")
            if shared is not None and shared.error is None:
                return shared
            key = ""
        outlet = Outlet(core, target, self._window)
        outlet.is_shared = target is None
        name = self.link_name("send", target or "")
        outlet.number = core.machine.attach_sender(name, target, capabilities=list(capabilities) if target else [])
        core.add(outlet)
        self._outlets[key] = outlet
        return outlet

    def link_name(self, verb: str, address: str) -> str:
        """A name no other link of this client has."""
        self._links += 1
        return f"{self.name}/{self._links}/{verb}/{address}"

    # receiving

    def receive(
        self,
        address: str,
        *,
        accept: Literal["auto", "explicit"] = "auto",
        credit: int = CREDIT,
        filters: Mapping[str, Any] | None = None,
        selector: str | None = None,
        browse: bool = False,
        once: bool = False,
        timeout_s: float | None = None,
        **options: Any,
    ) -> Receiver:
        """Messages from an address, in an `async for`.

        `auto` accepts each message when the next is asked for; `explicit` leaves it to `message.accept()`, `release()`,
        `retry()` or `reject()`. At most `credit` are unsettled at a time. If nothing comes for `timeout_s`, it ends by
        DeadlineExceeded. `selector` is an SQL-like condition on headers. With `once` nothing accepted comes again.
        """
        if accept not in ("auto", "explicit"):
            raise LocalProtocolError(f"accept is 'auto' or 'explicit', not {accept!r}")
        if selector is not None:
            filters = {**(filters or {}), SELECTOR: selector}
        options.setdefault("capabilities", list(self.dialect.queues))
        inlet = self.inlet(address, window=credit, filters=filters and dict(filters), browse=browse, **options)
        return Receiver(inlet, auto=accept == "auto", timeout_s=timeout_s, credit=credit, once=once)

    def inlet(self, address: str | None, *, name: str | None = None, is_stream: bool = False, **options: Any) -> Inlet:
        """A receiving link, as the engine face and the patterns use it."""
        core = self.core
        inlet = Inlet(core, address)
        inlet.is_stream = is_stream
        if not options.get("filters"):
            options["filters"] = None
        link = name or self.link_name("receive", address or "")
        inlet.number = core.machine.attach_receiver(link, address, **options)
        core.add(inlet)
        return inlet

    # topics

    @property
    def dialect(self) -> Dialect:
        """How the node wants to be spoken to."""
        peer = self.core.peer or self.core.last_peer
        if peer is None and self._spool is not None:
            raise Unavailable(f"no node has answered yet: {self.core.error or 'it is being dialled'}")
        if peer is None:
            raise LocalProtocolError("the client is not open: use it inside `async with`, or call open()")
        if self._spoken is None or self._spoken[0] is not peer:
            self._spoken = peer, dialect(peer)
        return self._spoken[1]

    async def publish(
        self,
        topic: str,
        body: Any,
        *,
        timeout_s: float = SEND_TIMEOUT_S,
        durable: bool = True,
        headers: Mapping[str, Any] | None = None,
        **properties: Any,
    ) -> None:
        """Publish a message under a topic, `words.with.dots`, to whoever is subscribed; nobody is fine too."""
        data, content_type = encode(body)
        properties["durable"] = durable
        if content_type is not None:
            properties.setdefault("content_type", content_type)
        if headers:
            properties["headers"] = dict(headers)
        if self._spool is not None:
            await self._keep(topic, [(data, properties)], timeout_s, is_topic=True)
            return
        address, subject, capabilities = self.dialect.publishing(topic)
        if subject is not None:
            properties["subject"] = subject
        try:
            await self._send(address, (data,), properties, timeout_s, capabilities)
        except Undelivered as error:
            if error.outcome != "released":
                raise

    def subscribe(
        self,
        topic: str,
        *,
        name: str | None = None,
        accept: Literal["auto", "explicit"] = "auto",
        credit: int = CREDIT,
        selector: str | None = None,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> Receiver:
        """Messages published under a topic from now on; `*` stands for one word, `#` for any number of them.

        With a name the subscription is kept by the node: messages wait while nobody is here, and all who subscribe by
        the name share them.

        >>> async def main() -> None:
        ...     async with weft.connect() as fabric, fabric.subscribe("doc.prices.#") as prices:
        ...         await fabric.publish("doc.prices.gold", 2650)
        ...         message = await anext(prices)
        ...         print(message.subject, message.body)
        >>> asyncio.run(main())
        doc.prices.gold 2650
        """
        address, capabilities = self.dialect.subscribing(topic)
        options: dict[str, Any] = {"capabilities": list(capabilities)}
        if name is not None:
            options |= {"name": name, "durable": 2, "expiry": "never"}
            options["capabilities"] += ["shared", "global"]
        inlet = self.inlet(address, window=credit, filters=selector and {SELECTOR: selector}, **options)
        return Receiver(inlet, auto=accept == "auto", timeout_s=timeout_s, credit=credit, once=once)

    # requests and services

    async def request(
        self,
        address: str,
        body: Any,
        *,
        timeout_s: float = SEND_TIMEOUT_S,
        durable: bool = True,
        headers: Mapping[str, Any] | None = None,
        **properties: Any,
    ) -> Message:
        """Ask a service and wait for its reply; ServiceError if it answers with an error.

        The request waits in the service's queue while no instance is there, for as long as the deadline allows. All
        requests of this client share one reply address, which outlives reconnects.

        >>> async def main() -> None:
        ...     async with weft.connect() as fabric:
        ...         @fabric.service("doc.double")
        ...         def double(request):
        ...             return request.body * 2
        ...         await double.start()
        ...         reply = await fabric.request("doc.double", 21, timeout_s=5)
        ...         print(reply.body)
        >>> asyncio.run(main())
        42
        """
        replies = self._replies
        if replies is None or not replies.is_ready or replies.error is not None:
            replies = await self._ready_replies(timeout_s)
        data, content_type = encode(body)
        ticket = Ticket(monotonic() + timeout_s)
        correlation = replies.expect(ticket, address, data, properties, timeout_s)
        properties["durable"] = durable
        if content_type is not None:
            properties.setdefault("content_type", content_type)
        if headers:
            properties["headers"] = dict(headers)
        outlet = self._outlets.get(address)
        try:
            if outlet is None or outlet.is_busy:
                outlet = await self._free_outlet(address, properties, ticket.deadline)
            outlet.send((data,), properties, Asking(replies, correlation, ticket), now=True, batchable=True)
            reply: Message = await ticket.wait()
            return reply
        finally:
            replies.forget(correlation)

    async def reply(
        self,
        address: str,
        body: Any,
        *,
        correlation_id: Any,
        headers: Mapping[str, Any] | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
        batchable: bool = False,
    ) -> None:
        """Answer a request at its `reply_to`; services do it themselves. `batchable`: the outcome may come later."""
        data, content_type = encode(body)
        properties: dict[str, Any] = {"durable": True}
        if correlation_id is not None:
            properties["correlation_id"] = correlation_id
        if content_type is not None:
            properties["content_type"] = content_type
        if headers:
            properties["headers"] = dict(headers)
        deadline = monotonic() + timeout_s
        relay = "" if self.dialect.has_relay else address
        if not relay:
            properties["to"] = address
        outlet = self._outlets.get(relay)
        if outlet is None or outlet.error is not None or outlet.is_full:
            outlet = await self._free_outlet(relay, properties, deadline)
        ticket = Ticket(deadline)
        outlet.send((data,), properties, ticket, now=True, batchable=batchable)
        await ticket.wait()

    async def _ready_replies(self, timeout_s: float) -> Replies:
        with self._making:
            replies = self._replies
            if replies is None or replies.error is not None:
                replies = self._replies = Replies(self.core, self.dialect, self.outlet)
        if not replies.is_ready:
            ticket = Ticket(monotonic() + timeout_s)
            replies.when_attached(ticket)
            await ticket.wait()
        return replies

    def service(
        self, name: str, *, concurrency: int = 16, presence_s: float = PRESENCE_S
    ) -> Callable[[Callable[[Message], Any]], Service]:
        """Make a handler the service of a name; call its `start()`, or `serve()` for all of them.

        The handler takes a request and returns the body of the reply; what it raises is sent back as an error.
        """

        def add(handler: Callable[[Message], Any]) -> Service:
            service = Service(self, name, handler, concurrency=concurrency, presence_s=presence_s)
            self._services.append(service)
            return service

        return add

    async def serve(self) -> None:
        """Start all services, and serve until SIGTERM or SIGINT; then finish what is begun."""
        for service in self._services:
            if not service.is_started:
                await service.start()
        await until_stopped()
        for service in self._services:
            await service.stop()

    async def presence(self, name: str, *, wait_s: float = 0.3) -> list[str]:
        """The instances of a service that answer within a time."""
        return await presence(self, name, wait_s)

    def watch(self, name: str) -> AsyncIterator[tuple[str, str]]:
        """Who joins and who leaves: (instance, `up` or `down`), those that are there first."""
        return watch(self, name)

    # more patterns

    def pipeline(self, name: str, *, output: str | None = None) -> Pipeline:
        """Steps with queues between them, to be added with `@pipeline.step(name)`."""
        return Pipeline(self, name, output)

    def stream(
        self,
        address: str,
        *,
        offset: int | str | datetime = "next",
        credit: int = CREDIT,
        timeout_s: float | None = None,
    ) -> Receiver:
        """Messages of a stream from an offset on: a number, a time, `first`, `last` or `next`.

        They stay where they are. After a lost connection it goes on behind the last message that was handed over.
        """
        inlet = self.inlet(address, window=credit, filters={STREAM_OFFSET: offset}, is_stream=True)
        return Receiver(inlet, auto=True, timeout_s=timeout_s, credit=credit)

    def session(self) -> Session:
        """The engine face: links, credit, settlement and transactions by hand."""
        return Session(self)


def connect(url: str | Sequence[str] | None = None, **options: Unpack[Options]) -> Fabric:
    """A connection to a node, to be used with `async with`.

    Without a URL the node on this machine, or the one that the variable WEFT_URL names; several URLs (a list, or commas
    between them) are tried in order, now and whenever the connection is lost; `weft+memory:` is a node in this process.
    Options: `name`, `timeout_s` to connect, `heartbeat_s`, `tls` (an SSL context), `window` of unconfirmed messages,
    `policy` for several URLs (`failover` in their order, `random`, `round-robin` for the clients of a process),
    `signer` to sign what is sent and refuse what is not signed (`weft.client.signing`),
    `spool` (a folder that keeps what is sent until a node has it) and `spool_bytes_max`; with `patient=False`
    it fails at once if no node is there, rather than try again for `timeout_s`.
    """
    return Fabric(url, **options)
