"""Spans: a collector gets them as OTLP, from every node that a traced message passes, and from no other message."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import pytest
from aiohttp import web
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from unit.network.fabric import Nodes, flowing, until
from weft.config import parse
from weft.model.errors import ConfigError

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
RECORDED, LEFT_OUT = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


class Collector:
    """A receiver of OTLP over HTTP: what it cannot read by OpenTelemetry's own classes is an error."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.grown = asyncio.Event()
        self.port = 0

    async def take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/json"
        document = json.loads(await request.read())
        for resource in document["resourceSpans"]:
            for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
                for key in ("traceId", "spanId", "parentSpanId"):  # hexadecimal in OTLP's JSON, base64 in protobuf's
                    span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
        for resource in json_format.ParseDict(document, ExportTraceServiceRequest()).resource_spans:
            about = {item.key: item.value.string_value for item in resource.resource.attributes}
            assert about["service.name"] == "weft"
            found = (span for scope in resource.scope_spans for span in scope.spans)
            self.spans += ((about["service.instance.id"], span) for span in found)
        self.grown.set()
        return web.json_response({})

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.spans) < count:
                self.grown.clear()
                await self.grown.wait()


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    one = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", one.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    one.port = runner.addresses[0][1]
    try:
        yield one
    finally:
        await runner.cleanup()


async def test_every_node_on_the_way_tells_of_a_recorded_message() -> None:
    async with collector() as told, Nodes() as fabric:
        tracing = parse(f'[tracing]\nendpoint = "http://127.0.0.1:{told.port}/v1/traces"\n')
        gateway = await fabric.add("gateway", configuration=tracing)
        remote = await fabric.add("remote", configuration=tracing)
        gateway.declare_queue("requests")
        remote.declare_queue("work")
        fabric.link("remote", "gateway")
        remote.add_route("up", "queue", key="work", queue="requests")
        await until(lambda: flowing(remote))
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{gateway.ports[0]}/")
        async with connection:
            channel = await connection.channel()
            for context in (None, LEFT_OUT, "nonsense", RECORDED):
                message = aio_pika.Message(b"body", headers={} if context is None else {"traceparent": context})
                await channel.default_exchange.publish(message, routing_key="requests")
        async with remote.receive("work") as receiver, asyncio.timeout(30):
            for _ in range(4):
                (await anext(receiver)).accept()
        await told.wait(2)
        assert sorted((node, span.name) for node, span in told.spans) == [
            ("gateway", "queue requests"),
            ("remote", "queue work"),
        ]
        for _, span in told.spans:
            assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
            assert (len(span.span_id), span.kind) == (8, Span.SPAN_KIND_CONSUMER)
            assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
            about = {item.key: item.value for item in span.attributes}
            assert about["messaging.message.body.size"].int_value == len(b"body")


def test_an_endpoint_must_be_one() -> None:
    with pytest.raises(ConfigError, match="endpoint must begin with http"):
        parse('[tracing]\nendpoint = "127.0.0.1:4318"\n')
