"""A transaction over two nodes, and everybody killed at each instant of its commit.

Owns R133's proof with real processes: a coordinator and two nodes with data folders, all ended with SIGKILL between the
calls of the commit, then started again. An order is taken at one node and shipped at the other, or neither; the next
coordinator of the same name sees to it. Rule: decision 0022. Without processes: tests/client/test_distributed.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import weft

from .conftest import StartNode
from .living import PERSISTENT, LivingNode

COORDINATOR = """
import asyncio, sys
import weft
from weft.client.sessions import Session, Transaction

shop, store, stop = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
calls = iter(range(100))

def stopping(original):
    async def call(*args, **options):
        if next(calls) == stop:
            print("here", flush=True)
            await asyncio.Event().wait()
        return await original(*args, **options)
    return call

async def main():
    async with weft.connect(f"amqp://127.0.0.1:{shop}") as a, weft.connect(f"amqp://127.0.0.1:{store}") as b:
        async with weft.distributed("orders", a, b) as both:
            Transaction.prepare, Session.resolve = stopping(Transaction.prepare), stopping(Session.resolve)
            orders = both.session(a).receiver("orders", window=1)
            async with both.transaction() as work:
                work[a].accept(await anext(orders))
                await work[b].send(both.session(b).sender("shipments"), "ship", durable=True)

asyncio.run(main())
"""


def kill_coordinator_at(step: int, shop: LivingNode, store: LivingNode) -> None:
    """Run a coordinator up to this call of a node's, then let it be no more."""
    command = [sys.executable, "-c", COORDINATOR, str(shop.port), str(store.port), str(step)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
        finally:
            process.kill()


async def settle(shop: LivingNode, store: LivingNode) -> None:
    async with (
        weft.connect(f"amqp://127.0.0.1:{shop.port}") as a,
        weft.connect(f"amqp://127.0.0.1:{store.port}") as b,
        weft.distributed("orders", a, b) as both,
    ):
        assert await both.recover() == {}, "opening leaves nothing in doubt"


def ready(node: LivingNode, queue: str) -> int:
    with node.connect() as connection:
        return int(connection.channel().queue_declare(queue, durable=True, passive=True).method.message_count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "ends"), [(1, (1, 0)), (2, (1, 0)), (3, (0, 1))], ids=["one-prepared", "all-prepared", "decided"]
)
def test_everybody_is_killed_during_a_commit(
    start_node: StartNode, tmp_path: Path, step: int, ends: tuple[int, int]
) -> None:
    shop, store = start_node(tmp_path / "shop"), start_node(tmp_path / "store")
    for node, queue in ((shop, "orders"), (store, "shipments")):
        with node.connect() as connection:
            connection.channel().queue_declare(queue, durable=True)
    with shop.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"order", PERSISTENT)
    kill_coordinator_at(step, shop, store)
    for node in (shop, store):
        node.kill()
        node.start()
    asyncio.run(settle(shop, store))
    assert (ready(shop, "orders"), ready(store, "shipments")) == ends
