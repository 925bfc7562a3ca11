"""Listening sockets: open them, say where they really are, close them.

Owns the `asyncio.Server` of each endpoint. An `Endpoint`, an optional TLS context and a protocol factory come in; a
`Listener` with the addresses the machine gave goes out. It must never look at a byte that arrives.
Rule: the backlog holds a burst of thousands of connects; Linux caps it at net.core.somaxconn, which is 4096 as well.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ssl import SSLContext

from weft.model.errors import Unavailable
from weft.net.endpoint import Endpoint

BACKLOG_MAX = 4_096
TLS_HANDSHAKE_TIMEOUT_S = 10.0
TLS_SHUTDOWN_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Listener:
    """One endpoint that is listened on; a name such as `localhost` may have given it several addresses."""

    endpoints: tuple[Endpoint, ...]
    tls: bool
    server: asyncio.Server

    def close(self) -> None:
        """Take no more connections; those that exist go on."""
        self.server.close()


async def listen(
    endpoint: Endpoint, protocol_factory: Callable[[], asyncio.BaseProtocol], tls: SSLContext | None = None
) -> Listener:
    """Listen on an endpoint; port 0 takes a free one."""
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            protocol_factory,
            endpoint.host,
            endpoint.port,
            backlog=BACKLOG_MAX,
            ssl=tls,
            ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S if tls else None,
            ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S if tls else None,
        )
    except OSError as error:
        raise Unavailable(f"cannot listen on {endpoint}: {reason(error)}") from error
    endpoints = tuple(Endpoint(*opened.getsockname()[:2]) for opened in server.sockets)
    return Listener(endpoints, tls is not None, server)


def reason(error: OSError) -> str:
    """What the system says, without the address, which the caller knows."""
    # asyncio puts a sentence with the address into strerror; the address is already in ours.
    if isinstance(error, socket.gaierror) or not error.errno:
        return str(error.strerror or error).lower()
    return os.strerror(error.errno).lower()
