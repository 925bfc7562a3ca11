"""A node dies with the acknowledgement of a message: its next process delivers the message again, a receiver that asked
for it sees it once.

Owns the instants at which the node may die, seen from a receiver that lives: after it accepted, and before. The node is
stopped first, so that nothing of the receiver's word can have been stored. Rule: docs/guides/idempotency.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from system.fabrics import Fabric, until
from weft.client import Message

WAIT_S = 30.0


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    with Fabric(tmp_path) as fabric:
        fabric.add("node")
        fabric.channel("node").queue_declare("jobs", durable=True)
        yield fabric


def die(fabric: Fabric) -> None:
    fabric.kill("node")
    fabric.restart("node")


async def seen(fabric: Fabric, *, once: bool, accepts: bool) -> tuple[list[bytes], int]:
    """What a receiver is handed while the node dies with its first message: accepted before, or only afterwards."""
    client = weft.connect(fabric.url("node"), timeout_s=WAIT_S)
    async with client, client.receive("jobs", accept="explicit", once=once, timeout_s=WAIT_S) as jobs:
        await client.send("jobs", b"first", timeout_s=WAIT_S)
        held: Message = await anext(jobs)
        fabric.pause("node")
        if accepts:
            held.accept()  # to nobody
        await asyncio.to_thread(die, fabric)
        await client.send("jobs", b"last", timeout_s=WAIT_S)
        got = [held.data]
        while got[-1] != b"last":
            message = await anext(jobs)
            got.append(message.data)
            held.accept()
            message.accept()
        return got, jobs.repeated


@pytest.mark.parametrize("accepts", [True, False], ids=["accepted", "in its hands"])
def test_what_a_crash_brings_again_is_not_handed_over_again(fabric: Fabric, accepts: bool) -> None:
    assert asyncio.run(seen(fabric, once=True, accepts=accepts)) == ([b"first", b"last"], 1)
    # The node has heard it at last: nothing is left for anybody.
    channel = fabric.channel("node")
    until(lambda: channel.queue_declare("jobs", passive=True).method.message_count == 0)
    die(fabric)
    assert fabric.channel("node").queue_declare("jobs", passive=True).method.message_count == 0


def test_who_does_not_ask_for_it_sees_it_again(fabric: Fabric) -> None:
    assert asyncio.run(seen(fabric, once=False, accepts=True)) == ([b"first", b"first", b"last"], 0)
