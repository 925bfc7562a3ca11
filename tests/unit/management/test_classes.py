"""Every class of the schema on a live node: a property, a statistic that counts what was done, and every event."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aio_pika
import pytest

import weft
from weft.management._generated_classes import CLASSES
from weft.management.query import Query

from .failing import fail

SENT = 5
APPENDED = 3


KEPT = ("created", "deleted")
SET = ("created", "changed", "deleted")
TOLD: dict[str, tuple[str, ...]] = {
    "node": ("statistics", "quiesced", "resumed", "draining"),
    "system": ("statistics",),
    "agent": ("statistics",),
    "vhost": SET,
    "connection": ("opened", "closed", "refused"),
    "session": KEPT,
    "link": KEPT,
    "uplink": SET,
    "route": SET,
    "relay": SET,
    "exchange": KEPT,
    "queue": ("created", "statistics", "deleted"),
    "stream": KEPT,
    "binding": KEPT,
    "user": SET,
    "permission": SET,
    "topic_permission": SET,
    "policy": SET,
    "operator_policy": SET,
    "parameter": SET,
    "global_parameter": SET,
    "directory": SET,
    "service": ("up", "gone", "scaled", "advised"),
    "barrier": KEPT,
    "transaction": ("committed", "rolled_back"),
    "rule": ("created", "crossed", "cleared", "deleted"),
    "query": ("progress",),
    "log": ("line", "changed"),
}
"""What one node tells that all is well with."""
WANTED = {(name, kind) for name, kinds in TOLD.items() for kind in kinds}
CHANGED: dict[str, tuple[str, str, dict[str, object]]] = {
    "vhost": ("/", "v", {"description": "for tests"}),
    "user": ("/", "u", {"tags": []}),
    "permission": ("v", "u", {"read": "^$"}),
    "topic_permission": ("v", "u/x", {"read": "^b"}),
    "policy": ("/", "p", {"priority": 1}),
    "operator_policy": ("/", "p", {"priority": 1}),
    "parameter": ("/", "component/one", {"value": 2}),
    "global_parameter": ("/", "two", {"value": 3}),
    "directory": ("/", "/settings/color", {"value": {"is": "red"}}),
    "log": ("/", "weft.management", {"level": "warning"}),
    "uplink": ("/", "there", {"role": "core"}),
    "route": ("/", "r", {"credit": 10}),
    "relay": ("/", "in-step", {"role": "core"}),
}
FLAGS = ({"durable": True, "auto_delete": False}, {"durable": False, "auto_delete": True})


@dataclass
class Life:
    """What was seen of one node: rows by class and name, and (class, kind, object) of every event, in order."""

    rows: dict[str, dict[str, dict[str, Any]]]
    events: list[tuple[str, str, str]]
    moved: dict[str, int]
    """How far the node's counters went while messages were sent and taken."""
    changed: dict[str, dict[str, Any]]
    """By class, the row of the object that was changed, as the next query told it."""


