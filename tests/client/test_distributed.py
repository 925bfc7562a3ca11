"""Transactions over two nodes: everything, or nothing, and never something.

Owns the coordinator's behaviour with nodes that answer, refuse, or lose a connection at the worst moment. Two real
nodes run in this process; deaths of processes are in tests/system/test_distributed.py. Rule: decision 0022.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

import weft
from weft.client.sessions import Session, Transaction
from weft.management.query import Query

pytestmark = pytest.mark.weft_only


@dataclass
class Two:
    """Two nodes and a connection to each."""

    shop: weft.Node
    store: weft.Node
    a: weft.Fabric
    b: weft.Fabric

    def counts(self) -> tuple[int, int]:
        """What is ready in the shop's orders, and in the store's shipments."""
        return count(self.shop, "orders"), count(self.store, "shipments")

    def doubts(self) -> int:
        """Prepared transactions at both."""
        return sum(len(node._running.engine.prepared()) for node in (self.shop, self.store))


def count(node: weft.Node, queue: str) -> int:
    stats = node._running.engine.queue_stats("/", queue)
    return 0 if stats is None else stats[0]


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    async with (
        weft.Node(name="shop", listen="127.0.0.1:0") as shop,
        weft.Node(name="store", listen="127.0.0.1:0") as store,
        weft.connect(f"amqp://127.0.0.1:{shop.ports[0]}") as a,
        weft.connect(f"amqp://127.0.0.1:{store.ports[0]}") as b,
    ):
        shop.declare_queue("orders")
        store.declare_queue("shipments", arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
        await shop.send("orders", "one", delivery_mode=2)
        yield Two(shop, store, a, b)


async def carry(two: Two, both: weft.Distributed) -> None:
    """Take an order at the shop, and ship it at the store."""
    session = both.session(two.a)
    orders = session.receiver("orders")
    orders.grant(1)
    try:
        order = await orders.next(30)
        assert order is not None
        async with both.transaction() as work:
            work[two.a].accept(order)
            await work[two.b].send(both.session(two.b).sender("shipments"), f"ship {order.body}")
    finally:
        await orders.close()


async def test_all_of_it_happens_at_both(two: Two) -> None:
    async with weft.distributed("orders", two.a, two.b) as both:
        await carry(two, both)
        assert two.counts() == (0, 1)
        assert two.doubts() == 0
    assert count(two.shop, "weft.decisions.orders") == 0


async def test_nothing_happens_if_the_program_fails(two: Two) -> None:
    async with weft.distributed("orders", two.a, two.b) as both:
        with contextlib.suppress(ZeroDivisionError):
            async with both.transaction() as work:
                await work[two.b].send(both.session(two.b).sender("shipments"), "lost")
                raise ZeroDivisionError
    assert (two.counts(), two.doubts()) == ((1, 0), 0)


async def test_nothing_happens_if_one_node_cannot_promise(two: Two) -> None:
    for _ in range(5):
        await two.store.send("shipments", "other")
    async with weft.distributed("orders", two.a, two.b) as both:
        with pytest.raises(weft.Undelivered, match="full"):
            await carry(two, both)
    assert (two.counts(), two.doubts()) == ((1, 5), 0)


async def test_a_name_is_used_by_one_at_a_time(two: Two) -> None:
    async with weft.distributed("orders", two.a, two.b):
        with pytest.raises(weft.Refused, match="exclusive"):
            async with weft.distributed("orders", two.a, two.b):
                pass
    async with weft.distributed("orders", two.a, two.b):
        pass


class Death(Exception):
    """The coordinator is no more."""


def die_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let no call pass from the so-many-th call of a node on."""
    calls = iter(range(100))

    def wrap(original: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            if next(calls) >= step:
                raise Death
            return await original(*args, **options)

        return call

    monkeypatch.setattr(Transaction, "prepare", wrap(Transaction.prepare))
    monkeypatch.setattr(Session, "resolve", wrap(Session.resolve))


@pytest.mark.parametrize(("step", "ends"), [(0, (1, 0)), (1, (1, 0)), (2, (1, 0)), (3, (0, 1)), (4, (0, 1))])
async def test_what_a_dead_coordinator_left_is_settled_by_the_next(
    two: Two, monkeypatch: pytest.MonkeyPatch, step: int, ends: tuple[int, int]
) -> None:
    with monkeypatch.context() as death:
        both = await weft.distributed("orders", two.a, two.b).open()
        die_at(death, step)
        with contextlib.suppress(Death):
            await carry(two, both)
        await both.close()
    assert two.doubts() == {0: 0, 1: 1, 2: 2, 3: 1, 4: 0}[step]
    async with weft.distributed("orders", two.a, two.b) as both:
        assert two.doubts() == 0
        assert two.counts() == ends
        assert await both.recover() == {}
    assert count(two.shop, "weft.decisions.orders") == 0


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_lost_answer_to_the_decision_is_found_out(
    two: Two, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    resolve, lost = Session.resolve, []

    async def lose(self: Session, identity: bytes, *, fail: bool = False) -> None:
        if not lost:
            lost.append(identity)
            if arrives:
                await resolve(self, identity, fail=fail)
            raise weft.Unavailable("the connection is lost")
        await resolve(self, identity, fail=fail)

    monkeypatch.setattr(Session, "resolve", lose)
    async with weft.distributed("orders", two.a, two.b) as both:
        if arrives:
            await carry(two, both)
        else:
            with pytest.raises(weft.Undelivered, match="rolled back everywhere"):
                await carry(two, both)
    assert two.counts() == ((0, 1) if arrives else (1, 0))
    assert (two.doubts(), count(two.shop, "weft.decisions.orders")) == (0, 0)


async def test_operators_see_and_end_what_is_in_doubt(two: Two) -> None:
    async with two.b.session() as session:
        for name in ("kept", "undone"):
            transaction = await session.transaction().begin()
            await transaction.send(session.sender("shipments"), name)
            await transaction.prepare(name.encode())
    manager = two.store.management.manager
    caller = manager.node
    rows = await manager.query(caller, "transaction", Query())
    assert [(row["name"], row["user"], row["messages"], row["held"]) for row in rows.rows] == [
        ("kept", "guest", 1, 0),
        ("undone", "guest", 1, 0),
    ]
    assert count(two.store, "shipments") == 0
    await manager.call(caller, "transaction", "/", "kept", "commit", {})
    await manager.call(caller, "transaction", "/", "undone", "rollback", {})
    with pytest.raises(weft.Refused, match="there is no"):
        await manager.call(caller, "transaction", "/", "kept", "commit", {})
    assert count(two.store, "shipments") == 1


async def test_another_user_does_not_end_it(two: Two) -> None:
    manager = two.store.management.manager
    await manager.create(manager.node, "user", "/", "eve", {"password": "e", "tags": []})
    await manager.create(manager.node, "permission", "/", "eve", {"configure": ".*", "write": ".*", "read": ".*"})
    async with two.b.session() as session:
        transaction = await session.transaction().begin()
        await transaction.prepare(b"mine")
    async with weft.connect(f"amqp://eve:e@127.0.0.1:{two.store.ports[0]}") as other, other.session() as session:
        with pytest.raises(weft.Undelivered, match="another user"):
            await session.resolve(b"mine", fail=True)
    assert two.doubts() == 1
