"""Requests whose reply was lost: they are asked for, and no handler runs twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import weft
from client.test_recovery import Life, restart
from weft.client import Message, answers, service, sync
from weft.client.answers import Answer, Answers, Found, Standing

MESSAGE: Any = object()


def reply(text: str) -> Answer:
    return Answer(text.encode(), "text/plain")


def test_a_request_is_new_once() -> None:
    known, again = Answers(), object()
    assert known.begin("a", MESSAGE) is Standing.NEW
    assert known.begin("a", again) is Standing.BEGUN  # type: ignore[arg-type]
    assert known.ask(["a", "b"], is_final=False) == Found(["a"], [], [])
    assert known.end("a", reply("A")) == [MESSAGE, again]
    assert known.begin("a", MESSAGE) is Standing.ANSWERED
    assert known.reply("a") == reply("A")
    assert known.ask(["a", "b"], is_final=False) == Found([], [], [("a", reply("A"))])


def test_what_was_asked_for_in_vain_for_good_is_never_served() -> None:
    known = Answers()
    known.ask(["a"], is_final=False)
    assert known.begin("a", MESSAGE) is Standing.NEW
    known.ask(["a", "b"], is_final=True)
    assert known.begin("b", MESSAGE) is Standing.VOID
    assert known.end("a", None) == [MESSAGE]  # too late for its client
    assert known.begin("a", MESSAGE) is Standing.NEW


def test_a_reply_that_could_not_be_given_is_forgotten() -> None:
    known = Answers()
    known.begin("a", MESSAGE)
    known.end("a", reply("A"))
    known.forget("a")
    assert known.begin("a", MESSAGE) is Standing.NEW


def test_what_is_remembered_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWERED_MAX", 4)
    monkeypatch.setattr(answers, "REPLY_BYTES_MAX", 25)
    monkeypatch.setattr(answers, "VOID_MAX", 2)
    known = Answers()
    for key in "abcdef":
        known.begin(key, MESSAGE)
        known.end(key, reply(key * 10))
    # The newest two replies are kept, the four newest are known, older ones are not.
    found = known.ask(list("abcdef"), is_final=True)
    assert found.gone == ["c", "d"]
    assert [key for key, _ in found.replies] == ["e", "f"]
    assert known.begin("b", MESSAGE) is Standing.VOID
    known.ask(["x", "y"], is_final=True)
    assert known.begin("a", MESSAGE) is Standing.NEW
    for key in "ghij":
        known.end(key, reply(""))
    assert len(known._kept) <= 4
    known.end("j", reply("another"))
    assert known._bytes == len("another")


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path / "node")
    yield life
    life.kill()


@pytest.mark.slow
@pytest.mark.parametrize("durable", [True, False])
async def test_a_node_dies_under_many_requests(life: Life, durable: bool) -> None:
    """Some are being served, some wait at the node; without `durable` these are gone with it."""
    total, at_work = 200, 40
    begun, may, served = asyncio.Semaphore(0), asyncio.Event(), Counter[int]()
    async with weft.connect(life.url) as server, weft.connect(life.url) as client:

        @server.service("slow", concurrency=at_work)
        async def slow(request: Message) -> object:
            served[request.body] += 1
            begun.release()
            await may.wait()
            return request.body

        await slow.start()
        asked = [
            asyncio.ensure_future(client.request("slow", number, timeout_s=120, durable=durable))
            for number in range(total)
        ]
        for _ in range(at_work):
            await begun.acquire()
        await restart(life)
        may.set()
        assert [answer.body for answer in await asyncio.gather(*asked)] == list(range(total))
        assert served == Counter(range(total))


@pytest.mark.slow
def test_the_synchronous_face_asks_too(life: Life) -> None:
    served: Counter[int] = Counter()
    with sync.connect(life.url) as server, sync.connect(life.url) as client:

        @server.service("slow", concurrency=1)
        def slow(request: Message) -> object:
            served[request.body] += 1
            if len(served) == 1:
                life.kill()
                life.start()
            return request.body

        slow.start()
        with ThreadPoolExecutor(20) as pool:
            asked = [pool.submit(client.request, "slow", n, timeout_s=120, durable=False) for n in range(20)]
            assert [each.result().body for each in asked] == list(range(20))
        assert served == Counter(range(20))


async def test_requests_of_others_are_known_by_nothing(fabric: weft.Fabric) -> None:
    """Who is not weft's client may give many requests one id."""
    replies = fabric.receive("theirs")
    served = 0

    @fabric.service("echo")
    async def echo(request: Message) -> object:
        nonlocal served
        served += 1
        return request.body

    await echo.start()
    for number in range(3):
        await fabric.send("echo", number, reply_to="/queues/theirs", correlation_id="same", message_id="same")
        assert (await anext(replies)).body == number
    assert served == 3


async def test_a_request_that_comes_twice_is_answered_twice_and_served_once(fabric: weft.Fabric) -> None:
    replies = fabric.receive("ours")
    served = 0

    @fabric.service("echo")
    async def echo(request: Message) -> object:
        nonlocal served
        served += 1
        return request.body

    await echo.start()
    for _ in range(2):
        await fabric.send("echo", "?", reply_to="/queues/ours", correlation_id="weft:0.1")
        assert (await anext(replies)).body == "?"
    assert served == 1


async def test_a_repeated_request_of_a_client_that_is_gone_stands_in_nobodys_way(
    fabric: weft.Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply finds no way, and its deadline is far: the only slot is free long before."""
    monkeypatch.setattr(service, "REPLY_S", 0.2)

    @fabric.service("echo", concurrency=1)
    async def echo(request: Message) -> object:
        return request.body

    await echo.start()
    replies = fabric.receive("ours")
    for reply_to in ("/queues/ours", "/queues/gone"):
        options = {"correlation_id": "weft:0.2", "expires_at": time.time() + 600}
        await fabric.send("echo", "first", reply_to=reply_to, **options)
    assert (await anext(replies)).body == "first"
    assert (await fabric.request("echo", "second", timeout_s=60)).body == "second"


async def test_a_reply_that_is_not_kept_any_more_is_told(fabric: weft.Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """Better an error at once than a deadline, or a handler that runs again."""
    monkeypatch.setattr(answers, "REPLY_BYTES_MAX", 0)
    served = 0

    @fabric.service("echo")
    async def echo(request: Message) -> object:
        nonlocal served
        served += 1
        return request.body

    await echo.start()
    await fabric.request("echo", "?", timeout_s=30)
    replies = fabric._replies
    assert replies is not None
    waiting = asyncio.ensure_future(fabric.request("nobody", "?", timeout_s=30))
    while not replies._waiting:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    (key,) = replies._waiting
    # As if it had been answered before, and its reply lost with a node.
    echo._answers.begin(key, MESSAGE)
    echo._answers.end(key, reply("lost"))
    replies._waiting[key].address = "echo"
    replies._waiting[key].connection = 0
    replies._again.start(0.0)
    with pytest.raises(weft.Unavailable, match="the reply was lost"):
        await waiting
    assert served == 1
