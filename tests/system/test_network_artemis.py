"""A real ActiveMQ Artemis as a member of the fabric: routes from it and to it, while it dies and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import weft
from artemis import Artemis
from system.fabrics import Fabric, until
from weft.client import Receiver
from weft.spark.files import Files

pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.timeout(300)]  # the first run fetches the broker
COUNT = 300
WAIT_S = 120.0
FILE = """
[fabric]
name = "with another broker"

[nodes.here]
listen = "127.0.0.1:{port}"
queues = ["work", "out", "alerts"]
exchanges = {{ events = "topic" }}
bindings = ["events -> alerts : alerts.#"]

[nodes.events]
url = "{artemis}"

[[links]]
from = "here"
to = "events"
retry_max_s = 1

[[routes]]
name = "pulled"
kind = "queue"
queue = "route.to.weft"
key = "work"

[[routes]]
name = "pushed"
kind = "queue"
direction = "push"
queue = "out"
key = "route.from.weft"

[[routes]]
name = "published"
kind = "static"
direction = "push"
exchange = "events"
key = "news.today"

[[routes]]
name = "subscribed"
kind = "static"
exchange = "events"
key = "alerts.#"
"""


@pytest.fixture
async def clients(fabric: Fabric, artemis: Artemis) -> AsyncIterator[tuple[weft.Fabric, weft.Fabric]]:
    async with weft.connect(fabric.url("here")) as here, weft.connect(artemis.url) as there:
        yield here, there


@pytest.fixture
def fabric(tmp_path: Path, artemis: Artemis) -> Iterator[Fabric]:
    """A node that the fabric file has made what it is, and its links to Artemis."""
    with Fabric(tmp_path) as fabric:
        fabric.add("here")
        file = tmp_path / "fabric.toml"
        file.write_text(FILE.format(port=fabric.port("here"), artemis=artemis.url))
        assert "+ uplink events" in fabric.command(f"weft fabric plan {file}")
        said = fabric.command(f"weft fabric apply {file}")
        assert f"events (amqp://127.0.0.1:{artemis.port}): another broker, left as it is" in said
        assert "guest" not in said
        assert "here (amqp://127.0.0.1:" in said
        assert "as the file wants it" in fabric.command(f"weft fabric plan {file}")
        until(lambda: is_flowing(fabric), WAIT_S)
        yield fabric


def is_flowing(fabric: Fabric) -> bool:
    return [row["state"] for row in fabric.rows("here", "route")] == ["flowing"] * 4


async def collect(messages: Receiver, numbers: range) -> set[int]:
    """Messages until each number has come: what was on the way when an end died may come again."""
    found: set[int] = set()
    while not found.issuperset(numbers):
        found.add((await anext(messages)).body)
    return found


async def send(fabric: weft.Fabric, address: str, half: asyncio.Barrier | None = None) -> None:
    for number in range(COUNT):
        if number == COUNT // 2 and half is not None:
            await half.wait()
        await fabric.send(address, number, timeout_s=WAIT_S)


async def test_queue_routes_while_it_dies(
    fabric: Fabric, clients: tuple[weft.Fabric, weft.Fabric], artemis: Artemis
) -> None:
    """Half of the messages is on the way in either direction when Artemis is killed: none is lost."""
    here, there = clients
    half = asyncio.Barrier(3)

    async def die() -> None:
        await half.wait()
        await asyncio.to_thread(artemis.kill)
        await asyncio.to_thread(artemis.restart)

    numbers = range(COUNT)
    async with (
        here.receive("work", timeout_s=WAIT_S) as inwards,
        there.receive("route.from.weft", timeout_s=WAIT_S) as outwards,
        asyncio.TaskGroup() as tasks,
    ):
        found = [tasks.create_task(collect(messages, numbers)) for messages in (inwards, outwards)]
        for task in (send(there, "route.to.weft", half), send(here, "out", half), die()):
            tasks.create_task(task)
    assert [task.result() for task in found] == [set(numbers)] * 2
    await asyncio.to_thread(until, lambda: is_flowing(fabric), WAIT_S)
    rows = await asyncio.to_thread(fabric.rows, "here", "link")
    assert [(row["state"], row["connects"], row["product"]) for row in rows] == [
        ("operational", 2, "apache-activemq-artemis")
    ]


async def test_topics_both_ways(fabric: Fabric, clients: tuple[weft.Fabric, weft.Fabric], artemis: Artemis) -> None:
    """Events cross as topics; those of a time when the link is down wait at their source."""
    here, there = clients
    async with there.subscribe("news.*", timeout_s=WAIT_S) as news, here.receive("alerts", timeout_s=WAIT_S) as alerts:
        for number in range(10):
            await here.send("/exchange/events/news.today", number)
            await there.publish("alerts.fire", number)
        with pytest.raises(weft.Undelivered):
            await here.send("/exchange/events/news.tomorrow", "nobody asked for it")
        assert [(await anext(news)).body for _ in range(10)] == list(range(10))
        assert [(await anext(alerts)).body for _ in range(10)] == list(range(10))
        await asyncio.to_thread(fabric.stop, "here")
        for number in range(10, 20):
            await there.publish("alerts.water", number)
        await asyncio.to_thread(fabric.restart, "here")
        assert await collect(alerts, range(10, 20)) <= set(range(20))


async def test_one_command_brings_a_queue_into_a_stream(tmp_path: Path, artemis: Artemis) -> None:
    """What was in the queue can be read as Spark reads it, as often as anybody likes."""
    wanted = [b"paid %d" % number for number in range(20)]
    async with weft.connect(artemis.url) as there:
        for body in wanted:
            await there.send("payments", body, timeout_s=WAIT_S)
    with Fabric(tmp_path) as fabric:
        fabric.add("here")
        line = f"weft ingest --url {fabric.url('here')} {artemis.url} --queue payments"
        assert "option('streams', 'payments')" in await asyncio.to_thread(fabric.command, line)
        files = Files(str(fabric.folder / "here"))

        def bodies() -> list[bytes]:
            (extent,) = files.extents(["payments"])
            batches = files.read(extent, extent.first, extent.end, ["body"])
            return [body for batch in batches for body in batch.column("body").to_pylist()]

        await asyncio.to_thread(until, lambda: len(bodies()) == len(wanted), WAIT_S)
        assert bodies() == bodies() == wanted
