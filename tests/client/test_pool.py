"""A pool of connections: who gets the work, and what happens when a node is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

import weft
from weft.client.pool import Policy, Pool

NAMES = ("one", "two", "three")


@pytest.fixture
async def nodes() -> AsyncIterator[dict[str, weft.Node]]:
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(weft.Node(name=name)) for name in NAMES}


def urls(*names: str) -> list[str]:
    return [f"weft+memory:{name}" for name in names]


def connections(nodes: dict[str, weft.Node]) -> list[int]:
    return [len(node.snapshot()["connections"]) for node in nodes.values()]


async def spread(pool: Pool, count: int) -> Counter[str]:
    """Who got each of so many pieces of work, one after the other."""
    found: Counter[str] = Counter()
    for _ in range(count):
        async with pool.take():
            found.update(url for url, takers in pool.takers().items() if takers)
    return found


async def test_in_turns_over_one_connection_each(nodes: dict[str, weft.Node]) -> None:
    async with Pool(urls(*NAMES)) as pool:
        assert connections(nodes) == [0, 0, 0]
        assert set((await spread(pool, 300)).values()) == {100}
        assert connections(nodes) == [1, 1, 1]


async def test_least_goes_where_there_is_least_to_do(nodes: dict[str, weft.Node]) -> None:
    async with Pool(urls(*NAMES), policy="least") as pool, AsyncExitStack() as held:
        for _ in range(6):
            await held.enter_async_context(pool.take())
        assert list(pool.takers().values()) == [2, 2, 2]
        async with pool.take(), pool.take(), pool.take(), pool.take():
            assert sorted(pool.takers().values()) == [3, 3, 4]
    assert list(pool.takers().values()) == [0, 0, 0]


async def test_each_node_has_a_connection_from_the_start(nodes: dict[str, weft.Node]) -> None:
    async with Pool(urls(*NAMES), policy="each"):
        assert connections(nodes) == [1, 1, 1]


@pytest.mark.parametrize("policy", ["round-robin", "least"])
async def test_a_node_that_is_away_is_passed_over(nodes: dict[str, weft.Node], policy: Policy) -> None:
    async with Pool(urls("one", "gone", "two"), policy=policy, timeout_s=1) as pool:
        assert (await spread(pool, 40)).keys() == set(urls("one", "two"))


async def test_many_at_once_share_connections(nodes: dict[str, weft.Node]) -> None:
    async def work(pool: Pool, number: int) -> None:
        async with pool.take() as fabric:
            await fabric.send("work", number)

    async with Pool(urls(*NAMES), policy="least") as pool:
        await asyncio.gather(*(work(pool, number) for number in range(300)))
        assert connections(nodes) == [1, 1, 1]
    kept = [node.snapshot()["queues"] for node in nodes.values()]
    assert sum(queue["ready"] for queues in kept for queue in queues if queue["name"] == "work") == 300


async def test_mistakes_are_told(nodes: dict[str, weft.Node]) -> None:
    with pytest.raises(weft.ConfigError, match="round-robin, least, each"):
        Pool(urls("one"), policy="best")  # type: ignore[arg-type]
    with pytest.raises(weft.ConfigError, match="list of 1 to"):
        Pool([])
    async with Pool(urls("gone"), timeout_s=1) as pool:
        with pytest.raises(weft.Unavailable, match="gone"):
            async with pool.take():
                pass
