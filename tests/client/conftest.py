"""Nodes for the client's tests: one in this process, reachable by memory and by TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import weft


@pytest.fixture
async def node() -> AsyncIterator[weft.Node]:
    async with weft.Node(name="here", listen=["127.0.0.1:0"]) as node:
        yield node


@pytest.fixture(params=["memory", "tcp"])
def url(node: weft.Node, request: pytest.FixtureRequest) -> str:
    return "weft+memory:here" if request.param == "memory" else f"amqp://127.0.0.1:{node.ports[0]}"


@pytest.fixture
async def fabric(url: str) -> AsyncIterator[weft.Fabric]:
    async with weft.connect(url, timeout_s=30) as fabric:
        yield fabric
