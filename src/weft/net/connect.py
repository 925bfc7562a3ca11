"""Sockets that this process opens: dial an endpoint, with or without TLS, and how long to wait before the next try.

Owns the connect itself and the pace of retries. An `Endpoint`, an optional TLS context and a protocol factory come in;
a connected protocol goes out, or `Unavailable` with the reason in words. It must never look at a byte that arrives.
Rule: retries wait twice as long each time and a random part of it, so that a hundred peers of a node that restarts do
not come back at the same moment.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable

from weft.model.errors import Unavailable
from weft.net.endpoint import Endpoint
from weft.net.listen import TLS_SHUTDOWN_TIMEOUT_S, reason


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


class Backoff:
    """How long to wait before each try in a row."""

    def __init__(self, first_ms: int = 100, most_ms: int = 10_000, *, chance: Callable[[], float] = random.random):
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._chance = chance
        self._tries = 0

    def next_ms(self) -> int:
        """The wait before the next try: from half of the full one to all of it."""
        full_ms = min(self._most_ms, self._first_ms << min(self._tries, 30))
        self._tries += 1
        return int(full_ms * (1 + self._chance()) / 2)

    def reset(self) -> None:
        """It worked: the next wait is the first again."""
        self._tries = 0
