"""Messaging inside the process, on a scripted engine: what receivers hand out and what goes back."""

from __future__ import annotations

import asyncio
import gc
from typing import cast

import pytest
import pytest_asyncio

from unit.node.fake import FakeEngine
from weft._kernel import Engine
from weft.model.errors import Unavailable
from weft.node.local import Post


class Setup:
    """A post office on a scripted engine."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.changes = 0
        self.post = Post(cast("Engine", self.engine), self.changed)

    def changed(self) -> None:
        self.changes += 1

    def deliver(self, handle: int, *bodies: bytes) -> None:
        self.engine.deliveries[handle] = [(tag, "x", "k", False, {}, body, 0) for tag, body in enumerate(bodies, 1)]
        self.post.deliver()


@pytest_asyncio.fixture
async def setup() -> Setup:
    return Setup()


async def test_messages_wait_for_their_reader(setup: Setup) -> None:
    receiver = setup.post.subscribe("/", "q", 10)
    setup.deliver(1, b"a", b"b")
    assert [(await anext(receiver)).body, (await anext(receiver)).body] == [b"a", b"b"]


async def test_a_reader_waits_for_messages(setup: Setup) -> None:
    receiver = setup.post.subscribe("/", "q", 10)
    waiting = asyncio.create_task(receiver.__anext__())
    await asyncio.sleep(0)
    assert not waiting.done()
    setup.deliver(1, b"a")
    assert (await waiting).body == b"a"


async def test_a_reader_that_gave_up_loses_nothing(setup: Setup) -> None:
    receiver = setup.post.subscribe("/", "q", 10)
    waiting = asyncio.create_task(receiver.__anext__())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    setup.deliver(1, b"a")
    assert (await anext(receiver)).body == b"a"


async def test_two_readers_share_a_receiver(setup: Setup) -> None:
    receiver = setup.post.subscribe("/", "q", 10)
    readers = [asyncio.create_task(receiver.__anext__()) for _ in range(2)]
    await asyncio.sleep(0)
    setup.deliver(1, b"a")
    await asyncio.sleep(0)
    setup.deliver(1, b"b")
    assert {(await reader).body for reader in readers} == {b"a", b"b"}


async def test_each_outcome_is_told_once(setup: Setup) -> None:
    receiver = setup.post.subscribe("/", "q", 10)
    setup.deliver(1, b"a", b"b", b"c")
    first, second, third = [await anext(receiver) for _ in range(3)]
    first.accept()
    first.reject()
    second.reject()
    third.release()
    assert setup.engine.told("settle") == [(1, 1, "accepted"), (1, 2, "rejected"), (1, 3, "released")]


async def test_closing_ends_the_loop_and_leaves_the_rest_to_the_queue(setup: Setup) -> None:
    receiver = setup.post.subscribe("/", "q", 10)
    setup.deliver(1, b"a", b"b")
    async for message in receiver:
        receiver.close()
        message.accept()
    assert setup.engine.told("unsubscribe") == [(1,)]
    assert setup.engine.told("settle") == []


async def test_closing_wakes_who_waits(setup: Setup) -> None:
    async with setup.post.subscribe("/", "q", 10) as receiver:
        waiting = asyncio.create_task(receiver.__anext__())
        await asyncio.sleep(0)
    await asyncio.wait([waiting])
    assert isinstance(waiting.exception(), StopAsyncIteration)


async def test_a_receiver_nobody_holds_is_closed(setup: Setup) -> None:
    receiver = setup.post.subscribe("/", "q", 10)
    del receiver
    gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert setup.engine.told("unsubscribe") == [(1,)]


async def test_the_node_is_told_that_something_changed(setup: Setup) -> None:
    assert await setup.post.send("/", "", "q", b"a", {}) == 1
    assert setup.changes == 1


async def test_senders_wait_while_memory_is_full(setup: Setup) -> None:
    setup.post.hold(True)
    sending = asyncio.create_task(setup.post.send("/", "", "q", b"a", {}))
    await asyncio.sleep(0)
    assert not setup.engine.told("publish")
    setup.post.hold(False)
    assert await sending == 1


async def test_a_sender_in_a_hurry_lets_the_loop_turn(setup: Setup) -> None:
    turned = asyncio.Event()
    asyncio.get_running_loop().call_soon(turned.set)
    while not turned.is_set():
        await setup.post.send("/", "", "q", b"a", {})


async def test_a_sender_waits_until_its_message_is_safe(setup: Setup) -> None:
    setup.engine.needs = (3, 2)
    sending = asyncio.create_task(setup.post.send("/", "", "q", b"kept", {}))
    for setup.engine.disk in ((2, 2), (3, 1), (3, 2)):
        await asyncio.sleep(0)
        assert not sending.done()
        setup.post.disk_moved()
    assert await sending == 1


async def test_a_sender_is_told_when_the_disk_says_no_more(setup: Setup) -> None:
    setup.engine.needs = (1, 1)
    sending = asyncio.create_task(setup.post.send("/", "", "q", b"kept", {}))
    await asyncio.sleep(0)
    setup.post.abandon()
    with pytest.raises(Unavailable, match="before the message was on disk"):
        await sending
