"""A node to be managed, and ways to ask it over AMQP 1.0 and HTTP, none of them in the way of the test's own loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest_asyncio
from proton import Message
from proton.utils import BlockingConnection, SyncRequestResponse
from yarl import URL

import weft

Ask = Callable[..., Any]


@pytest_asyncio.fixture
async def node() -> AsyncIterator[weft.Node]:
    async with weft.Node(name="here", listen="127.0.0.1:0") as running:
        yield running


class Console:
    """Requests to `$management`, by a real AMQP 1.0 client in a thread."""

    def __init__(self, port: int, user: str | None = None) -> None:
        self._url = f"amqp://{f'{user}:{user}@' if user else ''}127.0.0.1:{port}"
        self._connection: BlockingConnection | None = None
        self._pair: SyncRequestResponse | None = None

    def _ask(self, operation: str, body: object, names: dict[str, object]) -> tuple[int, Any]:
        if self._pair is None:
            self._connection = BlockingConnection(self._url, timeout=10, allowed_mechs="PLAIN ANONYMOUS")
            self._pair = SyncRequestResponse(self._connection, "$management")
        answer = self._pair.call(Message(properties={"operation": operation, **names}, body=body))
        return answer.properties["statusCode"], answer.body

    async def ask(self, operation: str, body: object = None, **names: object) -> tuple[int, Any]:
        """Send a request; (status, body)."""
        return await asyncio.to_thread(self._ask, operation, body or {}, names)

    async def rows(self, class_name: str, **names: object) -> list[dict[str, Any]]:
        """Every object of a class."""
        status, body = await self.ask("QUERY", entityType=class_name, **names)
        assert status == 200, body
        return [dict(zip(body["attributeNames"], row, strict=True)) for row in body["results"]]

    async def close(self) -> None:
        if self._connection is not None:
            await asyncio.to_thread(self._connection.close)


@pytest_asyncio.fixture
async def console(node: weft.Node) -> AsyncIterator[Console]:
    console = Console(node.ports[0])
    yield console
    await console.close()


class Browser:
    """HTTP requests as one user."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._port = port

    async def ask(self, method: str, path: str, body: object = None, user: str = "guest") -> tuple[int, Any]:
        """(status, JSON or text) of a request."""
        headers = {"Authorization": aiohttp.encode_basic_auth(user, user)} if user else {}
        url = URL(f"http://127.0.0.1:{self._port}{path}", encoded=True)
        async with self._session.request(method, url, json=body, headers=headers) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def get(self, path: str) -> Any:
        status, value = await self.ask("GET", path)
        assert status == 200, value
        return value
