"""Fifty thousand queues: a page is quick, and messages do not wait for it."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import pytest

import weft
from weft.config import parse
from weft.model.changes import DeclareQueue

COUNT = 50_000
PAGE_S = 0.2
HELD_S = 0.05
"""How long one page may keep the loop: messages wait no longer than that."""
AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()


async def page(port: int, query: str) -> tuple[float, dict[str, object]]:
    """(seconds, answer) of one request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begin = time.perf_counter()
    head = f"GET /api/queues?{query} HTTP/1.1\r\nHost: x\r\nAuthorization: {AUTHORIZATION}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.read()
    took = time.perf_counter() - begin
    writer.close()
    return took, json.loads(answer.partition(b"\r\n\r\n")[2])


async def longest_turn(stop: asyncio.Event) -> float:
    """The longest time that the loop did not turn."""
    longest, last = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


@pytest.mark.slow
async def test_a_page_of_fifty_thousand_queues_is_quick() -> None:
    async with weft.Node(name="here", configuration=parse('[http]\naddress = "127.0.0.1:0"\n')) as node:
        driver = node.management.manager.host.driver
        driver.apply([DeclareQueue("/", f"queue-{number:05}", durable=True) for number in range(COUNT)])
        await page(node.http_port, "page=1&page_size=1")  # the password is verified once, slowly
        stop = asyncio.Event()
        watching = asyncio.create_task(longest_turn(stop))
        for query in (
            "page=1&page_size=100",
            "page=250&page_size=100&sort=messages&sort_reverse=true",
            "page=1&page_size=100&name=queue-4",
            "page=1&page_size=100&name=%5Equeue-.*7%24&use_regex=true",
        ):
            took, answer = min([await page(node.http_port, query) for _ in range(3)], key=lambda pair: pair[0])
            assert answer["total_count"] == COUNT
            assert answer["item_count"] == 100
            assert took < PAGE_S, (query, took)
        stop.set()
        held = await watching
        assert held < PAGE_S, held
