"""Gateways: letters over HTTP into a node and out of it, answered when they are safe, once each whatever fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Self

import pytest
from aiohttp import ClientSession, web

import weft
from unit.network.fabric import until
from weft.gateway import Bridge, Letter, open_source, open_target
from weft.gateway.fabric import FabricSource, FabricTarget
from weft.gateway.http import HttpSource, HttpTarget
from weft.model.errors import ConfigError, Unavailable

ONCE = {"x-barrier": "message-id"}


@asynccontextmanager
async def running(bridge: Bridge) -> AsyncIterator[Bridge]:
    work = asyncio.create_task(bridge.run())
    try:
        yield bridge
    finally:
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work


class Shelf:
    """A system of a test's own: letters that are given until they are done."""

    def __init__(self, count: int) -> None:
        self.left = {f"letter-{number}": f"body {number}".encode() for number in range(count)}
        self.opened = 0
        self._given: set[str] = set()

    async def __aenter__(self) -> Self:
        self.opened += 1
        self._given.clear()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """What is not done is still on the shelf."""

    async def pull(self, count_max: int) -> Sequence[Letter]:
        found = [Letter(id_, body) for id_, body in self.left.items() if id_ not in self._given][:count_max]
        if not found:
            await asyncio.Event().wait()
        self._given.update(letter.id for letter in found)
        return found

    async def done(self, letters: Sequence[Letter]) -> None:
        for letter in letters:
            del self.left[letter.id]

    async def refuse(self, letter: Letter, why: str) -> None:
        raise AssertionError(f"{letter} was refused: {why}")


class Faulty:
    """A target that fails after it has sent, every other time: its source must give the same again."""

    def __init__(self, target: FabricTarget) -> None:
        self._target = target
        self.pushes = 0

    async def __aenter__(self) -> Self:
        await self._target.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._target.__aexit__(*exc)

    async def push(self, letters: Sequence[Letter]) -> dict[str, str]:
        await self._target.push(letters)
        self.pushes += 1
        if self.pushes % 2:
            raise Unavailable("the line went dead before the answer")
        return {}


async def test_what_is_sent_again_after_a_failure_is_one_message() -> None:
    async with weft.Node(name="gateway-test") as node:
        node.declare_queue("orders", arguments=ONCE)
        shelf, target = Shelf(250), Faulty(FabricTarget("weft+memory:gateway-test", "orders"))
        async with running(Bridge(shelf, target, batch_max=50)) as bridge:
            await until(lambda: not shelf.left)
            assert bridge.moved == 250
        assert shelf.opened > 3
        assert node.snapshot()["queues"][0]["ready"] == 250


async def test_a_webhook_answers_when_its_letter_is_safe_and_posts_carry_it_on() -> None:
    got: Counter[str] = Counter()
    said: list[web.Request] = []

    async def hook(request: web.Request) -> web.Response:
        said.append(request)
        if len(said) == 1:
            return web.Response(status=503)
        got[(await request.read()).decode()] += 1
        return web.Response(status=400 if request.headers["Idempotency-Key"] == "bad" else 204)

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with weft.Node(name="gateway-test") as node:
        node.declare_queue("dead")
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        node.declare_queue("orders", arguments=ONCE | dead)
        address = "weft+memory:gateway-test"
        source, inward = HttpSource("127.0.0.1", 0, "/in"), FabricTarget(address, "orders")
        outward = HttpTarget(f"http://127.0.0.1:{runner.addresses[0][1]}/hook")
        async with running(Bridge(source, inward)), ClientSession() as session:
            await until(lambda: source.port)
            for id_ in ("1", "2", "1", "bad"):
                headers = {"Idempotency-Key": id_, "X-Letter-Kind": "order", "Content-Type": "text/plain"}
                async with session.post(f"http://127.0.0.1:{source.port}/in", data=id_, headers=headers) as answer:
                    assert answer.status == 204
            assert node._running.engine.queue_stats("/", "orders") == (3, 0, 0), "a copy is held back by its id"
        async with running(Bridge(FabricSource(address, "orders"), outward)) as bridge:
            await until(lambda: (bridge.moved, bridge.refused) == (2, 1))
            await node.send("orders", b"3", message_id="two\nlines")
            await until(lambda: (bridge.moved, bridge.refused) == (2, 2))
        assert set(got) == {"1", "2", "bad"}
        assert said[-1].headers["X-Letter-kind"] == "order"
        await until(lambda: node._running.engine.queue_stats("/", "dead") == (2, 0, 0))
    await runner.cleanup()


async def test_two_that_say_the_same_are_two() -> None:
    """Without ids of their own, over a webhook and through a queue: a barrier lets both in."""
    address = "weft+memory:gateway-test"
    async with weft.Node(name="gateway-test") as node:
        for queue in ("in", "out"):
            node.declare_queue(queue, arguments=ONCE)
        source = HttpSource("127.0.0.1", 0, "/in")
        async with running(Bridge(source, FabricTarget(address, "in"))), ClientSession() as session:
            await until(lambda: source.port)
            for _ in range(2):
                async with session.post(f"http://127.0.0.1:{source.port}/in", data=b"ping") as answer:
                    assert answer.status == 204
        assert node._running.engine.queue_stats("/", "in") == (2, 0, 0)
        node.declare_queue("nameless")
        for _ in range(2):
            await node.send("nameless", b"ping")
        async with running(Bridge(FabricSource(address, "nameless"), FabricTarget(address, "out"))) as bridge:
            await until(lambda: bridge.moved == 2)
        assert node._running.engine.queue_stats("/", "out") == (2, 0, 0)


def test_a_stomp_message_is_named_by_its_publisher_or_by_its_broker() -> None:
    stomp = pytest.importorskip("weft.gateway.stomp")
    told: list[Letter] = []

    class Loop:
        def call_soon_threadsafe(self, _put: object, letter: Letter) -> None:
            told.append(letter)

    for port in (1, 2):
        link = object.__new__(stomp.Link)
        link._loop, link._place, link.letters = Loop(), [("host", port)], asyncio.Queue()
        for own in ({}, {"id": "7"}, {"amqp-message-id": "m"}, {"weft-message-id": "w"}):
            headers = {"message-id": "12", "destination": "/queue/q", **own}
            link.on_message(SimpleNamespace(headers=headers, body=b"ping"))
    named = [letter.id for letter in told]
    assert named == [
        *["stomp://host:1/queue/q#12"] * 2,
        *"mw",
        *["stomp://host:2/queue/q#12"] * 2,
        *"mw",
    ]
    assert told[1].headers == {"id": "7"}


async def test_posts_are_told_to_come_again_while_the_fabric_is_away() -> None:
    source = HttpSource("127.0.0.1", 0, "/in")
    async with source, ClientSession() as session:
        post = asyncio.create_task(session.post(f"http://127.0.0.1:{source.port}/in", data=b"x"))
        assert len(await source.pull(10)) == 1
        assert not post.done()
        await source.__aexit__()
        assert (await post).status == 503


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("amqp://host", "names no address"),
        ("stomp://host", "is not stomp://"),
        ("gopher://host/x", "cannot be a source"),
        ("https://host/x", "cannot be a source"),
        ("http://host:wide", "is no URL"),
    ],
)
def test_a_wrong_place_is_told(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_source(url)


def test_places_by_their_url() -> None:
    assert isinstance(open_source("amqp://host/vhost#orders"), FabricSource)
    assert isinstance(open_target("https://host/hook"), HttpTarget)