async def make(node: weft.Node) -> None:
    manager, caller = node.management.manager, node.management.manager.node

    async def create(kind: str, name: str, vhost: str = "/", /, **values: object) -> None:
        await manager.create(caller, kind, vhost, name, values)

    await create("vhost", "v")
    await create("user", "u", password="p", tags=["monitoring"])
    await create("permission", "u", "v", configure="^$", write="^$", read=".*")
    await create("topic_permission", "u/x", "v", write="^a", read="^a")
    await create("parameter", "component/one", value={"a": 1})
    await create("global_parameter", "two", value={"b": 2})
    for kind in ("policy", "operator_policy"):
        await create(kind, "p", pattern="^jobs$", apply_to="queues", definition={"max-length": 10})
    await create("exchange", "x", type="topic")
    await create("queue", "jobs", arguments={"x-barrier": "message-id"})
    await create("stream", "log")
    await create("binding", "", source="x", destination="jobs", routing_key="order.#")
    await create("uplink", "there", urls=["amqp://127.0.0.1:1"])
    await create("route", "r", link="there", kind="static", exchange="x", source_exchange="y", key="far.#")
    await create("relay", "in-step", urls=["amqp://127.0.0.1:1"], exchange="x")
    await create("directory", "/settings/color", value={"is": "blue"})
    queue = {"x-weft-service": "payments"}
    await create("queue", "payments.request.impl", arguments=queue)
    await create("rule", "too-long", object="queue jobs", attribute="ready", threshold=10)
    crossed = {"class": "rule", "kind": "crossed", "object": "too-long", "values": {}}
    await manager.call(caller, "node", "/", "here", "tell", crossed)
    await manager.call(caller, "rule", "/", "too-long", "report", {"crossed": True, "fired": 1})
    progress = {"class": "query", "kind": "progress", "object": "q", "values": {"streams": {"log": APPENDED}}}
    await manager.call(caller, "node", "/", "here", "tell", progress)
    policy = manager.host.policy
    logging.getLogger("weft.management").warning("%s is odd", "something")
    assert policy.may("u", "v", "read", "any")
    assert not policy.may("u", "v", "configure", "any")
    assert policy.may_topic("u", "v", "read", "x", "a.b")
    assert not policy.may_topic("u", "v", "read", "x", "b.a")


async def prepare(node: weft.Node) -> None:
    """Two transactions that wait to be resolved."""
    async with weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric, fabric.session() as session:
        for name in ("kept", "undone"):
            transaction = await session.transaction().begin()
            await transaction.send(session.sender("payments.request.impl"), "body")
            await transaction.prepare(name.encode())


async def work(channel: aio_pika.abc.AbstractChannel) -> None:
    """Messages through the exchange, one of them twice, and through the stream; each is taken and accepted."""
    exchange = await channel.get_exchange("x")
    for number in (*range(SENT), 0):
        message = aio_pika.Message(b"body", type="order", message_id=str(number))
        await exchange.publish(message, routing_key="order.new")
    for _ in range(APPENDED):
        await channel.default_exchange.publish(aio_pika.Message(b"entry"), routing_key="log")
    await channel.set_qos(prefetch_count=100)
    served = await channel.get_queue("payments.request.impl")
    await served.consume(asyncio.Queue().put)
    for name, count, arguments in (("jobs", SENT, {}), ("log", APPENDED, {"x-stream-offset": "first"})):
        queue = await channel.get_queue(name)
        taken: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
        await queue.consume(taken.put, arguments=arguments)
        async with asyncio.timeout(30):
            for _ in range(count):
                await (await taken.get()).ack()
    await channel.get_queue("jobs")  # its answer comes after everything before it was done


async def hear(events: Any, seen: list[tuple[str, str, str]], wanted: set[tuple[str, str]]) -> None:
    """Take events until these kinds were among them."""
    async with asyncio.timeout(30):
        while wanted - {item[:2] for item in seen}:
            message = await anext(events)
            message.accept()
            body = json.loads(message.body)
            seen.append((body["class"], body["kind"], body["object"]))


async def live(folder: Path) -> Life:
    """A node all is well with, and then one that everything goes wrong with."""
    async with weft.Node(name="here", listen="127.0.0.1:0") as node, node.receive("weft.events/#") as events:
        manager = node.management.manager
        await make(node)
        await prepare(node)
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/")
        moved = await counters(node)
        await work(await connection.channel())
        moved = {name: count - moved[name] for name, count in (await counters(node)).items()}
        await manager.tell_statistics()
        rows: dict[str, dict[str, dict[str, Any]]] = {}
        seen: list[tuple[str, str, str]] = []
        await hear(events, seen, {("service", "up")})
        for item in CLASSES:
            page = await manager.query(manager.node, item.name, Query())
            rows[item.name] = {row["name"]: row for row in page.rows}
        await connection.close()
        changed = await end(node)
        await hear(events, seen, WANTED)
    failures = [(event["class"], event["kind"], event["object"]) for event in await fail(folder)]
    return Life(rows, [*seen, *failures], moved, changed)


