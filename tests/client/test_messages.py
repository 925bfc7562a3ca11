"""Sending and receiving: bodies, decisions, topics, windows, errors; in memory and over a socket alike."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

import weft


@pytest.mark.parametrize("body", [b"bytes", "text é", {"a": [1, 2.5, None, True]}, [1], 7, b"", b"x" * 1_000_000])
async def test_a_body_arrives_as_it_was_sent(fabric: weft.Fabric, body: object) -> None:
    await fabric.send("bodies", body)
    async with fabric.receive("bodies") as messages:
        message = await anext(messages)
        assert message.body == body


async def test_properties_travel(fabric: weft.Fabric) -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    headers = {"text": "é", "number": -5, "flag": True, "list": [1, "two"]}
    await fabric.send(
        "properties",
        b"",
        subject="s",
        message_id="m",
        correlation_id=7,
        reply_to="back",
        content_type="image/png",
        priority=7,
        expires_at=moment,
        headers=headers,
        annotations={"x-opt-note": "n"},
    )
    async with fabric.receive("properties") as messages:
        message = await anext(messages)
    assert (message.subject, message.message_id, message.correlation_id) == ("s", "m", 7)
    assert (message.reply_to, message.content_type, message.priority) == ("back", "image/png", 7)
    assert message.headers == headers
    assert message.annotations["x-opt-note"] == "n"
    assert message.expires_at == moment
    assert message.durable


async def test_every_decision_does_what_it_says(node: weft.Node, fabric: weft.Fabric) -> None:
    node.declare_queue("dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    node.declare_queue("work", arguments=dead)
    await fabric.send_many("work", ["accept", "release", "retry", "reject"])
    async with fabric.receive("work", accept="explicit", credit=1) as messages:
        first = await anext(messages)
        assert first.body == "accept"
        first.accept()
        second = await anext(messages)
        second.release()
        again = await anext(messages)
        assert (again.body, again.delivery_count) == ("release", 0)
        again.accept()
        third = await anext(messages)
        third.retry()
        failed = await anext(messages)
        assert (failed.body, failed.delivery_count) == ("retry", 1)
        failed.accept()
        (await anext(messages)).reject("it is wrong")
    async with fabric.receive("dead") as messages:
        assert (await anext(messages)).body == "reject"


async def test_automatic_accept_is_for_what_the_loop_went_past(node: weft.Node, fabric: weft.Fabric) -> None:
    await fabric.send_many("auto", list(range(3)))

    async def fail_at_the_second() -> None:
        async with fabric.receive("auto") as messages:
            async for message in messages:
                if message.body == 1:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_at_the_second()
    async with fabric.receive("auto") as messages:
        assert [(await anext(messages)).body for _ in range(2)] == [1, 2]
    assert node.snapshot()["stats"]


async def test_a_receiver_holds_no_more_than_its_credit(node: weft.Node, fabric: weft.Fabric) -> None:
    await fabric.send_many("credit", list(range(20)))
    async with fabric.receive("credit", accept="explicit", credit=3) as slow, fabric.receive("credit") as fast:
        held = [await anext(slow) for _ in range(3)]
        others = [(await anext(fast)).body for _ in range(17)]
        assert sorted([message.body for message in held] + others) == list(range(20))


async def test_topics_reach_who_asked_for_them(fabric: weft.Fabric) -> None:
    async with fabric.subscribe("orders.*.paid") as paid, fabric.subscribe("orders.#") as everything:
        await fabric.publish("orders.7.paid", {"id": 7})
        await fabric.publish("orders.8.sent", {"id": 8})
        message = await anext(paid)
        assert (message.body, message.subject) == ({"id": 7}, "orders.7.paid")
        assert [(await anext(everything)).body["id"] for _ in range(2)] == [7, 8]
    await fabric.publish("nobody.listens", "fine")


async def test_a_named_subscription_waits_and_is_shared(fabric: weft.Fabric) -> None:
    async with fabric.subscribe("news.#", name="desk") as first:
        await fabric.publish("news.a", 1)
        assert (await anext(first)).body == 1
        await first.close(detach=True)
    await fabric.publish("news.b", 2)
    async with fabric.subscribe("news.#", name="desk") as again:
        assert (await anext(again)).body == 2


async def test_selectors_choose(fabric: weft.Fabric) -> None:
    for size in (1, 10, 100):
        await fabric.send("sized", size, headers={"size": size})
    async with fabric.receive("sized", selector="size > 5", timeout_s=5) as messages:
        assert [(await anext(messages)).body for _ in range(2)] == [10, 100]


async def test_what_has_no_queue_is_told(fabric: weft.Fabric) -> None:
    with pytest.raises(weft.Undelivered, match="nobody took"):
        await fabric.send("/exchanges/amq.direct/nowhere", b"")
    with pytest.raises(weft.Refused, match="no-such-exchange"):
        await fabric.send("/exchanges/no-such-exchange/key", b"")
    with pytest.raises(weft.Refused, match="missing"):
        await anext(fabric.receive("/queues/missing"))


async def test_nothing_in_time_is_none(fabric: weft.Fabric) -> None:
    async with fabric.receive("empty") as messages:
        assert await messages.next(timeout_s=0.05) is None
        await fabric.send("empty", "now")
        message = await messages.next(timeout_s=5)
        assert message is not None
        assert message.body == "now"


async def test_many_sends_at_once_keep_their_order_and_the_window(url: str, node: weft.Node) -> None:
    async with weft.connect(url, window=50) as fabric:
        await asyncio.gather(*(fabric.send("many", number) for number in range(500)))
        async with fabric.receive("many") as messages:
            assert [(await anext(messages)).body for _ in range(500)] == list(range(500))


async def test_no_node_is_an_error_that_says_where() -> None:
    with pytest.raises(weft.Unavailable, match=r"127\.0\.0\.1:1.*refused"):
        await weft.connect("amqp://127.0.0.1:1", timeout_s=0.3).open()
    with pytest.raises(weft.Unavailable, match="no node 'nowhere'"):
        await weft.connect("weft+memory:nowhere", timeout_s=0.3).open()
    with pytest.raises(weft.ConfigError, match="begins with none"):
        weft.connect("http://somewhere")


async def test_a_wrong_password_is_refused_at_once(node: weft.Node) -> None:
    with pytest.raises(weft.Refused, match="user or password"):
        await weft.connect(f"amqp://guest:wrong@127.0.0.1:{node.ports[0]}", timeout_s=30).open()
    async with weft.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}") as fabric:
        await fabric.send("in", "side")


async def test_more_addresses_than_links_share_one(node: weft.Node) -> None:
    async with weft.connect("weft+memory:here") as fabric:
        for number in range(140):
            await fabric.send(f"address-{number}", number)
        assert len(node.snapshot()["connections"]) == 1
        async with fabric.receive("address-139") as messages:
            assert (await anext(messages)).body == 139


async def test_nothing_works_outside_of_its_context() -> None:
    fabric = weft.connect("weft+memory:")
    with pytest.raises(weft.LocalProtocolError, match="not open"):
        await fabric.send("q", b"")


async def test_a_peer_that_opens_only_to_close_is_not_called_all_the_time() -> None:
    """A peer without manners: it answers everything until `open`, then hangs up."""
    calls = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        await reader.readexactly(8)
        writer.write(
            b"AMQP\x03\x01\x00\x00" + bytes.fromhex("0000001c020100000053 40c00f01e00c01a309414e4f4e594d4f5553")
        )
        await reader.read(4096)
        writer.write(bytes.fromhex("00000010020100000053 44c003015000") + b"AMQP\x00\x01\x00\x00")
        await reader.read(4096)
        writer.write(bytes.fromhex("0000001102000000 005310c00401a10170"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    fabric = weft.connect(f"amqp://127.0.0.1:{port}", timeout_s=5)
    await fabric.open()
    with pytest.raises(weft.DeadlineExceeded):
        await fabric.send("q", b"", timeout_s=1.0)
    await fabric.close()
    server.close()
    assert 1 < calls < 40
