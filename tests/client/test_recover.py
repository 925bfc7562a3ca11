"""The recovery by hand: what is reported before anything is done, and what is done."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import weft
from weft.cli import main

DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


async def recover(node: weft.Node, *words: str) -> int:
    return await asyncio.to_thread(main, ["recover", "--url", f"amqp://127.0.0.1:{node.ports[0]}", *words])


async def test_a_report_tells_what_is_missing_and_what_is_there_twice(
    node: weft.Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = tmp_path / "sent.txt"
    sent.write_text("1\n2\n3\n4\n")
    async with weft.connect("weft+memory:here") as fabric:
        for number in (1, 2, 2, 4):
            await fabric.send("orders", b"", message_id=str(number))
    assert await recover(node, "orders", "--sent", str(sent), "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "queue": "orders", "messages": 4, "without_id": 0, "twice": ["2"], "sent": 4, "missing": ["3"]
    }  # fmt: skip
    assert await recover(node, "orders", "--purge") == 1
    assert "purged: 4 messages, 0 left" in capsys.readouterr().out
    assert await recover(node, "orders") == 0
    assert "orders: 0 messages" in capsys.readouterr().out
    assert await recover(node, "orders", "--sent", "/nowhere") == 2
    assert await recover(node, "no such queue") == 1


async def test_dead_letters_go_back(node: weft.Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.declare_queue("dead")
    node.declare_queue("work", arguments=DEAD)
    async with weft.connect("weft+memory:here") as fabric:
        await fabric.send_many("work", [b"1", b"2"])
        async with fabric.receive("work", accept="explicit") as messages:
            for _ in range(2):
                (await anext(messages)).reject()
        async with fabric.receive("dead", browse=True, timeout_s=30) as messages:
            assert [(await anext(messages)).data for _ in range(2)] == [b"1", b"2"]
        assert await recover(node, "dead", "--back") == 0
        assert "moved: 2 messages, 0 left" in capsys.readouterr().out
        async with fabric.receive("work", timeout_s=30) as messages:
            assert [(await anext(messages)).data for _ in range(2)] == [b"1", b"2"]


@pytest.mark.parametrize("place", ["aside", "topics/late.orders"])
async def test_everything_goes_elsewhere(node: weft.Node, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    node.declare_queue("orders")
    node.declare_queue("aside")
    node.declare_exchange("topics", "topic")
    node.bind("topics", "aside", "late.*")
    async with weft.connect("weft+memory:here") as fabric:
        for number in (b"1", b"2", b"3"):
            await fabric.send("orders", number, message_id="\x1b[2J")
        assert await recover(node, "orders", "--to", place) == 1
        told = capsys.readouterr().out
        assert "moved: 3 messages, 0 left" in told
        assert "1 there more than once: \\x1b[2J" in told, "an id is shown, not obeyed"
        async with fabric.receive("aside", timeout_s=30) as messages:
            assert [(await anext(messages)).data for _ in range(3)] == [b"1", b"2", b"3"]
    assert await recover(node, "aside", "--to", "nowhere") == 1
