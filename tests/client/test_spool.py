"""Store and forward: what is sent without a node survives on this machine's disk, and arrives once, in order."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import peers
import weft
from weft.cli import main
from weft.client import sync

SENDER = textwrap.dedent("""
    import sys
    from weft.client.sync import connect

    url, folder, queue = sys.argv[1:]
    with connect(url, spool=folder, timeout_s=0.05) as fabric:
        for number in range(1_000_000):
            fabric.send(queue, number)
            print(number, flush=True)
""")


def killed_after(count: int, url: str, folder: Path, queue: str = "orders") -> int:
    """A client that is killed once it has been told that so many are on disk: how many it was told of."""
    command = [sys.executable, "-c", SENDER, url, str(folder), queue]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        for _ in range(count):
            assert sender.stdout.readline()
        sender.kill()
        return count + len(sender.stdout.readlines())


NOWHERE = f"amqp://{peers.HOST}:1"
"""Nothing listens there."""


async def forwarded(fabric: weft.Fabric) -> None:
    async with asyncio.timeout(60):
        while fabric.waiting:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


async def taken(node: weft.Node, queue: str) -> list[object]:
    """Everything in a queue, in order."""
    (ready,) = [row["ready"] for row in node.snapshot()["queues"] if row["name"] == queue]
    async with weft.connect(f"amqp://{peers.HOST}:{node.ports[0]}") as reader:
        messages = reader.receive(queue, timeout_s=60)
        return [(await anext(messages)).body for _ in range(ready)]


async def test_messages_wait_for_a_node_and_arrive_in_order(tmp_path: Path) -> None:
    async with weft.connect(NOWHERE, spool=tmp_path, timeout_s=0.05) as fabric:
        assert not fabric.is_connected
        await fabric.send("orders", 0, headers={"a": 1})
        await fabric.send_many("orders", range(1, 200))
        await fabric.publish("nobody.listens", "well")
        assert fabric.waiting == 201
        with pytest.raises(weft.Unavailable, match="no node has answered yet"):
            fabric.receive("orders")
        with pytest.raises(weft.LocalProtocolError, match="JSON"):
            await fabric.send("orders", 0, correlation_id=b"bytes")
    async with (
        weft.Node(listen=[f"{peers.HOST}:0"]) as node,
        weft.connect(f"amqp://{peers.HOST}:{node.ports[0]}", spool=tmp_path) as fabric,
    ):
        await forwarded(fabric)
        await fabric.send("orders", 200)
        await forwarded(fabric)
        assert await taken(node, "orders") == list(range(201))


def test_a_client_that_ends_forwards_what_it_can(tmp_path: Path) -> None:
    peer = peers.start_weft(tmp_path / "node")
    try:
        url = f"amqp://{peers.HOST}:{peer.port}"
        with sync.connect(url, spool=tmp_path / "spool") as fabric:
            fabric.send_many("orders", range(20))
        with sync.connect(url) as fabric, fabric.receive("orders") as messages:
            assert [next(messages).body for _ in range(20)] == list(range(20))
    finally:
        peer.kill()


async def test_a_killed_client_loses_nothing_that_it_was_promised(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    told = await asyncio.to_thread(killed_after, 20, NOWHERE, spool)
    # The last record is torn: half of a page, written without a sync when the power went.
    with (spool / "spool.sqlite-wal").open("ab") as log:
        log.write(bytes(range(256)) * 9)
    async with (
        weft.Node(listen=[f"{peers.HOST}:0"]) as node,
        weft.connect(f"amqp://{peers.HOST}:{node.ports[0]}", spool=spool) as fabric,
    ):
        assert fabric.waiting >= told
        await forwarded(fabric)
        found = await taken(node, "orders")
        assert found == list(range(len(found)))
        assert told <= len(found) <= told + 1  # one may be on disk that nobody was told of


async def test_killed_between_forwarding_and_knowing_it_counts_once(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    async with weft.Node(listen=[f"{peers.HOST}:0"]) as node:
        url = f"amqp://{peers.HOST}:{node.ports[0]}"
        await asyncio.to_thread(_declare_guarded, f"{url}/%2F", "ledger")
        told = [await asyncio.to_thread(killed_after, 30, url, spool, "ledger") for _ in range(3)]
        async with weft.connect(url, spool=spool) as fabric:
            await forwarded(fabric)
        found = await taken(node, "ledger")
        for number in range(min(told)):
            assert found.count(number) == 3, "lost or doubled"
        assert sum(told) <= len(found) <= sum(told) + 3


def _declare_guarded(url: str, queue: str) -> None:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare(queue, durable=True, arguments={"x-barrier": "message-id"})
    connection.close()


async def test_a_full_spool_says_so_and_takes_more_when_there_is_room(tmp_path: Path) -> None:
    async with weft.connect(NOWHERE, spool=tmp_path, spool_bytes_max=4_000, timeout_s=0.05) as fabric:
        for _ in range(3):
            await fabric.send("orders", bytes(1_000))
        with pytest.raises(weft.Unavailable, match="the spool is full: 3 messages"):
            await fabric.send("orders", bytes(1_000))
        await fabric.send("orders", b"small")
        with pytest.raises(weft.ConfigError, match="in use by another client"):
            await weft.connect(NOWHERE, spool=tmp_path).open()
    async with (
        weft.Node(listen=[f"{peers.HOST}:0"]) as node,
        weft.connect(f"amqp://{peers.HOST}:{node.ports[0]}", spool=tmp_path, spool_bytes_max=4_000) as fabric,
    ):
        await forwarded(fabric)
        await fabric.send("orders", bytes(1_000))
        await forwarded(fabric)
        assert len(await taken(node, "orders")) == 5


async def test_what_a_node_refuses_is_set_aside_and_can_be_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> str:
        assert main(["spool", str(tmp_path), *words]) == 0
        return capsys.readouterr().out

    async with weft.Node(listen=[f"{peers.HOST}:0"]) as node:
        url = f"amqp://{peers.HOST}:{node.ports[0]}"
        async with weft.connect(url, spool=tmp_path) as fabric:
            for number in range(3):
                await fabric.send("/exchanges/missing/key" if number == 1 else "orders", number)
            await forwarded(fabric)
            shown = json.loads(told("--json"))
            assert (shown["waiting"], [row["number"] for row in shown["refused"]]) == (0, [2])
            assert "missing" in told()
        assert await taken(node, "orders") == [0, 2]
        assert told("--retry") == "1 messages wait again\n"
        assert told().startswith("1 messages of ")
    assert main(["spool", str(tmp_path / "none")]) == 2
    assert "there is no spool" in capsys.readouterr().err
