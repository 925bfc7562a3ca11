"""Connections that this node opens: the node's half of `Dial` and `Hangup`.

Owns the dials that are under way and which connection each became. Actions come from controllers through the driver;
what becomes of them goes back as events. The bytes of a connected socket take the same way as those of any other.
It must never choose a peer, retry or judge a failure: that is the controller's decision.
Rule: one task per dial until its socket is connected, none afterwards.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from weft.model.actions import Action, Dial, Hangup, Trust
from weft.model.changes import CloseConnection
from weft.model.errors import WeftError
from weft.model.events import ConnectionClosed, DialFailed, Dialled, Event
from weft.net.connect import connect
from weft.net.endpoint import Endpoint
from weft.net.resumption import remember
from weft.net.tls import client_context
from weft.node.connection import WRITE_BUFFER_BYTES, Connection, discard

if TYPE_CHECKING:
    from weft.node.driver import Driver


class Dialer:
    """Every dial of a node."""

    def __init__(self, driver: Driver, notify: Callable[[Event], None]) -> None:
        """`notify` hands an event to the controllers."""
        self._driver = driver
        self._notify = notify
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._conns: dict[int, int] = {}
        self._contexts: dict[Trust, ssl.SSLContext] = {}

    def do(self, action: Action) -> None:
        """Carry out an action."""
        match action:
            case Dial():
                self._hang_up(action.dial)
                task = asyncio.get_running_loop().create_task(self._dial(action))
                self._tasks[action.dial] = task
            case Hangup():
                self._hang_up(action.dial)

    def connected(self, action: Dial, conn_id: int) -> None:
        """The socket of a dial is there and has a connection."""
        self._conns[action.dial] = conn_id
        self._notify(Dialled(action.dial, conn_id))

    def has_dialled(self, conn_id: int) -> bool:
        """Is this connection one of ours, and open?"""
        return conn_id in self._conns.values()

    def on_closed(self, event: ConnectionClosed) -> None:
        """A connection is over; perhaps one of ours."""
        for dial, conn_id in list(self._conns.items()):
            if conn_id == event.conn:
                del self._conns[dial]

    def close(self) -> None:
        """Give up every dial that is under way."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def _hang_up(self, dial: int) -> None:
        task = self._tasks.pop(dial, None)
        if task is not None:
            task.cancel()
        conn_id = self._conns.pop(dial, None)
        if conn_id is not None:
            self._driver.apply([CloseConnection(conn_id)])

    async def _dial(self, action: Dial) -> None:
        try:
            await asyncio.sleep(action.delay_ms / 1_000)
            await connect(
                Endpoint(action.host, action.port),
                lambda: Outgoing(self._driver, self, action),
                tls=self._context(action.trust),
                server_name=action.trust.server_name if action.trust else None,
                timeout_s=action.timeout_ms / 1_000,
            )
        except WeftError as error:
            if action.trust is not None:
                self._contexts.pop(action.trust, None)  # authorities may have been renewed: read them again
            self._notify(DialFailed(action.dial, str(error)))
        finally:
            if self._tasks.get(action.dial) is asyncio.current_task():
                del self._tasks[action.dial]

    def _context(self, trust: Trust | None) -> ssl.SSLContext | None:
        if trust is None:
            return None
        context = self._contexts.get(trust)
        if context is None:
            context = self._contexts[trust] = client_context(
                trust.ca_file, trust.certificate, trust.key, verify=trust.verify
            )
        return context


class Outgoing(Connection):
    """The protocol object of a socket that this node opened."""

    __slots__ = ("_action", "_dialer")

    def __init__(self, driver: Driver, dialer: Dialer, action: Dial) -> None:
        super().__init__(driver)
        self._dialer = dialer
        self._action = action

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.conn_id = self._driver.dialled(self, self._action)
        if self.conn_id:
            self._dialer.connected(self._action, self.conn_id)

    def connection_lost(self, error: Exception | None) -> None:
        # For the next dial of this place; nothing, without TLS.
        remember(self.transport, str(Endpoint(self._action.host, self._action.port)))
        super().connection_lost(error)

    def hang_up(self) -> None:
        """Everything is said. A peer that we dialled is owed no time to read it: we may have to dial again."""
        self._receive = discard
        self.transport.close()
