"""Spans of traced messages, sent to a collector.

Owns taking spans from the kernel and their form on the wire. The kernel notes when a message with a recorded trace
context left a queue of this node; batches go out to the configured endpoint as OTLP over HTTP, in JSON.
It must never run per message, keep what could not be sent, or say more than once that it cannot be.
Rule: the OpenTelemetry protocol 1.x, "OTLP/HTTP"; W3C Trace Context; docs/guides/operations.md, "Traces".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from typing import Any

import aiohttp

from weft._kernel import Engine
from weft.management.query import each

BATCH = 512
"""Spans of one request."""
PAUSE_S = 1.0
SEND_TIMEOUT_S = 10.0
CONSUMER = 5
"""`SPAN_KIND_CONSUMER`."""
LOG = logging.getLogger("weft.tracing")

Span = tuple[str, str, str, str, str, str, int, int, int]


class Tracing:
    """Sends spans until it is stopped."""

    def __init__(self, engine: Engine, node: str, version: str, endpoint: str, one_in: int) -> None:
        """`endpoint` is the whole address, as in `http://127.0.0.1:4318/v1/traces`."""
        self._engine = engine
        self._node = node
        self._version = version
        self._endpoint = endpoint
        self._one_in = one_in
        self._task: asyncio.Task[None] | None = None
        self._is_refused = False

    def start(self) -> None:
        """Note spans from now on."""
        self._engine.trace(self._one_in)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send what is there and note nothing more."""
        self._engine.trace(0)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=SEND_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                spans = self._engine.spans(BATCH)
                if spans:
                    await self._send(session, await self._request(spans))
                if len(spans) < BATCH:
                    await asyncio.sleep(PAUSE_S)

    async def _request(self, spans: list[Span]) -> bytes:
        told = b",".join(await each(spans, _told))
        resource = _attributes({"service.name": "weft", "service.instance.id": self._node})
        scope = {"name": "weft", "version": self._version}
        head = json.dumps({"resource": {"attributes": resource}, "scopeSpans": [{"scope": scope, "spans": []}]})
        return b'{"resourceSpans":[' + head.encode().replace(b'"spans": []', b'"spans":[' + told + b"]") + b"]}"

    async def _send(self, session: aiohttp.ClientSession, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        try:
            async with session.post(self._endpoint, data=body, headers=headers) as answer:
                cause = None if answer.status < 300 else f"status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            cause = str(error) or type(error).__name__
        if cause is not None and not self._is_refused:
            LOG.warning("spans are lost: %s does not take them: %s", self._endpoint, cause)
        self._is_refused = cause is not None


def _told(span: Span) -> bytes:
    trace_id, parent_id, vhost, queue, exchange, key, arrived_us, left_us, size = span
    about = {
        "messaging.system": "weft",
        "messaging.operation.type": "send",
        "messaging.destination.name": queue,
        "messaging.message.body.size": size,
        "weft.vhost": vhost,
        "weft.exchange": exchange,
        "weft.routing_key": key,
    }
    return json.dumps(
        {
            "traceId": trace_id,
            "spanId": secrets.token_hex(8),
            "parentSpanId": parent_id,
            "name": f"queue {queue}",
            "kind": CONSUMER,
            "startTimeUnixNano": str(arrived_us * 1_000),
            "endTimeUnixNano": str(left_us * 1_000),
            "attributes": _attributes(about),
        }
    ).encode()


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]
