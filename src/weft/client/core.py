"""The heart of a client: one machine, the transport under it, and the way back when a transport is lost.

Owns the kernel's `Client`, the loop its bytes move on, and the links by number. Links are given out to the faces
(`Outlet`, `Inlet`); what the machine reports goes to them. Any thread may call; bytes move on one.
It must never run a program's code, and never give up while it is open: only a refused login, a
wrong URL or `close` end it.
Rule: whatever is told to the machine is followed by `kick`, which writes once for everything told meanwhile.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import ssl
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from weft._kernel import DELIVERIES, EVENTS, OUTCOMES, OUTPUT, TIMER, Client
from weft.client.links import Inlet, Link, Outlet
from weft.client.pipe import Pipe
from weft.client.reader import Reader
from weft.client.url import Target, resolve
from weft.model.client_events import (
    Attached,
    Closed,
    Detached,
    Drained,
    KeyRequested,
    LoginFailed,
    Opened,
    SessionEnded,
)
from weft.model.errors import ConfigError, LocalProtocolError, Refused, Unavailable, WeftError
from weft.net.backoff import delays
from weft.net.memory import connect_here
from weft.net.resumption import dialling, is_resumed, remember

if TYPE_CHECKING:
    from weft.client.signing import Signer

LOG = logging.getLogger("weft.client")
DIAL_TIMEOUT_S = 10.0
"""Time one target has from the first packet to an open connection."""
STEADY_S = 1.0
"""A connection that lasted so long was a good one."""
CLOSE_TIMEOUT_S = 3.0
"""Time the peer has to answer a close."""
NONCE_BYTES = 18
KEYS_MAX = 64
"""Derived keys that are remembered (RFC 5802, section 5.1), so that the way back takes less than the way in."""
NOT_FOUND = "amqp:not-found"
FINAL = (NOT_FOUND, "amqp:unauthorized-access", "amqp:not-allowed")
"""Why a peer that is asked for the first time will not have us later either: no such virtual host, or not for us."""
SWEEP_S = 0.1
"""How often deadlines are looked at: they are for failures, so a tenth of a second late is early enough."""


_CORES: WeakSet[Core] = WeakSet()
"""All of this process, for a child that is forked from it."""


class Core:
    """One client through all its connections."""

    def __init__(
        self,
        targets: Sequence[Target],
        loop: asyncio.AbstractEventLoop,
        *,
        container: str,
        idle_ms: int,
        tls: ssl.SSLContext | None,
        patient: bool = True,
        near: asyncio.AbstractEventLoop | None = None,
        on_state: Callable[[bool], None] | None = None,
    ) -> None:
        self.targets = tuple(targets)
        self.loop = loop
        self.container = container
        self.lock = threading.Lock()
        self.machine = Client(container, properties={"product": "weft client"}, idle_ms=idle_ms)
        self.links: dict[int, Link] = {}
        self.peer: Opened | None = None
        self.last_peer: Opened | None = None
        """Who answered last, while there is no connection."""
        self.target: Target | None = None
        self.error: WeftError | None = None
        """Why the last connection or try ended."""
        self.connections = 0
        """How many were opened so far."""
        self.is_closed = False
        self.signer: Signer | None = None
        """Signs what is sent and checks what is received."""
        self._tls = tls
        self._patient = patient
        self._on_state = on_state
        self._waiting: list[Any] = []
        self._pipe = Pipe()
        self._reader = Reader(loop, near, self.machine.receive, self._on_near_signals)
        self._protocol: _Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Event | None = None
        self._kick_due = False
        self._outside: set[asyncio.AbstractEventLoop] = set()
        """Loops of the program that will write at the end of their turn. One that is blocked holds nobody else up."""
        self._hurried: set[asyncio.AbstractEventLoop] = set()
        """Those of them that have written in this turn already."""
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._runner: asyncio.Task[None] | None = None
        self._proof: asyncio.Task[None] | None = None
        _CORES.add(self)

    # from any thread

    def start(self) -> None:
        """Connect, and stay connected."""
        self.later(self._start)

    def kick(self, *, now: bool = False) -> None:
        """Have the machine's output written: at the end of this turn on a loop, at once on any other thread.

        With `now` a loop writes at once, once in its turn, for whom somebody waits; what follows goes together.
        """
        loop = asyncio._get_running_loop()
        if loop is not None and loop is not self.loop and self._pipe.is_direct:
            if loop not in self._outside:
                self._outside.add(loop)
                loop.call_soon(self._flush_from_outside, loop)
            if now and loop not in self._hurried:
                self._hurried.add(loop)
                self._pipe.write_now(self.machine.poll_transmit)
        elif loop is None and self._pipe.is_direct:
            self._flush_from_outside(None)
        elif not self._kick_due:
            self._kick_due = True
            self.later(self._flush)

    def look(self) -> None:
        """Have everything the machine reports looked at soon, and its output written."""
        self.later(self._look)

    def when_open(self, ticket: Any) -> None:
        """Have a ticket done when the connection is open, or fail with the client."""
        with self.lock:
            if self.peer is None and not self.is_closed:
                self._waiting.append(ticket)
                return
        if self.is_closed:
            ticket.fail(self.error or Unavailable("the client is closed"))
        else:
            ticket.done()

    @property
    def is_resumed(self) -> bool:
        """Was the TLS session of this connection taken up from an earlier one?"""
        return self._transport is not None and is_resumed(self._transport)

    def add(self, link: Link) -> None:
        """A link was attached to the machine; what ended the client, if it has ended."""
        if self.is_closed:
            raise self.error or Unavailable("the client is closed")
        self.links[link.number] = link
        self.kick()

    def close(self, ticket: Any) -> None:
        """Say goodbye and end; the ticket is done when everything is closed."""
        self.later(self._close, ticket)

    def later(self, what: Callable[..., object], *arguments: Any) -> None:
        """Have something called on the loop."""
        if asyncio._get_running_loop() is self.loop:
            self.loop.call_soon(what, *arguments)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and all that was on it
                self.loop.call_soon_threadsafe(what, *arguments)

    def abandon(self, error: WeftError) -> None:
        """The thread that carries the connection is gone, or about to be: nobody may wait for it."""
        self._pipe.abandon()
        # That thread may have held them.
        self.lock, self._pipe = threading.Lock(), Pipe()
        self.error, self.is_closed, self.peer, self._waiting = error, True, None, []
        for link in self.links.values():
            link.error = error

    # on the loop from here on

    def _start(self) -> None:
        self._runner = self.loop.create_task(self._run())
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    async def _run(self) -> None:
        """Dial, serve until the connection is lost, dial again."""
        pauses = delays()
        while not self.is_closed:
            await asyncio.sleep(next(pauses))
            for target in self.targets:
                started = monotonic()
                try:
                    if not await self._serve_at(target):
                        continue
                except (ConfigError, Refused) as error:
                    self._give_up(error)
                    return
                # It was open: the first try to get back comes at once, unless the peer opens only to close again.
                if monotonic() - started > STEADY_S:
                    pauses = delays()
                break
            else:
                if not self._patient and not self.connections and self.error is not None:
                    self._give_up(self.error)
                    return

    async def _serve_at(self, target: Target) -> bool:
        """Serve a connection to a target until it ends; False if it never opened."""
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                places = await self.loop.run_in_executor(None, resolve, target) if target.kind == "srv" else [target]
        except (TimeoutError, Unavailable) as error:
            self.error = Unavailable(f"{target}: {error}")
            return False
        for place in places:
            self._ended = asyncio.Event()
            opened = await self._dial(place)
            if opened:
                await self._ended.wait()
            self._drop()
            if opened or self.is_closed:
                return opened
        return False

    async def _dial(self, target: Target) -> bool:
        """Connect and open; False if that failed, with the reason in `error`."""
        protocol = self._protocol = _Protocol(self)
        opened = protocol.opened
        self.target = target
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await self._connect(target, protocol)
                self._hello(target)
                await opened
        except TimeoutError:
            self.error = Unavailable(f"{target} did not answer within {DIAL_TIMEOUT_S:g} s")
        except (OSError, UnicodeError) as error:  # the latter for names that a directory tells and no host can have
            self.error = Unavailable(f"{target}: {_reason(error)}")
            self.error.__cause__ = error
        except Unavailable as error:
            self.error = error
        else:
            self.error = None
            return True
        return False

    async def _connect(self, target: Target, protocol: asyncio.Protocol) -> None:
        if target.kind == "memory":
            await connect_here(target.host, protocol)
            return
        tls: ssl.SSLContext | None = None
        if target.kind == "tls":
            if self._tls is None:
                self._tls = await self.loop.run_in_executor(None, ssl.create_default_context)
            tls = self._tls
            dialling(tls, f"{target.host}:{target.port}")
        await self.loop.create_connection(lambda: protocol, target.address or target.host, target.port, ssl=tls)

    def _hello(self, target: Target) -> None:
        options: dict[str, Any] = {"hostname": target.hostname, "mechanisms": target.mechanisms}
        if target.user is not None:
            options |= {"user": target.user, "password": target.password, "nonce": os.urandom(NONCE_BYTES).hex()}
        self.on_signals(self.machine.start(monotonic_ns(), **options))

    async def _prove(self, password: str, salt: bytes, iterations: int) -> None:
        """Derive what the peer asks for, on another thread: it takes a good part of a second."""
        key = await self.loop.run_in_executor(None, _key, password, salt, iterations)
        self.on_signals(self.machine.prove(key))

    def _drop(self) -> None:
        """Forget a connection; the machine keeps what is to be sent and attached again."""
        self._protocol = self._transport = None
        if self._proof is not None:
            self._proof.cancel()
        self._reader.close()
        self._pipe.close()
        with self.lock:
            was_open, self.peer = self.peer is not None, None
        self.on_signals(self.machine.lost() & ~OUTPUT)
        for link in list(self.links.values()):
            link.on_lost()
        if was_open and not self.is_closed:
            LOG.warning("connection lost: %s; trying again", self.error or self.target)
        if was_open and self._on_state is not None:
            self._on_state(False)

    def _give_up(self, error: WeftError) -> None:
        """Nothing will ever be sent: all that wait are told."""
        self.error = error
        self.is_closed = True
        self._drop()
        for link in list(self.links.values()):
            link.on_end(error)
        self.links.clear()
        with self.lock:
            waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.fail(error)
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()

    def _close(self, ticket: Any) -> None:
        self.is_closed = True
        self._closing = self.loop.create_task(self._say_goodbye(ticket))

    async def _say_goodbye(self, ticket: Any) -> None:
        if self.peer is not None and self._ended is not None:
            self.on_signals(self.machine.close())
            self._flush()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._ended.wait()
        if self._runner is not None and not self._runner.done():
            self._runner.cancel()
            await asyncio.wait([self._runner])
        self._give_up(Unavailable("the client was closed"))
        ticket.done()

    # bytes

    def made(self, transport: asyncio.Transport) -> None:
        """The transport is connected."""
        self._transport = transport
        self._pipe.open(transport)

    def writable(self, yes: bool) -> None:
        """The transport takes bytes, or is full."""
        self._pipe.is_full = not yes
        if yes:
            self._flush()

    def gone(self, protocol: _Protocol, error: Exception | None) -> None:
        """The transport is gone."""
        if protocol is not self._protocol or self._ended is None:
            return
        if self.error is None:
            self.error = Unavailable(f"{self.target}: {_reason(error) if error else 'closed by the peer'}")
        if not protocol.opened.done():
            protocol.opened.set_exception(self.error)
        self._ended.set()

    def on_signals(self, signals: int) -> None:
        """Do what a call of the machine asked for."""
        if signals & OUTCOMES:
            self._dispatch_outcomes()
        if signals & DELIVERIES:
            self._dispatch_deliveries()
        if signals & EVENTS:
            self._dispatch_events()
        if signals & TIMER:
            self._arm()
        if signals & OUTPUT and not self._kick_due:
            self._kick_due = True
            self.loop.call_soon(self._flush)

    def _on_near_signals(self, signals: int) -> None:
        """Do on the program's loop what can be done there: what it waits for. The rest is for the connection's."""
        if signals & DELIVERIES:
            self._dispatch_deliveries()
        if signals & OUTCOMES and signals & DELIVERIES:
            # What came is answered first: an outcome that comes with it is one that nobody was in a hurry to know.
            asyncio.get_running_loop().call_soon(self._dispatch_outcomes)
        elif signals & OUTCOMES:
            self._dispatch_outcomes()
        if signals & (EVENTS | TIMER):
            self.look()
        elif signals & OUTPUT:
            self.kick()

    def _look(self) -> None:
        self.on_signals(self.machine.signals())

    def _flush(self) -> None:
        self._kick_due = False
        self._pipe.write_all(self.machine.poll_transmit)

    def _flush_from_outside(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Write without waiting for the connection's thread to wake up; it takes over what does not go out at once."""
        if loop is not None:
            self._outside.discard(loop)
            self._hurried.discard(loop)
        if not self._pipe.write_now(self.machine.poll_transmit):
            self.later(self._flush)

    def _dispatch_outcomes(self) -> None:
        with self.lock:
            for number, first, last, outcome, detail in self.machine.poll_outcomes():
                link = self.links.get(number)
                if isinstance(link, Outlet):
                    link.on_outcome(first, last, outcome, detail)

    def _dispatch_deliveries(self) -> None:
        for number in self.machine.poll_filled():
            link = self.links.get(number)
            if isinstance(link, Inlet):
                link.on_filled()

    def _dispatch_events(self) -> None:
        events = self.machine.poll_events()
        opened = next((event for event in events if isinstance(event, Opened)), None)
        closed = next((event for event in events if isinstance(event, Closed) and event.by_peer), None)
        for event in events:
            if event is opened and closed is not None:
                # It opens only to say in one breath why it will not have us.
                self._fail_opening(self._turned_away(closed))
            else:
                self._on_event(event)

    def _turned_away(self, closed: Closed) -> WeftError:
        text = f"{self.target}: {closed.description or closed.condition or 'closed by the peer'}"
        # Where we have been let in before, it may be so again.
        is_final = closed.condition in FINAL and not self.connections
        return Refused(text, 404 if closed.condition == NOT_FOUND else 403) if is_final else Unavailable(text)

    def _on_event(self, event: object) -> None:
        match event:
            case Opened():
                self._on_opened(event)
            case KeyRequested(salt, iterations) if self.target is not None:
                self._proof = self.loop.create_task(self._prove(self.target.password, salt, iterations))
            case LoginFailed(text, temporary):
                error = Unavailable(f"{self.target}: {text}") if temporary else Refused(f"{self.target}: {text}")
                self._fail_opening(error)
            case Closed(condition, description, by_peer):
                self._on_closed(condition, description, by_peer)
            case Attached(number, address, filters, _properties):
                link = self.links.get(number)
                if link is not None:
                    link.on_attached(address, filters)
            case Detached(number, condition, description):
                link = self.links.pop(number, None)
                if link is not None:
                    link.on_end(_link_error(link, condition, description))
            case Drained(number):
                link = self.links.get(number)
                if isinstance(link, Inlet):
                    link.on_drained()
            case SessionEnded(0, condition, description):
                # Everything simple lives on the first session: a new connection brings it back.
                self.error = Unavailable(f"{self.target} ended the session: {description or condition}")
                self.on_signals(self.machine.close())

    def _on_opened(self, event: Opened) -> None:
        with self.lock:
            self.peer = self.last_peer = event
            self.connections += 1
            waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            ticket.done()
        if self._protocol is not None and not self._protocol.opened.done():
            self._protocol.opened.set_result(None)
        if self._transport is not None and self.target is not None:
            remember(self._transport, f"{self.target.host}:{self.target.port}")
            self._reader.open(self._transport)
        if self.connections > 1:
            LOG.warning("connected to %s again", self.target)
        if self._on_state is not None:
            self._on_state(True)

    def _on_closed(self, condition: str, description: str, by_peer: bool) -> None:
        self._flush()
        if not self.is_closed and self.error is None:
            verb = "closed the connection" if by_peer else "is not understood"
            self.error = Unavailable(f"{self.target} {verb}: {description or condition or 'no reason given'}")
        self._fail_opening(self.error or Unavailable(f"{self.target} closed the connection"))
        self._pipe.end()
        if self._ended is not None:
            self._ended.set()

    def _fail_opening(self, error: WeftError) -> None:
        if self._protocol is not None and not self._protocol.opened.done():
            self.error = error
            self._protocol.opened.set_exception(error)

    # time

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self.machine.poll_timeout()
        if due_ns is not None:
            delay_s = max(0.0, (due_ns - monotonic_ns()) / 1e9)
            self._timer = self.loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.on_signals(self.machine.advance(monotonic_ns()))
        self._arm()

    def _sweep(self) -> None:
        """Fail what has passed its deadline, and see that somebody reads."""
        self._reader.look()
        now = monotonic()
        reason = self.error
        for link in list(self.links.values()):
            link.expire(now, reason)
        with self.lock:
            late = [ticket for ticket in self._waiting if ticket.deadline <= now]
            self._waiting = [ticket for ticket in self._waiting if ticket.deadline > now]
        for ticket in late:
            ticket.fail(reason or Unavailable(f"{self.target} did not answer in time"))
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)


