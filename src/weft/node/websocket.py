"""Peers behind a WebSocket: AMQP for browsers, and for networks that let nothing but HTTP through.

Owns the two directions between a WebSocket and a connection inside this process. A request to upgrade comes in; what
its binary messages hold goes to the node as bytes, and the node's bytes leave as binary messages.
It must never look into the bytes, nor let a page from elsewhere in.
Rule: AMQP WebSocket Binding 1.0 of OASIS: subprotocol `amqp`, binary messages, whose borders mean nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from aiohttp import WSMsgType, web

from weft.net.memory import accept_here

SUBPROTOCOL = "amqp"
PATH = "/amqp"
MESSAGE_BYTES_MAX = 4_194_304
"""Largest message of the WebSocket that is taken: a few dozen of the largest frames."""
SILENCE_S = 30.0
"""A ping is sent after so long; without an answer the peer is gone. AMQP's own heartbeats go on beside it."""


class WebSockets:
    """The handler of `PATH`: each upgrade becomes a connection of the node."""

    def __init__(self, accept: Callable[[], asyncio.Protocol], origins: Collection[str]) -> None:
        """`origins` are the sites whose pages may connect."""
        self._accept = accept
        self._origins = frozenset(origins)
        self._peers: set[_Peer] = set()

    async def close(self, _app: object = None) -> None:
        """End every connection; the handlers follow."""
        for peer in tuple(self._peers):
            peer.transport.close()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one peer until it or the node ends."""
        origin = request.headers.get("Origin")
        if origin is not None and not {origin, "*"} & self._origins:
            # The browser of a user on this machine counts as local, and would be let in as guest: by any page. What the
            # request calls our own name proves nothing, since whoever owns a name may let it lead here.
            return web.Response(status=403, text=f"pages of {origin} may not connect here: see [http] origins\n")
        socket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,), max_msg_size=MESSAGE_BYTES_MAX, heartbeat=SILENCE_S, compress=False
        )
        if not socket.can_prepare(request):
            return web.Response(status=426, headers={"Upgrade": "websocket"}, text="AMQP over WebSocket is here\n")
        await socket.prepare(request)
        transport = request.transport
        known = {name: transport.get_extra_info(name) if transport else None for name in ("peername", "sslcontext")}
        peer = _Peer()
        accept_here(self._accept, known, peer)
        self._peers.add(peer)
        sender = asyncio.create_task(peer.send_all(socket))
        try:
            await _read_all(socket, peer)
        finally:
            self._peers.discard(peer)
            peer.transport.close()
            await sender
        return socket


async def _read_all(socket: web.WebSocketResponse, peer: _Peer) -> None:
    async for message in socket:
        if message.type is not WSMsgType.BINARY:
            await socket.close(code=1003, message=b"AMQP is binary")
            return
        peer.transport.write(message.data)
        await peer.writable.wait()
        if peer.ended:
            return


class _Peer(asyncio.Protocol):
    """The other end of the node's connection."""

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()
        self.ended = False
        self._waiting: list[bytes] = []
        self._wake = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        # One piece at a time: what the browser does not take, the node must not send.
        self._waiting.append(data)
        self.transport.pause_reading()
        self._wake.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self.ended = True
        self.writable.set()
        self._wake.set()

    async def send_all(self, socket: web.WebSocketResponse) -> None:
        """Send what the node says until it has said everything, or nobody hears it any more."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                data, self._waiting = b"".join(self._waiting), []
                if data:
                    await socket.send_bytes(data)
                if self.ended:
                    break
                self.transport.resume_reading()
            await socket.close()
        except ConnectionError:
            self.transport.close()
