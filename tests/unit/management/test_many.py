"""Fifty thousand queues: a page is right, and found a part at a time, so that messages do not wait for it."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

import weft
from weft._kernel import decode_value, encode_value
from weft.config import parse
from weft.management.classes.tables import LOOK
from weft.management.definitions import export, import_
from weft.management.query import RUN, Query, page_of
from weft.management.writing import LONG, amqp_document, json_document
from weft.model.changes import DeclareQueue

COUNT = 50_000
AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()


async def page(port: int, query: str) -> dict[str, Any]:
    """The answer to one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET /api/queues?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: {AUTHORIZATION}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self.count += 1
        self._next = self._loop.call_soon(self._turn)

    def stop(self) -> None:
        self._next.cancel()


@pytest.fixture(autouse=True)
def shortest_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part is over at once, so that turns do not depend on the speed of the machine."""
    monkeypatch.setattr("weft.management.turns.PART_NS", 0)


@pytest.mark.slow
async def test_a_page_of_fifty_thousand_queues_is_found_in_parts() -> None:
    async with weft.Node(name="here", configuration=parse('[http]\naddress = "127.0.0.1:0"\n')) as node:
        driver = node.management.manager.host.driver
        driver.apply([DeclareQueue("/", f"queue-{number:05}", durable=True) for number in range(COUNT)])
        for query, first, matched in (
            ("page=1&page_size=100", "queue-00000", COUNT),
            ("page=250&page_size=100&sort=messages&sort_reverse=true", "queue-25099", COUNT),
            ("page=1&page_size=100&name=Queue-4", "queue-40000", 10_000),
            ("page=2&page_size=100&name=%5Equeue-.*7%24&use_regex=true", "queue-01007", COUNT // 10),
        ):
            answer = await page(node.http_port, query)
            assert (answer["total_count"], answer["filtered_count"], answer["item_count"]) == (COUNT, matched, 100)
            assert answer["items"][0]["name"] == first, query
        manager, turns = node.management.manager, Turns()
        found = await manager.query(manager.node, "queue", Query(contains="queue-4999", count=10))
        turns.stop()
        assert [row["name"] for row in found.rows] == [f"queue-{number}" for number in range(49_990, COUNT)]
        assert turns.count >= COUNT // LOOK, "messages must not wait for the whole table"
        for class_name in ("node", "vhost"):
            turns = Turns()
            (row,) = (await manager.query(manager.node, class_name, Query())).rows
            turns.stop()
            assert row["queues"] == COUNT
            assert turns.count >= COUNT // LOOK, "nor for sums over it"


async def test_many_small_rows_are_sorted_and_cut_in_parts() -> None:
    rows = [{"name": f"n{number * 7919 % 2000:04}", "size": number % 7} for number in range(2_000)]
    turns = Turns()
    found = await page_of(rows, Query(contains="N1", sort="size", descending=True, offset=3, count=4))
    turns.stop()
    right = sorted((row for row in rows if "n1" in row["name"]), key=lambda row: (row["size"], row["name"]))[::-1]
    assert (found.total, found.matched, found.rows) == (2_000, 1_000, right[3:7])
    assert turns.count >= 2_000 // RUN


@pytest.mark.slow
async def test_definitions_of_many_are_told_in_parts(node: weft.Node) -> None:
    count = 500
    manager = node.management.manager
    queues = [{"name": f"q{number}", "vhost": "/", "arguments": {}} for number in range(count)]
    bindings = [
        {"source": "amq.topic", "vhost": "/", "destination": f"q{number}", "routing_key": "k"}
        for number in range(count)
    ]
    await import_(manager, manager.node, {"queues": queues, "bindings": bindings}, None)
    turns = Turns()
    document = await export(manager, manager.node, None)
    made = turns.count
    written = await json_document(document)
    turns.stop()
    assert made >= 2 * count
    assert turns.count - made >= 2 * count
    assert json.loads(written) == document
    assert [len(document[kind]) for kind in ("queues", "bindings")] == [count, count]


async def test_a_virtual_host_that_goes_while_it_is_told_is_left_out(node: weft.Node) -> None:
    manager = node.management.manager
    await manager.create(manager.node, "vhost", "/", "v", {})
    for number in range(100):
        await manager.create(manager.node, "queue", "v", f"q{number}", {})
    telling = asyncio.ensure_future(export(manager, manager.node, "v"))
    await asyncio.sleep(0)
    await manager.delete(manager.node, "vhost", "/", "v", {})
    document = await telling
    assert (document["exchanges"], document["bindings"]) == ([], [])


async def test_a_document_is_the_same_in_parts_and_whole() -> None:
    document = {
        "few": [1, None, b"x"],
        "many": [{"n": number, "inside": {"list": [True, 1.5]}} for number in range(3 * LONG)],
        "text": "é",
        "none": [],
    }
    assert decode_value(await amqp_document(document)) == decode_value(encode_value(document)) == document
    written = json.loads(await json_document(document))
    assert written == document | {"few": [1, None, "x"]}