async def counters(node: weft.Node) -> dict[str, int]:
    """What the node counts of messages, without those that it publishes about itself."""
    manager = node.management.manager
    row = await manager.read(manager.node, "node", "/", "here")
    told = await manager.read(manager.node, "exchange", "/", "weft.events")
    return {
        "published": row["published"] - told["messages_in"],
        **{name: row[name] for name in ("settled", "returned", "redelivered", "duplicate", "unroutable")},
    }


async def end(node: weft.Node) -> dict[str, dict[str, Any]]:
    """Everything is changed that can be, and goes again; what was changed."""
    manager, caller = node.management.manager, node.management.manager.node
    with pytest.raises(aio_pika.exceptions.AMQPConnectionError):
        await aio_pika.connect(f"amqp://guest:wrong@127.0.0.1:{node.ports[0]}/")
    for name, operation in (("kept", "commit"), ("undone", "rollback")):
        await manager.call(caller, "transaction", "/", name, operation, {})
    changed = {}
    for kind, (vhost, name, values) in CHANGED.items():
        await manager.update(caller, kind, vhost, name, values)
        found = (await manager.query(caller, kind, Query())).rows
        changed[kind] = next(row for row in found if row["name"] == name and row.get("vhost", vhost) == vhost)
    for state in FLAGS:
        await manager.create(caller, "queue", "/", "flagged", state)
        changed[str(state)] = await manager.read(caller, "queue", "/", "flagged")
        await manager.delete(caller, "queue", "/", "flagged", {})
    for kind in ("binding", "queue", "stream", "rule", "exchange"):
        await manager.delete(caller, kind, "/", COUNTED[kind][0], {})
    for kind, (vhost, name, _) in reversed([item for item in CHANGED.items() if item[0] != "log"]):
        await manager.delete(caller, kind, vhost, name, {})
    for class_name, kind in (("rule", "cleared"), ("service", "scaled"), ("service", "advised")):
        told = {"class": class_name, "kind": kind, "object": "one", "values": {}}
        await manager.call(caller, "node", "/", "here", "tell", told)
    for operation in ("quiesce", "resume", "drain"):
        await manager.call(caller, "node", "/", "here", operation, {})
        changed[operation] = await manager.read(caller, "node", "/", "here")
    return changed


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return asyncio.run(live(tmp_path_factory.mktemp("failing")))


