"""A client whose node dies goes on at another under the same reply address, and what it has asked for still arrives."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import weft
from system.fabrics import Fabric, until
from weft.client import Message
from weft.client.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPICS = ["amq.topic pull", "amq.topic push"]
LOCAL = ["service_gateway.direct push", *TOPICS]
ASKED = 8
"""Fewer than a gateway lets one node of a service have unfinished."""
MANY = 240
WAIT_S = 120.0


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    """Two nodes for clients and two for services, each linked to a gateway alone."""
    with Fabric(tmp_path) as fabric:
        fabric.add("gateway")
        fabric.channel("gateway").exchange_declare("service_gateway.direct", "direct", durable=True)
        for name, routes in (("one", LOCAL), ("two", LOCAL), ("remote", TOPICS), ("other", TOPICS)):
            config = tmp_path / f"{name}.toml"
            config.write_text(_links(fabric.url("gateway"), routes))
            fabric.add(name, "--config", str(config))
            fabric.channel(name).exchange_declare("service_gateway.direct", "direct", durable=True)
        yield fabric


def _links(gateway: str, routes: list[str]) -> str:
    lines = [
        "[[links]]",
        'name = "up"',
        f'urls = ["{gateway}"]',
        'role = "gateway"',
        "heartbeat_s = 1",
        "retry_max_s = 1",
    ]
    for route in routes:
        exchange, direction = route.split()
        lines += ["[[routes]]", 'link = "up"', 'kind = "dynamic"']
        lines += [f'exchange = "{exchange}"', f'direction = "{direction}"']
    return "\n".join(lines)


class Slow:
    """Two instances of one service at two nodes, which answer so many requests as they are let."""

    def __init__(self) -> None:
        self.begun = asyncio.Semaphore(0)
        self.served: Counter[int] = Counter()
        self.answered = 0
        self._may = asyncio.Semaphore(0)
        self._changed = asyncio.Condition()

    async def start(self, *servers: weft.Fabric) -> None:
        for server in servers:
            await server.service("service://slow", concurrency=MANY)(self._serve).start()
            await server.service("service://quick")(_echo).start()

    async def _serve(self, request: Message) -> object:
        self.served[request.body] += 1
        self.begun.release()
        await self._may.acquire()
        self.answered += 1
        async with self._changed:
            self._changed.notify_all()
        return request.body

    async def let(self, count: int) -> None:
        """Let so many more be answered, and wait until they are."""
        goal = self.answered + count
        for _ in range(count):
            self._may.release()
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(lambda: self.answered >= goal)


async def _echo(request: Message) -> object:
    return request.body


@asynccontextmanager
async def _at_work(fabric: Fabric) -> AsyncIterator[tuple[Slow, weft.Fabric]]:
    """A client at `one` that may go on at `two`, and a service that it reaches."""
    slow = Slow()
    async with (
        weft.connect(fabric.url("remote")) as server,
        weft.connect(fabric.url("other")) as other,
        weft.connect([fabric.url("one"), fabric.url("two")]) as client,
    ):
        await slow.start(server, other)
        await _answered(client)
        yield slow, client


async def test_outstanding_replies_follow_the_client_to_another_node(fabric: Fabric) -> None:
    async with _at_work(fabric) as (slow, client):
        asked = [asyncio.ensure_future(client.request("service://slow", n, timeout_s=200)) for n in range(ASKED)]
        for _ in asked:
            await slow.begun.acquire()
        address = client._replies.address if client._replies else None
        await asyncio.to_thread(fabric.kill, "one")
        await _answered(client)  # once this is, the fabric knows the new way to the same address
        await slow.let(ASKED)
        assert [reply.body for reply in await asyncio.gather(*asked)] == list(range(ASKED))
        assert client._replies is not None
        assert client._replies.address == address
        assert client.core.target is not None
        assert client.core.target.port == fabric.port("two")


async def test_every_reply_comes_once_whenever_it_was_sent(fabric: Fabric) -> None:
    async with _at_work(fabric) as (slow, client):
        asked = [asyncio.ensure_future(client.request("service://slow", n, timeout_s=200)) for n in range(MANY)]
        for _ in range(ASKED):
            await slow.begun.acquire()
        await asyncio.to_thread(_until_empty, fabric, "one")
        fabric.pause("one")
        await slow.let(80)  # these wait for a node that does not move any more
        fabric.pause("two")
        await asyncio.to_thread(fabric.kill, "one")
        await slow.let(80)  # and these for one that is dead, while nobody knows another way
        fabric.go_on("two")
        await slow.let(20)  # these while the way is being found
        await _answered(client)
        await slow.let(MANY - 180)
        async with asyncio.timeout(WAIT_S):
            assert [reply.body for reply in await asyncio.gather(*asked)] == list(range(MANY))
        assert slow.served == Counter(range(MANY))
        assert client.core.target is not None
        assert client.core.target.port == fabric.port("two")


async def test_requests_that_a_node_took_with_it_are_asked_anew_and_served_once(fabric: Fabric) -> None:
    async with _at_work(fabric) as (slow, client):
        await asyncio.to_thread(fabric.stop, "gateway")
        asked = [asyncio.ensure_future(client.request("service://slow", n, timeout_s=200)) for n in range(ASKED)]
        await asyncio.to_thread(until, lambda: _waiting(fabric, "one") >= ASKED)
        await asyncio.to_thread(fabric.kill, "one")
        await asyncio.to_thread(fabric.restart, "gateway")
        for _ in asked:
            slow._may.release()
        async with asyncio.timeout(WAIT_S):
            assert [reply.body for reply in await asyncio.gather(*asked)] == list(range(ASKED))
        assert slow.served == Counter(range(ASKED))


async def test_another_site_answers_while_one_has_no_instance(fabric: Fabric) -> None:
    async with (
        weft.connect(fabric.url("remote")) as first,
        weft.connect(fabric.url("other")) as second,
        weft.connect(fabric.url("one")) as client,
    ):

        async def answers(count: int) -> set[object]:
            asked = [client.request("service://account", n, timeout_s=WAIT_S) for n in range(count)]
            return {reply.body for reply in await asyncio.gather(*asked)}

        at_first = await _start_at(first, "first")
        await _start_at(second, "second")
        await _answered(client, "service://account")
        await _until_told(answers, {"first", "second"})
        await at_first.stop()
        assert await answers(MANY) == {"second"}
        await _start_at(first, "first")
        await _until_told(answers, {"first", "second"})


async def _start_at(server: weft.Fabric, site: str) -> Service:
    async def tell(_request: Message) -> str:
        return site

    service = server.service("service://account")(tell)
    await service.start()
    return service


async def _until_told(answers: Callable[[int], Awaitable[set[object]]], sites: set[object]) -> None:
    """Ask until both sites have answered: the way to one of them may be known later."""
    async with asyncio.timeout(WAIT_S):
        told: set[object] = set()
        while told != sites:
            told |= await answers(20)


def _waiting(fabric: Fabric, node: str) -> int:
    """Messages that wait at a node for others."""
    rows = [row for row in fabric.rows(node, "queue") if row["name"].startswith("weft.bridge.")]
    return sum(row["ready"] + row["unsettled"] for row in rows)


def _until_empty(fabric: Fabric, node: str) -> None:
    until(lambda: _waiting(fabric, node) == 0)


async def _answered(client: weft.Fabric, service: str = "service://quick") -> None:
    """Ask until an answer comes: requests or replies may find no way yet."""
    while True:
        try:
            await client.request(service, "?", timeout_s=1)
        except (weft.DeadlineExceeded, weft.Undelivered, weft.Refused):
            await asyncio.sleep(0.05)
        else:
            return
