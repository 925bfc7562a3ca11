"""Events as messages: what happens, who hears of it, and that nobody pays when nobody listens."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import aio_pika
import pytest

import weft
from weft.management.manager import BY_NAME
from weft.management.schema import ManagedClass
from weft.management.service import TOLD

from .conftest import Console


async def next_event(receiver: Any, **wanted: object) -> dict[str, Any]:
    """The next event that has these values; others are passed over."""
    async with asyncio.timeout(10):
        while True:
            message = await anext(receiver)
            message.accept()
            body: dict[str, Any] = json.loads(message.body)
            if all(body.get(key) == value for key, value in wanted.items()):
                assert message.routing_key.split(".")[:3] == [body["class"], body["kind"], body["severity"]]
                return body


async def test_objects_tell_of_their_making_and_end(node: weft.Node, console: Console) -> None:
    async with node.receive("weft.events/#") as events:
        await console.ask("CREATE", type="queue", name="a.b")
        event = await next_event(events, **{"class": "queue", "kind": "created", "object": "a.b"})
        assert (event["version"], event["vhost"], event["node"]) == (1, "/", "here")
        assert event["values"]["durable"] is True
        await console.ask("CREATE", {"type": "topic"}, type="exchange", name="x")
        await next_event(events, **{"class": "exchange", "kind": "created", "object": "x"})
        await console.ask("CREATE", {"source": "x", "destination": "a.b"}, type="binding")
        await next_event(events, **{"class": "binding", "kind": "created"})
        await console.ask("DELETE", type="exchange", name="x")
        gone = await next_event(events, **{"class": "binding", "kind": "deleted"})
        assert (gone["values"]["source"], gone["values"]["destination"]) == ("x", "a.b")
        await next_event(events, **{"class": "exchange", "kind": "deleted", "object": "x"})
        await console.ask("CREATE", type="vhost", name="v")
        await next_event(events, **{"class": "vhost", "kind": "created", "object": "v"})
        await console.ask("CREATE", {"password": "p"}, type="user", name="u")
        await next_event(events, **{"class": "user", "kind": "created", "object": "u"})
        await console.ask("CREATE", {"read": ".*"}, type="permission", name="u", vhost="v")
        await next_event(events, **{"class": "permission", "kind": "created", "object": "u", "vhost": "v"})
        await console.ask("CREATE", {"read": "^$"}, type="permission", name="u", vhost="v")
        await next_event(events, **{"class": "permission", "kind": "changed", "object": "u"})
        await console.ask("quiesce", type="node")
        assert (await console.ask("resume", type="node"))[0] == 200
        await next_event(events, **{"class": "node", "kind": "quiesced", "severity": "warning"})
        await next_event(events, **{"class": "node", "kind": "resumed"})


async def test_bindings_tell_that_they_go_with_their_ends_in_order_and_in_parts(node: weft.Node) -> None:
    count = 20 * TOLD
    node.declare_exchange("source", "topic")
    await node.management.manager.create(
        node.management.manager.node, "exchange", "/", "between", {"auto_delete": True}
    )
    node.declare_queue("sink")
    node.bind("between", "sink", "all")
    for number in range(count):
        node.bind("source", "sink", f"key.{number}")
    async with node.receive("weft.events/*.deleted.#") as events:
        node.delete_queue("sink")
        told = []
        while not told or told[-1] != ("exchange", "between"):
            event = await next_event(events, kind="deleted")
            told.append((event["class"], event["object"]))
    assert told[-2:] == [("queue", "sink"), ("exchange", "between")]
    assert sorted(name for kind, name in told if kind == "binding") == sorted(
        ["between/queue/sink/all", *(f"source/queue/sink/key.{number}" for number in range(count))]
    )


async def test_connections_tell_when_they_come_and_go(node: weft.Node) -> None:
    async with node.receive("weft.events/connection.#") as events:
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/")
        opened = await next_event(events, kind="opened")
        assert (opened["values"]["user"], opened["values"]["protocol"]) == ("guest", "0-9-1")
        await connection.close()
        assert (await next_event(events, kind="closed"))["object"] == opened["object"]
        with pytest.raises(aio_pika.exceptions.AMQPConnectionError):
            await aio_pika.connect(f"amqp://guest:wrong@127.0.0.1:{node.ports[0]}/")
        assert (await next_event(events, kind="refused"))["severity"] == "warning"


async def test_statistics_are_told_on_demand(node: weft.Node, console: Console) -> None:
    for _ in range(3):
        await node.send("busy", b"x")
    async with node.receive("weft.events/*.statistics.#") as events:
        status, told = await console.ask("statistics", type="node")
        assert (status, told["told"] >= 2) == (200, True)
        node_event = await next_event(events, **{"class": "node"})
        assert node_event["values"]["ready"] >= 3
        queue_event = await next_event(events, object="busy")
        assert (queue_event["values"]["published"], queue_event["values"]["ready"]) == (3, 3)


async def test_nothing_is_told_when_nobody_listens(node: weft.Node, console: Console) -> None:
    await console.ask("CREATE", type="queue", name="q")
    assert (await console.ask("statistics", type="node")) == (200, {"told": 0})
    _, row = await console.ask("READ", type="exchange", name="weft.events")
    assert row["messages_in"] == 0


async def test_events_are_log_lines_too(node: weft.Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "weft.events"):
        node.declare_queue("logged queue")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    (record,) = [record for record in caplog.records if "logged" in record.message]
    assert record.message.startswith('event=queue.created object="logged queue" vhost=/ durable=true')


@pytest.mark.parametrize("managed", BY_NAME.values(), ids=lambda managed: managed.name)
def test_the_schema_says_something_of_every_class(managed: ManagedClass) -> None:
    assert managed.doc
    assert any(field.how == "key" and field.name == "name" for field in managed.properties)
    assert len(managed.attributes) == len(set(managed.attributes))
