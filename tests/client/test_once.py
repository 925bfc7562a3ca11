"""A receiver that is handed each message once: what counts as the same, and whose decision counts for a copy."""

from __future__ import annotations

import asyncio

import weft
from client.test_strangers import NO_MESSAGES, send_all
from weft.client import once

WAIT_S = 30.0


async def test_copies_are_accepted_and_held_back(node: weft.Node, url: str) -> None:
    async with weft.connect(url) as fabric:
        for number in (1, 1, 2, 1):
            await fabric.send("q", f"{number}", message_id=number)
        await fabric.send("q", "last")
        async with fabric.receive("q", once=True, timeout_s=WAIT_S) as messages:
            assert [(await anext(messages)).body for _ in range(3)] == ["1", "2", "last"]
            assert messages.repeated == 2
    assert node.snapshot()["stats"]["ready"] == 0


async def test_a_decision_counts_for_the_copies_that_came_before_it(url: str) -> None:
    async with weft.connect(url) as fabric:
        for _ in range(3):
            await fabric.send("q", "same", message_id="m")
        await fabric.send("q", "other")
        async with fabric.receive("q", accept="explicit", once=True, timeout_s=WAIT_S) as messages:
            first, other = await anext(messages), await anext(messages)
            assert (first.body, other.body, messages.repeated) == ("same", "other", 2)
            other.accept()
            first.release()
            again = await anext(messages)
            assert again.body == "same"
            again.accept()
            assert await messages.next(0.05) is None, "released with the first, accepted with the second"


async def test_without_an_id_nothing_is_the_same(node: weft.Node, url: str) -> None:
    for _ in range(2):
        await node.send("q", "a")
    async with weft.connect(url) as fabric, fabric.receive("q", once=True, timeout_s=WAIT_S) as messages:
        assert [(await anext(messages)).data for _ in range(2)] == [b"a", b"a"]
        assert messages.repeated == 0


def test_what_is_remembered_is_bounded() -> None:
    memory = once.Once()
    for number in range(once.ACCEPTED_MAX + 10):
        memory.note(number)
    assert list(memory._accepted) == list(range(10, once.ACCEPTED_MAX + 10))


async def test_what_is_no_message_is_handed_over_for_the_program_to_reject(node: weft.Node, url: str) -> None:
    async with weft.connect(url) as fabric, fabric.receive("q", accept="explicit", once=True, timeout_s=WAIT_S) as got:
        await asyncio.to_thread(send_all, node.ports[0], "/queues/q")
        for _ in NO_MESSAGES:
            (await anext(got)).reject()
        await fabric.send("q", "after them")
        assert (await anext(got)).body == "after them"
        assert got.repeated == 0
