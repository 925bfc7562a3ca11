"""Statistics equal what was done, exactly; latencies to within what their sketches promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import pytest_asyncio

import weft

from .conftest import Console


@pytest_asyncio.fixture
async def channel(node: weft.Node) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/")
    async with connection:
        yield await connection.channel()


async def test_every_counter_of_a_queue(
    node: weft.Node, console: Console, channel: aio_pika.abc.AbstractChannel
) -> None:
    node.declare_queue("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 6}
    node.declare_queue("work", arguments=arguments)
    for number in range(8):  # two more than fit: the oldest go
        await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), "work")
    await channel.default_exchange.publish(aio_pika.Message(b"x"), "nowhere", mandatory=False)
    queue = await channel.get_queue("work")
    first = await queue.get()
    await first.nack(requeue=True)
    again = await queue.get()
    assert (first.body, again.body, again.redelivered) == (b"2", b"2", True)
    await again.ack()
    await (await queue.get()).reject(requeue=False)
    await queue.get(no_ack=True)
    held = await queue.get()
    _, row = await console.ask("READ", type="queue", name="work")
    expected = {
        "published": 8,
        "delivered": 5,
        "settled": 2,
        "returned": 1,
        "redelivered": 1,
        "dropped": 2,
        "dead_lettered": 3,
        "ready": 2,
        "unsettled": 1,
    }
    assert {name: row[name] for name in expected} == expected
    await held.ack()
    _, dead = await console.ask("READ", type="queue", name="dead")
    assert (dead["published"], dead["ready"]) == (3, 3)
    rows = {row["name"]: row for row in await console.rows("exchange")}
    # Eight to work, one to nowhere, three dead letters, and what the console asked and was told.
    assert rows[""]["unroutable"] == 1


async def test_exchanges_connections_and_links_count(
    node: weft.Node, console: Console, channel: aio_pika.abc.AbstractChannel
) -> None:
    exchange = await channel.declare_exchange("news", "fanout")
    queues = [await channel.declare_queue(name) for name in ("one", "two")]
    for queue in queues:
        await queue.bind(exchange)
    got: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
    await queues[0].consume(got.put)
    for _ in range(10):
        await exchange.publish(aio_pika.Message(b"hello"), "")
    for _ in range(10):
        await (await got.get()).ack()
    _, row = await console.ask("READ", type="exchange", name="news")
    assert (row["messages_in"], row["messages_out"], row["unroutable"]) == (10, 20, 0)
    rows = await console.rows("connection")
    (mine,) = [row for row in rows if row["protocol"] == "AMQP 0-9-1"]
    assert (mine["messages_in"], mine["messages_out"], mine["channels"], mine["consumers"]) == (10, 10, 1, 1)
    (link,) = [row for row in await console.rows("link") if row["queue"] == "one"]
    assert (link["delivered"], link["connection"]) == (10, mine["name"])
    (session,) = [row for row in await console.rows("session") if row["connection"] == mine["name"]]
    assert (session["number"], session["confirm"], session["consumers"]) == (1, True, 1)
    (user,) = await console.rows("user")
    assert user["connections"] == 2


async def test_transactions_are_counted_as_they_end(node: weft.Node, console: Console) -> None:
    async def counted() -> tuple[int, int, int]:
        _, row = await console.ask("READ", type="node", name="here")
        return row["committed"], row["rolled_back"], (await console.ask("READ", type="queue", name="paid"))[1]["ready"]

    node.declare_queue("paid")
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/")
    channel = await connection.channel(publisher_confirms=False)
    for is_good in (True, False, True):
        transaction = channel.transaction()
        await transaction.select()
        await channel.default_exchange.publish(aio_pika.Message(b"x"), routing_key="paid")
        await (transaction.commit() if is_good else transaction.rollback())
    await connection.close()
    assert await counted() == (2, 1, 2)
    url = f"amqp://127.0.0.1:{node.ports[0]}"
    async with weft.connect(url) as fabric, fabric.session() as session, session.transaction() as transaction:
        await transaction.send(session.sender("paid"), b"x")
    assert await counted() == (3, 1, 3)


async def test_latencies(node: weft.Node, console: Console) -> None:
    for size in (10, 10, 2_000):
        await node.send("slow", b"x" * size)
    await asyncio.sleep(0.05)
    async with node.receive("slow") as receiver:
        messages = [await anext(receiver) for _ in range(3)]
        await asyncio.sleep(0.02)
        for message in messages:
            message.accept()
    _, row = await console.ask("READ", type="queue", name="slow")
    assert 45_000 < row["time_in_queue_p50_us"] <= row["time_in_queue_max_us"] < 5_000_000
    assert 17_000 < row["settle_p99_us"] <= row["settle_max_us"] < 5_000_000
    assert row["oldest_ms"] is None
    (told,) = await console.rows("node")
    sizes = {size["bytes_max"]: size["count"] for size in told["sizes"]}
    assert sizes[4096] == 1
    assert sizes[256] >= 2
    assert told["settle_max_us"] >= row["settle_max_us"]


async def test_age_of_the_oldest_message(node: weft.Node, console: Console) -> None:
    await node.send("waits", b"x")
    await asyncio.sleep(0.05)
    _, row = await console.ask("READ", type="queue", name="waits")
    assert 45 <= row["oldest_ms"] < 5_000


async def test_confirms_of_stored_messages_take_time(tmp_path: Path) -> None:
    async with weft.Node(name="here", listen="127.0.0.1:0", data_dir=tmp_path) as node:
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/")
        async with connection:
            channel = await connection.channel()
            await channel.declare_queue("q", durable=True)
            for _ in range(5):
                message = aio_pika.Message(b"x", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await channel.default_exchange.publish(message, "q")
        counted = {name: count for name, size, count, _ in node.management.manager.host.engine.latencies()}
        assert counted["confirm"] == 5


async def test_pages_are_cut_sorted_and_filtered_by_the_kernel(node: weft.Node, console: Console) -> None:
    for number in range(30):
        node.declare_queue(f"page{number:02}")
    for number in (7, 21):
        for _ in range(number):
            await node.send(f"page{number:02}", b"x")
    names = {"entityType": "queue"}
    status, page = await console.ask("QUERY", {"sort": "ready", "descending": True}, count=2, **names)
    at = page["attributeNames"].index("name")
    assert (status, [row[at] for row in page["results"]]) == (200, ["page21", "page07"])
    _, page = await console.ask("QUERY", {"contains": "PAGE1"}, offset=8, count=5, **names)
    assert ([row[at] for row in page["results"]], page["count"]) == (["page18", "page19"], 10)
    _, page = await console.ask("QUERY", {"pattern": "^page.5$", "attributeNames": ["name"]}, **names)
    assert page["results"] == [["page05"], ["page15"], ["page25"]]
    _, page = await console.ask("QUERY", {"where": {"ready": 7}, "attributeNames": ["name"]}, **names)
    assert page["results"] == [["page07"]]


async def test_barriers_and_streams(node: weft.Node, console: Console) -> None:
    node.declare_queue("once", arguments={"x-barrier": "message-id"})
    for name in ("a", "a", "b"):
        await node.send("once", b"x", message_id=name)
    (barrier,) = await console.rows("barrier")
    assert (barrier["name"], barrier["duplicate"], barrier["ids"]) == ("queue/once", 1, 2)
    assert (await console.ask("CREATE", type="stream", name="log"))[0] == 201
    for _ in range(3):
        await node.send("log", b"x")
    _, stream = await console.ask("READ", type="stream", name="log")
    assert (stream["appended"], stream["next_offset"], stream["type"]) == (3, 3, "stream")
    for bounds in ({"end": -1}, {"start": 2**63 - 1}, {"start": -(2**63), "end": 0}):
        status, found = await console.ask("columns", bounds, type="stream", name="log")
        assert (status, found["arrow"]) == (200, b"")


async def test_a_virtual_host_sums_up(node: weft.Node, console: Console) -> None:
    await node.send("one", b"x")
    await node.send("two", b"x")
    (vhost,) = await console.rows("vhost")
    assert (vhost["tag"], vhost["ready"], vhost["connections"]) == ("here:/", 2, 1)