class Some:
    """Equal to any number above 0: what a test cannot know."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int | float) and other > 0

    __hash__ = None  # type: ignore[assignment]


SOME = Some()
COUNTED: dict[str, tuple[str, dict[str, object]]] = {
    "node": ("here", {"connections": 1, "channels": 1, "duplicate": 1}),
    "system": (
        os.uname().nodename,
        dict(zip(("os_name", "name", "release", "version", "machine"), os.uname(), strict=True))
        | {"memory_free_bytes": SOME},
    ),
    "agent": ("here", {"schema": 1, "classes": [item.name for item in CLASSES], "requests": SOME, "told": SOME}),
    "vhost": ("v", {"tag": "here:v", "queues": 0, "connections": 0}),
    "connection": ("", {"messages_in": SENT + 1 + APPENDED, "messages_out": SENT + APPENDED, "channels": 1}),
    "session": ("", {"consumers": 3, "unsettled": 0, "published": SENT + 1 + APPENDED}),
    "uplink": ("there", {"connects": 0}),
    "route": (
        "r",
        {"link": "there", "kind": "static", "exchange": "x", "source_exchange": "y", "key": "far.#"}
        | {"credit": SOME, "sync": 1, "durable": True, "mended": 0, "carried": 0},
    ),
    "relay": ("in-step", {"exchange": "x", "mended": 0, "carried": 0}),
    "exchange": ("x", {"messages_in": SENT + 1, "bindings": 1}),
    "queue": ("jobs", {"published": SENT, "delivered": SENT, "settled": SENT, "ready": 0, "duplicate": 1}),
    "stream": ("log", {"appended": APPENDED, "read": APPENDED, "readers": 1, "next_offset": APPENDED}),
    "binding": ("x/queue/jobs/order.%23", {"matched": SENT + 1}),
    "barrier": ("queue/jobs", {"ids": SENT, "duplicate": 1}),
    "transaction": ("kept", {"messages": 1, "held": 0}),
    "rule": ("too-long", {"fired": 1, "state": "crossed"}),
    "user": ("guest", {"connections": 1}),
    "permission": ("u", {"read": ".*", "checked": 2, "refused": 1, "connections": 0}),
    "policy": ("p", {"priority": 0, "queues": 1, "exchanges": 0}),
    "topic_permission": ("u/x", {"exchange": "x", "checked": 2, "refused": 1, "connections": 0}),
    "parameter": ("component/one", {"value": {"a": 1}, "bytes": 7, "changes": 1}),
    "global_parameter": ("two", {"value": {"b": 2}, "bytes": 7, "changes": 1}),
    "operator_policy": ("p", {"priority": 0, "queues": 1, "exchanges": 0}),
    "directory": ("/settings/color", {"value": {"is": "blue"}, "version": SOME}),
    "service": ("payments@here", {"state": "up", "served": 0}),
    "query": ("q", {"streams": {"log": APPENDED}, "progressed": 1}),
    "log": ("weft.management", {"level": "warning", "lines": SOME, "told": 1, "dropped": 0}),
}
"""The object that is looked at (the only one where it has no name of its own), and what its statistics must be."""


@pytest.mark.parametrize("item", CLASSES, ids=lambda i: i.name)
def test_a_class_has_properties_and_statistics(life: Life, item: Any) -> None:
    rows = life.rows[item.name]
    if item.name == "link":
        by_queue = {row["queue"]: row["delivered"] for row in rows.values()}
        assert by_queue == {"jobs": SENT, "log": APPENDED, "payments.request.impl": 0}
        return
    name, counted = COUNTED[item.name]
    assert {field.name for field in item.statistics} & counted.keys(), "no statistic of this class is tested"
    row = rows[name] if name else next(iter(rows.values()))
    for field in item.properties:
        value = row.get(field.name)
        assert value is None or field.how == "secret" or field.fits(value), (field.name, value)
    for field in item.statistics:
        assert field.name in row, f"the schema says that a {item.name} has {field.name}"
    assert {key: row[key] for key in counted} == counted


@pytest.mark.parametrize("item", CLASSES, ids=lambda i: i.name)
def test_a_class_tells_every_kind_of_event_that_it_has(life: Life, item: Any) -> None:
    told = {kind for name, kind, _ in life.events if name == item.name}
    assert told == {event.name for event in item.events}


def test_the_node_counts_exactly_what_was_sent_and_taken(life: Life) -> None:
    taken = SENT + APPENDED
    assert life.moved == {
        "published": taken + 1,
        "settled": taken,
        "duplicate": 1,
        **dict.fromkeys(("returned", "redelivered", "unroutable"), 0),
    }


def test_what_was_changed_is_in_the_next_answer(life: Life) -> None:
    for kind, (_, _, values) in CHANGED.items():
        assert {name: life.changed[kind][name] for name in values} == values, kind
    for state in FLAGS:
        assert {name: life.changed[str(state)][name] for name in state} == state
    states = [life.changed[operation]["state"] for operation in ("quiesce", "resume", "drain")]
    assert states == ["quiesced", "running", "draining"]


def test_the_agent_counts_what_it_told(life: Life) -> None:
    row = life.rows["agent"]["here"]
    # Those that its row counts came before it was read.
    assert 0 < row["told"] < len(life.events)
    assert row["requests"] > 0


def test_types_of_messages_have_latencies(life: Life) -> None:
    for row in (life.rows["queue"]["jobs"], life.rows["node"]["here"]):
        order = row["types"]["order"]
        assert order["count"] == SENT
        assert 0 <= order["p50_us"] <= order["p90_us"] <= order["p99_us"] <= order["max_us"]
