"""Sockets that this process opens: dial an endpoint, with or without TLS.

Owns the connect itself. An `Endpoint`, an optional TLS context and a protocol factory come in; a connected protocol
goes out, or `Unavailable` with the reason in words. It must never look at a byte that arrives, nor try twice.
Rule: one time limit for name, socket and TLS together, since a peer that is half there holds up whoever waits for it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from weft.model.errors import Unavailable
from weft.net.endpoint import Endpoint
from weft.net.listen import TLS_SHUTDOWN_TIMEOUT_S, reason
from weft.net.resumption import dialling


async def connect(
    endpoint: Endpoint,
    protocol_factory: Callable[[], asyncio.BaseProtocol],
    *,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    timeout_s: float,
) -> None:
    """Dial an endpoint; the protocol is connected when this returns."""
    loop = asyncio.get_running_loop()
    if tls is not None:
        dialling(tls, str(endpoint))
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(
                protocol_factory,
                endpoint.host,
                endpoint.port,
                ssl=tls,
                server_hostname=(server_name or endpoint.host) if tls else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S if tls else None,
            )
    except TimeoutError as error:
        raise Unavailable(f"cannot reach {endpoint}: no answer for {timeout_s:g} s") from error
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason or str(error)
        raise Unavailable(f"cannot reach {endpoint} by TLS: {why}") from error
    except OSError as error:
        raise Unavailable(f"cannot reach {endpoint}: {reason(error)}") from error
