"""A fabric as rules and scaling see it, over the client.

Owns the translation between what management says and what they look at. Rows, events and requests come in; values of
`weft.rules` and `weft.scaling` go out.
It must never decide anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from weft.cli import remote
from weft.client import connect
from weft.client.fabric import Fabric
from weft.client.management import Management
from weft.model.errors import Refused, Unavailable
from weft.pipeline.exchanges import COMMANDS, make
from weft.rules import Observation, Rule

EVENTS = "weft.events"
CONNECT_S = 5.0
"""Time to reach the node at the start; later the client tries for as long as the command runs."""
ANSWER_S = 30.0


class FabricSource:
    """One node's objects, events and requests."""

    def __init__(self, fabric: Fabric, node: str, vhost: str | None = None) -> None:
        self._fabric = fabric
        self._management = Management(fabric, vhost=vhost)
        self.node = node
        self._shown: dict[str, dict[str, object]] = {}

    async def observe(self, kind: str) -> list[Observation]:
        """Every object of a class."""
        return [_observation(kind, row) for row in await self._management.query(kind)]

    async def events(self) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        """Every event from now on."""
        async for message in self._fabric.receive(f"/exchanges/{EVENTS}/%23"):
            body = message.body
            if isinstance(body, dict):
                yield str(message.annotations.get("x-routing-key") or message.subject or ""), body

    async def send(self, address: str, body: Mapping[str, object]) -> None:
        """Send a JSON message."""
        await self._fabric.send(address, dict(body))

    async def ask(self, address: str, body: Mapping[str, object]) -> Mapping[str, Any]:
        """Send a JSON message and wait for the answer."""
        reply = await self._fabric.request(address, dict(body), timeout_s=ANSWER_S)
        answer = reply.body
        if not isinstance(answer, dict):
            raise Unavailable(f"{address} answered no JSON object")
        return answer

    async def tell(self, kind: str, event: str, name: str, values: Mapping[str, object]) -> None:
        """Publish an event; the node does, for whoever may monitor it."""
        arguments = {"class": kind, "kind": event, "object": name, "values": dict(values)}
        await self._management.call("node", None, "tell", arguments)

    async def register(self, rules: Iterable[Rule]) -> None:
        """Let the node's management show these rules."""
        for rule in rules:
            about: dict[str, object] = {
                "object": rule.watched,
                "attribute": rule.attribute or rule.event,
            }
            values = about if rule.threshold is None else about | {"threshold": rule.threshold}
            await self._management.create("rule", rule.name, values)
            self._shown[rule.name] = values

    async def report(self, rule: str, crossed: bool, fired: int) -> None:
        """How a rule stands; a node that was started anew is told of the rule again."""
        if rule not in self._shown:
            return
        standing = {"crossed": crossed, "fired": fired}
        try:
            await self._management.call("rule", rule, "report", standing)
        except Refused as refused:
            if refused.code != 404:
                raise
            await self._management.create("rule", rule, self._shown[rule])
            await self._management.call("rule", rule, "report", standing)

    async def withdraw(self, rules: Iterable[Rule]) -> None:
        """Nobody watches by these rules any longer."""
        for rule in rules:
            await self._management.delete("rule", rule.name)

    async def queue(self, name: str) -> Mapping[str, Any] | None:
        """A queue's statistics."""
        row = await self._management.find("queue", name)
        return None if row is None else _observation("queue", row).attributes

    async def prepare(self, address: str) -> None:
        """Make the queue of requests, and let the commands of the data pipeline come there too."""
        await self._management.create("queue", address, {"durable": True})
        await make(self._management, COMMANDS, say=lambda _: None)
        binding = {"source": COMMANDS, "kind": "queue", "destination": address, "routing_key": "scale.#"}
        await self._management.create("binding", "", binding)

    async def requests(self, address: str) -> AsyncIterator[bytes]:
        """Bodies sent to an address."""
        async for message in self._fabric.receive(address):
            data = message.data
            try:
                yield data if isinstance(data, bytes) else json.dumps(data).encode()
            except (TypeError, ValueError, RecursionError):
                yield b""  # nothing that JSON can say: no request


def _observation(kind: str, row: Mapping[str, Any]) -> Observation:
    """A row, with what people say beside what it says: messages, and times in milliseconds."""
    attributes = {key: value for key, value in row.items() if value is not None}
    if "ready" in attributes:
        attributes["messages"] = attributes["ready"] + attributes.get("unsettled", 0)
        # How long messages wait now; the percentiles are of all there ever were.
        attributes["wait_ms"] = attributes.get("oldest_ms", 0)
    for key, value in row.items():
        if key.endswith("_us") and isinstance(value, int | float):
            attributes[f"{key.removesuffix('_us')}_ms"] = value / 1_000
    return Observation(kind, str(row.get("name", "")), attributes)


def run_with(work: Callable[[FabricSource], Awaitable[None]], options: argparse.Namespace) -> int:
    """Connect, work until done or interrupted by SIGINT or SIGTERM, close."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        async with connect(options.url, **remote.patience(options, CONNECT_S)) as fabric:
            node = await Management(fabric).read("node")
            await work(FabricSource(fabric, str(node["name"]), options.vhost))

    with suppress(asyncio.CancelledError):
        asyncio.run(main())
    return 0
