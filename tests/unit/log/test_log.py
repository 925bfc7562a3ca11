"""Streams read from inside the node and from its folder: what each door shows, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weft
from weft.log import open_log, stored_queues
from weft.model.errors import LocalProtocolError, Unavailable

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[weft.Node]:
    async with weft.Node(name="n1", data_dir=tmp_path) as node:
        node.declare_queue("q", durable=True)
        node.declare_queue("s", durable=True, arguments=STREAM)
        yield node


async def send(node: weft.Node, address: str, *bodies: str, **properties: Any) -> None:
    for body in bodies:
        await node.send(address, body, delivery_mode=2, **properties)


def bodies(stream: object) -> list[bytes]:
    table: Any = pa.table(stream)
    return [body.as_py() for body in table["body"]]


@pytest.mark.parametrize("name", ["q", "s"])
async def test_a_node_shows_what_is_not_on_disk_yet(node: weft.Node, name: str) -> None:
    """Nothing is awaited between sending and reading: no disk thread has answered yet."""
    engine = node._running.engine
    for number in range(5):
        engine.publish("/", "", name, str(number).encode(), {"delivery_mode": 2})
    now = node.read_log(name, columns=["body"])
    engine.publish("/", "", name, b"later", {"delivery_mode": 2})
    assert bodies(now) == [b"0", b"1", b"2", b"3", b"4"]
    assert bodies(node.read_log(name, 1, 3)) == [b"1", b"2"]
    assert bodies(node.read_log(name, 4, columns=["body"])) == [b"4", b"later"]


@pytest.mark.parametrize("name", ["q", "s"])
async def test_disk_and_memory_are_one(node: weft.Node, tmp_path: Path, name: str) -> None:
    log = open_log(tmp_path, "/", name)
    expected = []
    for round_ in range(20):
        expected += [f"{round_}.{number}".encode() for number in range(round_)]
        await send(node, name, *[f"{round_}.{number}" for number in range(round_)])
        pulled = await asyncio.to_thread(bodies, node.read_log(name, whole=True))
        assert pulled == expected
        on_disk = await asyncio.to_thread(lambda: bodies(log.read()))
        assert on_disk == expected[: len(on_disk)]
    table: Any = pa.table(node.read_log(name, columns=["stream", "shard", "origin", "offset"]))
    assert set(table["stream"].to_pylist()) == {name}
    assert set(table["origin"].to_pylist()) == {"n1"}
    assert table["offset"].to_pylist() == list(range(len(expected)))


async def test_what_is_consumed_is_left_out(node: weft.Node) -> None:
    await send(node, "q", "a", "b", "c")
    async with node.receive("q") as receiver:
        (await anext(receiver)).accept()
        kept = await anext(receiver)
        assert bodies(node.read_log("q")) == [b"b", b"c"]
        with pytest.raises(pa.ArrowInvalid, match="offsets 0 to 0 are not kept any more"):
            pa.table(node.read_log("q", whole=True))
        kept.accept()
        (await anext(receiver)).accept()
        assert bodies(node.read_log("q")) == []


async def test_a_stream_outlives_its_node(tmp_path: Path) -> None:
    for round_ in range(3):
        async with weft.Node(data_dir=tmp_path) as node:
            node.declare_queue("s", durable=True, arguments=STREAM)
            await send(node, "s", *[f"{round_}.{number}" for number in range(10)])
        log = open_log(tmp_path, "/", "s")
        assert log.offsets() == (0, 10 * (round_ + 1))
        assert bodies(log.read(10 * round_)) == [f"{round_}.{number}".encode() for number in range(10)]


async def test_files_tell_the_name_of_the_node_that_used_them_last(tmp_path: Path) -> None:
    for name in ("edge", "edge", "renamed"):
        async with weft.Node(name=name, data_dir=tmp_path) as node:
            node.declare_queue("s", durable=True, arguments=STREAM)
            await send(node, "s", "from elsewhere", headers={"x-weft-trace": ["far"]})
            await send(node, "s", "here")
        table: Any = pa.table(open_log(tmp_path, "/", "s").read(columns=["origin", "trace"]))
        assert table.to_pylist()[-2:] == [
            {"origin": "far", "trace": ["far", name]},
            {"origin": name, "trace": None},
        ]


async def test_the_folder_of_a_running_node_names_its_queues(node: weft.Node, tmp_path: Path) -> None:
    node.declare_queue("transient", durable=False)
    names = [(queue.vhost, queue.name, queue.is_stream) for queue in stored_queues(tmp_path)]
    assert names == [("/", "q", False), ("/", "s", True)]
    for number in range(300):
        node.declare_queue(f"more-{number}", durable=True)
    assert len(stored_queues(tmp_path)) == 302


async def test_what_is_not_there_is_said(node: weft.Node, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no stream or durable queue 'x' in vhost '/'"):
        open_log(tmp_path, "/", "x")
    with pytest.raises(LocalProtocolError, match="no stream or durable queue 'x' in vhost '/'"):
        node.read_log("x")
    with pytest.raises(ValueError, match='no column "x": there are stream, shard'):
        node.read_log("q", columns=["x"])
    with pytest.raises(ValueError, match="column message_id is asked for twice"):
        node.read_log("q", columns=["message_id", "body", "message_id"])
    with pytest.raises(Unavailable, match="there is no node's data in"):
        stored_queues(tmp_path / "messages")
    async with weft.Node() as other:
        other.declare_queue("q", durable=True)
        with pytest.raises(LocalProtocolError, match="no stream 'q' in vhost '/'"):
            other.read_log("q")


async def test_what_can_be_read_comes_before_why_the_rest_cannot(tmp_path: Path) -> None:
    async with weft.Node(data_dir=tmp_path) as node:
        node.declare_queue("s", durable=True, arguments=STREAM)
        await send(node, "s", *[f"body {number}" for number in range(10)])
    for segment in (tmp_path / "messages" / "segments").iterdir():
        segment.write_bytes(segment.read_bytes().replace(b"body 7", b"BODY 7"))
    reader = pa.RecordBatchReader.from_stream(open_log(tmp_path, "/", "s").read(columns=["body"], batch_rows=5))
    assert [len(reader.read_next_batch()), len(reader.read_next_batch())] == [5, 2]
    with pytest.raises(pa.ArrowInvalid, match="offset 7"):
        reader.read_next_batch()
    with pytest.raises(StopIteration):
        reader.read_next_batch()


async def test_a_stream_of_a_node_without_a_disk_is_read_from_memory() -> None:
    async with weft.Node() as node:
        node.declare_queue("s", durable=True, arguments=STREAM)
        await send(node, "s", *[f"{number}" for number in range(50)])
        assert bodies(node.read_log("s")) == [f"{number}".encode() for number in range(50)]
        assert bodies(node.read_log("s", 45, 48)) == [b"45", b"46", b"47"]
        assert bodies(node.read_log("s", 50)) == []
        assert len(bodies(node.read_log("s", whole=True))) == 50
