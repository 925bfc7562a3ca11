"""A node that everything goes wrong with, for those who want to hear what it tells then.

Owns one node in two lives, its neighbour that ends for good, and a folder in which nothing can be made for a while.
What it told comes out, as bodies of events. It must never feed an event by hand: each follows from what was done.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import weft
from unit.network.fabric import flowing, until
from weft.model.limits import Limits

NAME = "frail"
MEMORY_BYTES = 4 << 20
PIECE = bytes(256 << 10)
PIECES = 40
"""More than is read before anybody asks."""
Event = dict[str, Any]


class Ear:
    """What a node tells, as it comes."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver
        self.events: list[Event] = []

    async def hear(self, *wanted: tuple[str, str]) -> None:
        """Take events until these were among them."""
        async with asyncio.timeout(60):
            while set(wanted) - {(event["class"], event["kind"]) for event in self.events}:
                message = await anext(self._receiver)
                message.accept()
                self.events.append(json.loads(message.body))


async def fail(folder: Path) -> list[Event]:
    """Everything that a node tells when things go wrong with it."""
    # Nobody waits for a node that may have a message: what is undecided is told at once.
    limits = Limits(doubt_s=0, memory_bytes_max=MEMORY_BYTES)
    options: dict[str, Any] = {"name": NAME, "listen": "127.0.0.1:0", "data_dir": folder / "one", "limits": limits}
    async with weft.Node(name="neighbour", listen="127.0.0.1:0") as neighbour, weft.Node(**options) as node:
        async with node.receive("weft.events/#") as receiver:
            ear = Ear(receiver)
            await _lose_neighbour(node, neighbour, ear)
            await _fill_memory(node, ear)
        node.declare_queue("heard")
        node.bind("weft.events", "heard", "node.started.#")
        node.bind("weft.events", "heard", "queue.undecided.#")
    async with weft.Node(**options) as node, node.receive("heard") as receiver:
        again = Ear(receiver)
        await again.hear(("node", "started"), ("queue", "undecided"))
    return [*ear.events, *again.events, *await _lose_disk(folder / "other"), *await _lose_reads(folder / "third")]


async def _lose_neighbour(node: weft.Node, neighbour: weft.Node, ear: Ear) -> None:
    """A route of the node's own, and one of its neighbour's that takes from a queue here, until that one is gone."""
    node.declare_exchange("wide", "topic")
    neighbour.declare_exchange("wide", "topic")
    neighbour.declare_queue("goal")
    node.declare_queue("drained")
    node.add_link("up", [f"amqp://127.0.0.1:{neighbour.ports[0]}"])
    node.add_route("up", "static", exchange="wide", key="#")
    neighbour.add_link("down", [f"amqp://127.0.0.1:{node.ports[0]}"])
    neighbour.add_route("down", "queue", queue="drained", key="goal")
    await until(lambda: flowing(node) and flowing(neighbour))
    await node.send("drained", b"arrives", delivery_mode=2)
    assert await _take(neighbour, "goal") == b"arrives"
    await ear.hear(("uplink", "up"), ("route", "up"))
    await neighbour.stop()
    await ear.hear(("uplink", "down"), ("route", "down"))
    await node.send("drained", b"stays", delivery_mode=2)


async def _fill_memory(node: weft.Node, ear: Ear) -> None:
    """More than may be kept in memory, until it is dropped."""
    node.declare_queue("large", durable=False)

    async def fill() -> None:
        while True:
            await node.send("large", PIECE)

    filling = asyncio.create_task(fill())
    await ear.hear(("node", "memory_alarm"))
    filling.cancel()
    node.delete_queue("large")
    await ear.hear(("node", "memory_alarm_cleared"))


async def _lose_disk(folder: Path) -> list[Event]:
    """No file can be made for messages, and then they can be made again."""
    async with weft.Node(name=NAME, data_dir=folder) as node, node.receive("weft.events/node.#") as receiver:
        ear, segments, away = Ear(receiver), folder / "messages" / "segments", folder / "away"
        node.declare_queue("stored")
        segments.rename(away)
        sending = asyncio.create_task(node.send("stored", b"waits", delivery_mode=2))
        await ear.hear(("node", "disk_alarm"))
        away.rename(segments)
        await ear.hear(("node", "disk_alarm_cleared"))
        await sending
    return ear.events


async def _lose_reads(folder: Path) -> list[Event]:
    """The second half of what waits cannot be read, nor put aside as damaged, and then it can be read again."""
    async with weft.Node(name=NAME, data_dir=folder) as node:
        node.declare_queue("stored")
        for _ in range(PIECES):
            await node.send("stored", PIECE, delivery_mode=2)
    damaged, away = folder / "messages" / "damaged", folder / "away"
    (log,) = (folder / "messages" / "segments").glob("*.log")
    kept = log.read_bytes()
    async with weft.Node(name=NAME, data_dir=folder) as node, node.receive("weft.events/node.#") as receiver:
        ear = Ear(receiver)
        damaged.rename(away)
        os.truncate(log, len(PIECE) * PIECES // 2)
        taking = asyncio.create_task(_take_all(node))
        await ear.hear(("node", "read_alarm"))
        assert "damaged/" in node.management.peers.alarms["read_alarm"]
        log.write_bytes(kept)
        away.rename(damaged)
        await ear.hear(("node", "read_alarm_cleared"))
        assert not node.management.peers.alarms
        await taking
    return ear.events


async def _take_all(node: weft.Node) -> None:
    async with asyncio.timeout(60), node.receive("stored") as receiver:
        for _ in range(PIECES):
            message = await anext(receiver)
            assert message.body == PIECE
            message.accept()


async def _take(node: weft.Node, queue: str) -> bytes:
    async with asyncio.timeout(60), node.receive(queue) as receiver:
        message = await anext(receiver)
        message.accept()
        return bytes(message.body)
