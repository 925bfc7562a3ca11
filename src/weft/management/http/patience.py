"""How long a connection may keep the web server waiting for a request.

Owns one timer per connection: from its first packet to the head of a request, and from one request to the next. Who
does not ask in time is cut off, however slowly it goes on sending.
It must never end a request that is being served: a WebSocket is one, for as long as it likes.
Rule: the framework below waits for a head for ever.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

HEAD_S = 10.0
"""Time from connecting to a whole head: as long as a peer of AMQP has to log in."""
IDLE_S = 75.0
"""Time between two requests: longer than browsers and pools leave between them."""


class Patience:
    """Makes the protocols of a server, and sees to it that each has something to do."""

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._timers: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}
        """Of those that wait, and of those that have left since, until their time is over."""

    def connect(self) -> asyncio.BaseProtocol:
        """The protocol of one more connection."""
        protocol = self._server()
        self._wait(protocol, HEAD_S)
        return protocol

    def begin(self, request: web.BaseRequest) -> None:
        """A request is here."""
        timer = self._timers.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()

    def end(self, request: web.BaseRequest) -> None:
        """It is answered."""
        if request.transport is not None:
            self._wait(request.protocol, IDLE_S)

    def close(self) -> None:
        """Wait for nobody any more."""
        for timer in self._timers.values():
            timer.cancel()

    def _wait(self, protocol: asyncio.BaseProtocol, seconds: float) -> None:
        self._timers[protocol] = self._loop.call_later(seconds, self._cut, protocol)

    def _cut(self, protocol: asyncio.BaseProtocol) -> None:
        del self._timers[protocol]
        transport: asyncio.Transport | None = getattr(protocol, "transport", None)
        if transport is not None:
            transport.abort()
