"""AMQP over WebSocket: what a peer says arrives as from a socket, pages from elsewhere do not."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio

import weft
from weft.config import parse

HEADER_091 = b"AMQP\x00\x00\x09\x01"
CONFIG = '[http]\naddress = "127.0.0.1:0"\norigins = ["https://shop.example"]'


@pytest_asyncio.fixture
async def node() -> AsyncIterator[weft.Node]:
    async with weft.Node(name="here", configuration=parse(CONFIG)) as node:
        yield node


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def url(node: weft.Node) -> str:
    return f"http://127.0.0.1:{node.http_port}/amqp"


async def said(socket: aiohttp.ClientWebSocketResponse, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += await socket.receive_bytes(timeout=30)
    return data


async def test_bytes_go_both_ways_whatever_the_borders(node: weft.Node, session: aiohttp.ClientSession) -> None:
    async with session.ws_connect(url(node), protocols=("amqp",)) as socket:
        assert socket.protocol == "amqp"
        for byte in HEADER_091:
            await socket.send_bytes(bytes([byte]))
        start = await said(socket, 11)
        assert struct.unpack(">BHIHH", start[:11])[::3] == (1, 10)
        assert len(node.snapshot()["connections"]) == 1
        assert not node.snapshot()["connections"][0]["tls"]


async def test_the_end_comes_from_either_side(node: weft.Node, session: aiohttp.ClientSession) -> None:
    async with session.ws_connect(url(node), protocols=("amqp",)) as socket:
        await socket.send_bytes(b"HTTP/1.1 what")
        told = await socket.receive(timeout=30)
        while told.type is aiohttp.WSMsgType.BINARY:
            told = await socket.receive(timeout=30)
        assert told.type is aiohttp.WSMsgType.CLOSE
    async with session.ws_connect(url(node), protocols=("amqp",)) as socket:
        await socket.send_bytes(HEADER_091)
        await said(socket, 11)
    async with asyncio.timeout(30):
        while node.snapshot()["connections"]:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


async def test_text_is_no_amqp(node: weft.Node, session: aiohttp.ClientSession) -> None:
    async with session.ws_connect(url(node), protocols=("amqp",)) as socket:
        await socket.send_str("AMQP")
        told = await socket.receive(timeout=30)
        assert (told.type, told.data) == (aiohttp.WSMsgType.CLOSE, 1003)


async def test_pages_of_other_sites_are_refused(node: weft.Node, session: aiohttp.ClientSession) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    # The second is what a page says whose name was made to lead here.
    for origin in ("https://evil.example", f"http://127.0.0.1:{node.http_port}", "null", "http://[::1"):
        async with session.get(url(node), headers={**upgrade, "Origin": origin}) as refused:
            assert refused.status == 403
            assert "[http] origins" in await refused.text()
    async with session.ws_connect(url(node), protocols=("amqp",), origin="https://shop.example") as socket:
        await socket.send_bytes(HEADER_091)
        await said(socket, 11)


async def test_a_plain_request_is_told_what_is_here(node: weft.Node, session: aiohttp.ClientSession) -> None:
    async with session.get(url(node)) as answer:
        assert (answer.status, answer.headers["Upgrade"]) == (426, "websocket")


async def test_stopping_the_node_ends_the_sockets(session: aiohttp.ClientSession) -> None:
    node = weft.Node(name="there", configuration=parse(CONFIG))
    await node.start()
    async with session.ws_connect(url(node), protocols=("amqp",)) as socket:
        await socket.send_bytes(HEADER_091)
        await said(socket, 11)
        await node.stop()
        told = await socket.receive(timeout=30)
        assert told.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSING)
