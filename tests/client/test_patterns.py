"""Requests, services, presence, pipelines, digests and the engine face, in memory and over a socket alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

import weft
from weft.client import Message
from weft.model.errors import LocalProtocolError


@pytest.fixture
async def other(url: str) -> AsyncIterator[weft.Fabric]:
    """A second process would have this."""
    async with weft.connect(url, timeout_s=30) as other:
        yield other


async def test_a_request_gets_its_reply(fabric: weft.Fabric, other: weft.Fabric) -> None:
    @other.service("upper")
    async def upper(request: Message) -> str:
        return str(request.body).upper()

    await upper.start()
    assert (await fabric.request("upper", "hello", timeout_s=30)).body == "HELLO"


async def test_transient_requests_are_settled_with_their_replies(fabric: weft.Fabric, other: weft.Fabric) -> None:
    settled_early: list[bool] = []
    message: Message | None = None

    @other.service("transient")
    async def upper(request: Message) -> str:
        nonlocal message
        message = request
        if request.body == "slowly":
            await asyncio.sleep(0)
        return str(request.body).upper()

    await upper.start()
    for durable, body in ((False, "at once"), (False, "slowly"), (True, "safely")):
        reply = await fabric.request("transient", body, timeout_s=30, durable=durable)
        assert reply.body == body.upper()
        assert message is not None
        settled_early.append(message.is_settled)
    assert settled_early[:2] == [True, True]
    bodies = [str(number) for number in range(200)]
    replies = await asyncio.gather(*(fabric.request("transient", body, timeout_s=30, durable=False) for body in bodies))
    assert [reply.body for reply in replies] == bodies
    await upper.stop()
    # Nothing of all that is left behind.
    assert await fabric.receive("transient").next(0.05) is None


async def test_a_service_that_waits_costs_nothing(fabric: weft.Fabric) -> None:
    """Nobody polls, neither the client nor the node, which is in this process too."""

    @fabric.service("idle")
    async def idle(request: Message) -> object:
        return request.body

    await idle.start()
    assert (await fabric.request("idle", 1, timeout_s=30)).body == 1
    before_s = time.process_time()
    await asyncio.sleep(0.5)  # what is measured is that nothing happens in this time
    assert time.process_time() - before_s < 0.025
    await idle.stop()


async def test_plain_functions_serve_too(fabric: weft.Fabric, other: weft.Fabric) -> None:
    @other.service("double")
    def double(request: Message) -> int:
        return int(request.body) * 2

    await double.start()
    replies = await asyncio.gather(*(fabric.request("double", number, timeout_s=10) for number in range(20)))
    assert [reply.body for reply in replies] == [number * 2 for number in range(20)]


async def test_an_error_comes_back_as_an_error(fabric: weft.Fabric, other: weft.Fabric) -> None:
    @other.service("fails")
    async def fails(_request: Message) -> None:
        raise LookupError("no such account")

    await fails.start()
    with pytest.raises(weft.ServiceError, match="no such account") as caught:
        await fabric.request("fails", b"", timeout_s=30)
    assert caught.value.kind == "LookupError"


async def test_a_thousand_requests_share_one_reply_address(node: weft.Node, fabric: weft.Fabric) -> None:
    @fabric.service("echo", concurrency=100)
    async def echo(request: Message) -> object:
        await asyncio.sleep(0.001 * (request.body % 7))  # so that replies come in another order
        return request.body

    await echo.start()
    replies = await asyncio.gather(*(fabric.request("echo", number, timeout_s=20) for number in range(1_000)))
    assert [reply.body for reply in replies] == list(range(1_000))
    queues = [row for row in node.snapshot()["queues"] if "replies" in str(row)]
    assert len(queues) == 1


async def test_requests_wait_for_their_service(fabric: weft.Fabric, other: weft.Fabric) -> None:
    asked = [asyncio.ensure_future(fabric.request("later", number, timeout_s=10)) for number in range(10)]
    served: set[str] = set()
    for name in ("one", "two"):

        @other.service("later", concurrency=1)
        async def later(request: Message, name: str = name) -> object:
            served.add(name)
            await asyncio.sleep(0.005)
            return request.body

        await later.start()
    assert [reply.body for reply in await asyncio.gather(*asked)] == list(range(10))
    assert served == {"one", "two"}


async def test_a_deadline_ends_the_wait_and_the_work(fabric: weft.Fabric, other: weft.Fabric) -> None:
    ended = asyncio.Event()

    @other.service("slow")
    async def slow(_request: Message) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    await slow.start()
    with pytest.raises(weft.DeadlineExceeded, match="no reply"):
        await fabric.request("slow", b"", timeout_s=0.2)
    await asyncio.wait_for(ended.wait(), 30)


async def test_late_and_double_replies_are_counted_and_dropped(fabric: weft.Fabric, other: weft.Fabric) -> None:
    async def serve_twice() -> None:
        async for request in other.receive("twice"):
            for _ in range(2):
                await other.reply(request.reply_to or "", "yes", correlation_id=request.correlation_id)

    server = asyncio.ensure_future(serve_twice())
    for _ in range(3):
        assert (await fabric.request("twice", b"", timeout_s=30)).body == "yes"
    assert fabric._replies is not None
    async with asyncio.timeout(30):
        while fabric._replies.strays < 3:  # noqa: ASYNC110 - strays are counted on another thread
            await asyncio.sleep(0.01)
    server.cancel()


async def test_who_asks_a_service_that_is_not_there_is_told_in_time(fabric: weft.Fabric) -> None:
    with pytest.raises(weft.DeadlineExceeded):
        await fabric.request("nobody", b"", timeout_s=0.15)


async def test_stopping_finishes_what_is_begun_and_gives_back_the_rest(fabric: weft.Fabric, other: weft.Fabric) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @other.service("draining", concurrency=1)
    async def draining(request: Message) -> str:
        begun.set()
        await go_on.wait()
        return f"old {request.body}"

    await draining.start()
    asked = [asyncio.ensure_future(fabric.request("draining", number, timeout_s=10)) for number in range(3)]
    await asyncio.wait_for(begun.wait(), 30)
    stopping = asyncio.ensure_future(draining.stop())
    await asyncio.sleep(0.05)
    go_on.set()
    await asyncio.wait_for(stopping, 30)

    @fabric.service("draining")
    async def successor(request: Message) -> str:
        return f"new {request.body}"

    await successor.start()
    replies = {reply.body for reply in await asyncio.gather(*asked)}
    assert len(replies) == 3
    assert len([body for body in replies if body.startswith("old")]) == 1


async def test_presence_tells_who_is_there(fabric: weft.Fabric, other: weft.Fabric) -> None:
    @other.service("present", presence_s=0.1)
    async def present(_request: Message) -> None:
        return None

    seen, came = [], asyncio.Event()

    async def watch() -> None:
        async for change in fabric.watch("present"):
            seen.append(change)
            came.set()
            if change[1] == "down":
                return

    watching = asyncio.ensure_future(watch())
    await asyncio.sleep(0.05)
    await present.start()
    await asyncio.wait_for(came.wait(), 30)
    assert await fabric.presence("present") == [other.name]
    await present.stop()
    await asyncio.wait_for(watching, 30)
    assert seen == [(other.name, "up"), (other.name, "down")]
    assert await fabric.presence("present", wait_s=0.1) == []


async def test_a_pipeline_takes_every_value_through_every_step(fabric: weft.Fabric, other: weft.Fabric) -> None:
    def build(where: weft.Fabric) -> object:
        pipeline = where.pipeline("numbers", output="numbers.done")

        @pipeline.step("add")
        async def add(message: Message) -> int:
            return int(message.body) + 1

        @pipeline.step("double", workers=2)
        def double(message: Message) -> int | None:
            return None if message.body == 3 else int(message.body) * 2

        @pipeline.step("text")
        async def text(message: Message) -> str:
            return str(message.body)

        return pipeline

    here, there = build(fabric), build(other)
    await here.start("add", "text")  # type: ignore[attr-defined]
    for number in range(5):
        await here.send(number)  # type: ignore[attr-defined]
    await there.start("double")  # type: ignore[attr-defined]
    async with fabric.receive("numbers.done") as done:
        assert sorted([(await anext(done)).body for _ in range(4)]) == ["10", "2", "4", "8"]
    await here.stop()  # type: ignore[attr-defined]
    await there.stop()  # type: ignore[attr-defined]


async def test_a_step_that_fails_is_tried_again(fabric: weft.Fabric) -> None:
    pipeline = fabric.pipeline("retries", output="retries.done")
    tries = []

    @pipeline.step("unsteady")
    async def unsteady(message: Message) -> str:
        tries.append(message.delivery_count)
        if len(tries) < 3:
            raise OSError("not yet")
        return "done"

    await pipeline.start()
    await pipeline.send("go")
    async with fabric.receive("retries.done") as done:
        assert (await anext(done)).body == "done"
    assert tries == [0, 1, 2]
    await pipeline.stop()


async def test_digests_come_by_count_and_by_time(fabric: weft.Fabric) -> None:
    await fabric.send_many("digest", list(range(5)))
    async with fabric.receive("digest") as messages:
        digests = messages.digest(count=3, interval_s=0.1)
        assert [[message.body for message in await anext(digests)] for _ in range(2)] == [[0, 1, 2], [3, 4]]


async def test_presence_does_not_mind_strangers(fabric: weft.Fabric, other: weft.Fabric) -> None:
    asked = await other.subscribe("weft.presence.ask.odd").ready()
    listing = asyncio.ensure_future(fabric.presence("odd"))
    await anext(asked)
    for note in (b"\xff", "text", [1], {"instance": 1}, {"instance": "i", "state": "sideways", "every_s": 1}):
        await other.publish("weft.presence.is.odd", note)
    assert await listing == []


@pytest.mark.parametrize(("offset", "expected"), [("first", 0), (7, 7), ("next", 10)])
async def test_a_stream_is_read_from_an_offset(
    node: weft.Node, fabric: weft.Fabric, offset: int | str, expected: int
) -> None:
    node.declare_queue("stream", arguments={"x-queue-type": "stream"})
    await fabric.send_many("stream", list(range(10)))
    reader = await fabric.stream("stream", offset=offset).ready()
    await fabric.send_many("stream", list(range(10, 12)))
    messages = [await anext(reader) for _ in range(12 - expected)]
    assert [message.body for message in messages] == list(range(expected, 12))
    assert [message.offset for message in messages] == list(range(expected, 12))


async def test_a_transaction_is_all_or_nothing(fabric: weft.Fabric) -> None:
    await fabric.send_many("in", ["first", "second"])
    async with fabric.session() as session:
        out = await session.sender("out").ready()
        taken = await session.receiver("in", window=10).ready()
        try:
            async with session.transaction() as transaction:
                transaction.accept(await anext(taken))
                await transaction.send(out, "never seen")
                raise KeyError
        except KeyError:
            pass
        async with session.transaction() as transaction:
            bodies = set()
            for _ in range(2):
                message = await anext(taken)
                bodies.add(message.data)
                transaction.accept(message)
            await transaction.send(out, "one", "two")
        assert bodies == {b"first", b"second"}
    async with fabric.receive("out") as messages:
        assert [(await anext(messages)).data for _ in range(2)] == [b"one", b"two"]
        assert await messages.next(0.05) is None
    async with fabric.receive("in") as messages:
        assert await messages.next(0.05) is None


async def test_credit_is_the_programs_own(fabric: weft.Fabric) -> None:
    await fabric.send_many("by-hand", list(range(5)))
    async with fabric.session() as session, session.receiver("by-hand") as receiver:
        assert await receiver.next(0.05) is None
        receiver.grant(2)
        for _ in range(2):
            (await anext(receiver)).accept()
        assert await receiver.next(0.05) is None
        receiver.grant(10)
        await receiver.drain()
        for _ in range(3):
            (await anext(receiver)).accept()
        assert await receiver.next(0.05) is None


async def test_addresses_can_be_made_by_the_node(fabric: weft.Fabric) -> None:
    async with fabric.session() as session:
        receiver = await session.receiver(None, dynamic=True, window=10).ready()
        assert receiver.address
        await fabric.send(receiver.address, "found")
        assert (await anext(receiver)).data == b"found"
        browsed = session.receiver("browsed", browse=True, window=5, filters={"selector": "n = 1"})
        await fabric.send("browsed", "skip", headers={"n": 2})
        await fabric.send("browsed", "see", headers={"n": 1})
        assert (await anext(browsed)).data == b"see"


async def test_sessions_come_and_go_without_end(fabric: weft.Fabric) -> None:
    await fabric.send_many("in", ["first"])
    stale = fabric.session()
    await stale.close()
    for _ in range(300):  # more than there may be at a time
        async with fabric.session() as session:
            async with session.transaction() as txn:
                await txn.send(session.sender("out"), "x")
            await stale.close()  # its number is another's now
    with pytest.raises(LocalProtocolError):
        stale.sender("out")
