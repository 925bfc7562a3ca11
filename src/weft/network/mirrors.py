"""Bindings at a RabbitMQ, made to be those that a route wants.

Owns the requests to a peer's HTTP management: a queue, what it is bound by, and the difference to what it should be.
`Mirror` steps of federation come in; words on what became of them go out.
It must decide nothing: a `Mirror` has the whole set, so the same one may be carried out any number of times.
Rule: RabbitMQ's HTTP API, `/api/queues` and `/api/bindings`; what is there is looked at first, and only what differs is
changed.
"""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import quote

import aiohttp
from yarl import URL

from weft.federation.followers import Mirror

TIMEOUT_S = 10.0
OK_MAX = 299
NOT_FOUND = 404
TEXT_MAX = 200


class _Refused(Exception):
    """The peer's management said no."""


async def carry_out(mirror: Mirror) -> tuple[str, bool]:
    """Do it: in words what became of it, and whether it is so now."""
    login = b64encode(f"{mirror.peer.user or 'guest'}:{mirror.peer.password or 'guest'}".encode()).decode()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Basic {login}"}, timeout=timeout) as session:
            return await _Requests(session, mirror).mend(), True
    except _Refused as refused:
        return str(refused), False
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError) as error:
        return f"{mirror.management}: {error or type(error).__name__}", False


class _Requests:
    def __init__(self, session: aiohttp.ClientSession, mirror: Mirror) -> None:
        self._session = session
        self._mirror = mirror
        vhost, queue = _part(mirror.peer.vhost), _part(mirror.queue)
        self._queue = f"/api/queues/{vhost}/{queue}"
        self._bindings = f"/api/bindings/{vhost}/e/{_part(mirror.exchange)}/q/{queue}"

    async def mend(self) -> str:
        mirror = self._mirror
        if mirror.is_over:
            await self._ask("DELETE", self._queue, may_miss=True)
            return "its queue is gone"
        arguments = {"x-expires": mirror.expires_ms}
        await self._ask("PUT", self._queue, {"durable": mirror.durable, "arguments": arguments})
        rows = await self._ask("GET", self._bindings)
        there = {row["routing_key"]: row["properties_key"] for row in rows if not row["arguments"]}
        wanted = set(mirror.keys)
        for key in sorted(wanted - there.keys()):
            await self._ask("POST", self._bindings, {"routing_key": key, "arguments": {}})
        for key in sorted(there.keys() - wanted):
            await self._ask("DELETE", f"{self._bindings}/{_part(there[key])}", may_miss=True)
        return f"{len(wanted)} bindings at {mirror.management}"

    async def _ask(
        self, method: str, path: str, body: object = None, *, may_miss: bool = False
    ) -> list[dict[str, str]]:
        # Escaped already: the slash of a virtual host must stay so.
        url = URL(self._mirror.management.rstrip("/") + path, encoded=True)
        async with self._session.request(method, url, json=body) as answer:
            if answer.status <= OK_MAX:
                return await answer.json() if method == "GET" else []
            if answer.status == NOT_FOUND and may_miss:
                return []
            text = (await answer.text())[:TEXT_MAX]
            raise _Refused(f"{method} {path}: {answer.status} {text}")


def _part(name: str) -> str:
    return quote(name, safe="")