class _Protocol(asyncio.Protocol):
    """Bytes of one connection."""

    __slots__ = ("_core", "_receive", "opened")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._receive = core.machine.receive
        self.opened: asyncio.Future[None] = core.loop.create_future()
        self.opened.add_done_callback(lambda future: future.cancelled() or future.exception())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._core.made(transport)  # type: ignore[arg-type] # uvloop's are transports without saying so

    def data_received(self, data: bytes) -> None:
        if self._core._protocol is self:
            signals = self._receive(data, monotonic_ns())
            if signals:
                self._core.on_signals(signals)

    def pause_writing(self) -> None:
        self._core.writable(False)

    def resume_writing(self) -> None:
        self._core.writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._core.gone(self, exc)


@lru_cache(KEYS_MAX)
def _key(password: str, salt: bytes, iterations: int) -> bytes:
    from weft.model.scram import derive_key  # few need it, and its tables take a while

    return derive_key(password, salt, iterations)


def _link_error(link: Link, condition: str, description: str) -> WeftError:
    text = f"{link.address or 'the link'}: {description or condition or 'detached'}"
    if link.is_closing:
        return Unavailable(f"{link.address or 'the link'} was closed")
    return Refused(text, 404 if condition == NOT_FOUND else 403)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()


def _abandon_all(error: WeftError) -> None:
    for core in list(_CORES):
        core.abandon(error)


_FORKED = LocalProtocolError("the client was opened before a fork: connect again in the child")
os.register_at_fork(after_in_child=partial(_abandon_all, _FORKED))
# What runs later, in destructors, would wait for a thread that the interpreter has stopped.
atexit.register(_abandon_all, Unavailable("the interpreter is ending"))
