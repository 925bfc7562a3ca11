"""Requests and services as the talk has them: one connection, one reply address, names in place of places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

import weft
from weft.client import Message
from weft.client.steps import Pipeline

SERVICES = 1_300


@pytest.fixture
async def other(url: str) -> AsyncIterator[weft.Fabric]:
    async with weft.connect(url, timeout_s=5) as other:
        yield other


async def test_a_front_end_reaches_every_service_over_one_connection(node: weft.Node) -> None:
    async with weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric:
        for number in range(SERVICES):
            await fabric.send(f"service-{number}", number, durable=False)
        assert len(node.snapshot()["connections"]) == 1
        for number in (0, SERVICES - 1):
            async with fabric.receive(f"service-{number}") as messages:
                assert (await anext(messages)).body == number


async def test_each_client_gets_its_own_replies(fabric: weft.Fabric, other: weft.Fabric) -> None:
    @other.service("echo")
    async def echo(request: Message) -> object:
        return request.body

    await echo.start()
    asked = [client.request("echo", [who, n]) for n in range(50) for who, client in enumerate((fabric, other))]
    replies = [reply.body for reply in await asyncio.gather(*asked)]
    assert replies == [[who, n] for n in range(50) for who in range(2)]
    for client in (fabric, other):
        assert client._replies is not None
        assert client._replies.strays == 0


async def test_who_has_asked_the_node_alone_leaves_no_queue_for_replies(node: weft.Node, url: str) -> None:
    def queues() -> list[str]:
        return [name for name in (queue["name"] for queue in node.snapshot()["queues"]) if name.endswith("_replies")]

    async with weft.connect(url) as fabric:
        reply = await fabric.request("$management", None, headers={"operation": "QUERY", "entityType": "queue"})
        assert reply.body
        assert len(queues()) == 1
    assert queues() == []


async def test_replies_come_in_any_order_and_to_whom_they_are_meant_for(
    fabric: weft.Fabric, other: weft.Fabric
) -> None:
    last_first = [asyncio.Event() for _ in range(4)]

    @other.service("payments")
    async def payments(request: Message) -> object:
        number = request.body
        if number < 3:
            await last_first[number + 1].wait()
        last_first[number].set()
        return number

    await payments.start()
    order: list[int] = []

    async def ask(number: int) -> None:
        order.append((await fabric.request("payments", number)).body)

    await asyncio.gather(*(ask(number) for number in range(4)))
    assert order == [3, 2, 1, 0]
    # Another process is to have the answer.
    await fabric.send("payments", 3, reply_to="/queues/books", correlation_id="payment 17")
    async with other.receive("books") as books:
        reply = await anext(books)
        assert (reply.body, reply.correlation_id) == (3, "payment 17")


async def test_clients_name_the_service_and_never_its_implementation(node: weft.Node) -> None:
    manager = node.management.manager
    for exchange in ("service_gateway.direct", "service_impl.direct"):
        node.declare_exchange(exchange, "direct")
    node.declare_queue("ledger.request.impl", arguments={"x-weft-service": "ledger"})
    await manager.create(manager.node, "user", "/", "front", {"password": "f", "tags": []})
    may = {"configure": "^$", "write": "^service_gateway\\.direct$", "read": "^$"}
    await manager.create(manager.node, "permission", "/", "front", may)
    async with weft.connect(f"amqp://front:f@127.0.0.1:{node.ports[0]}") as front:
        with suppress(weft.Undelivered):  # no gateway takes requests for it yet: that is no matter of permission
            await front.send("service://ledger", 1)
        for place in ("/queues/ledger.request.impl", "/exchanges/service_impl.direct/ledger.request"):
            with pytest.raises(weft.Refused, match="refused"):
                await front.send(place, 1)
        with pytest.raises(weft.Refused, match="refused"):
            await front.receive("service://ledger").ready()


async def test_a_worker_that_joins_works_at_once_and_nothing_is_lost(fabric: weft.Fabric, other: weft.Fabric) -> None:
    busy, two_at_work = 0, asyncio.Event()

    def build(where: weft.Fabric) -> Pipeline:
        pipeline = where.pipeline("belt", output="belt.done")

        @pipeline.step("in")
        async def first(message: Message) -> object:
            return message.body

        @pipeline.step("slow")
        async def slow(message: Message) -> object:
            nonlocal busy
            busy += 1
            if busy == 2:
                two_at_work.set()
            await two_at_work.wait()
            return message.body

        @pipeline.step("out")
        async def last(message: Message) -> object:
            return message.body

        return pipeline

    here, there = build(fabric), build(other)
    await here.start()
    for number in range(20):
        await here.send(number)
    while busy == 0:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
    assert not two_at_work.is_set()
    await there.start("slow")
    async with fabric.receive("belt.done") as done:
        assert sorted([(await anext(done)).body for _ in range(20)]) == list(range(20))
    await here.stop()
    await there.stop()
