"""What goes wrong in a program is told where it goes wrong, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import peers
import weft
from weft.client import Message, sync


@pytest.fixture
def node_url(tmp_path: Path) -> Iterator[str]:
    """A node in a process of its own: a fork would take one in this process along."""
    peer = peers.start_weft(tmp_path)
    yield f"amqp://127.0.0.1:{peer.port}"
    peer.stop()


@pytest.mark.parametrize("url", [5, b"amqp://host", [b"amqp://host"], "amqp://host:0"])
def test_what_is_no_url(url: Any) -> None:
    with pytest.raises(weft.ConfigError):
        weft.connect(url)


async def test_a_virtual_host_that_is_not_there_refuses_at_once(node: weft.Node) -> None:
    with pytest.raises(weft.Refused, match="nowhere"):
        await weft.connect(f"amqp://127.0.0.1:{node.ports[0]}/nowhere", timeout_s=30).open()


async def test_a_client_that_is_not_wanted_any_more_says_so(node: weft.Node) -> None:
    manager = node.management.manager
    await manager.create(manager.node, "user", "/", "ada", {"password": "a", "tags": []})
    await manager.create(manager.node, "permission", "/", "ada", {"configure": ".*", "write": ".*", "read": ".*"})
    async with weft.connect(f"amqp://ada:a@127.0.0.1:{node.ports[0]}") as fabric:
        await fabric.send("q", 1)
        await manager.delete(manager.node, "user", "/", "ada", {})
        core = fabric.core
        assert core._transport is not None
        core.loop.call_soon_threadsafe(core._transport.abort)
        while not core.is_closed:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        for call in (fabric.send("q", 2), fabric.send("other", 2), fabric.request("q", 2)):
            with pytest.raises(weft.Refused, match="password"):
                await call


async def test_calls_that_make_no_sense(fabric: weft.Fabric) -> None:
    with pytest.raises(TypeError, match="an address is str, not int"):
        await fabric.send(5, "x")  # type: ignore[arg-type]
    with pytest.raises(weft.LocalProtocolError, match="auto"):
        fabric.receive("q", accept="all")  # type: ignore[arg-type]


async def test_many_bodies_may_be_of_many_kinds(fabric: weft.Fabric) -> None:
    given = [1, "a", "b", b"c", {"d": 1}]
    await fabric.send_many("mixed", given)
    await fabric.send_many("mixed", ["e", b"f"], content_type="text/x-mine")
    async with fabric.receive("mixed") as messages:
        assert [(await anext(messages)).body for _ in given] == given
        assert [(await anext(messages)).content_type for _ in range(2)] == ["text/x-mine"] * 2


async def test_a_request_may_wait_for_ever(fabric: weft.Fabric) -> None:
    @fabric.service("echo")
    async def echo(request: Message) -> object:
        return [request.body, request.expires_at]

    await echo.start()
    assert (await fabric.request("echo", 1, timeout_s=float("inf"))).body == [1, None]
    with pytest.raises(weft.LocalProtocolError, match="started already"):
        await echo.start()


async def test_a_queue_is_not_read_as_a_stream(fabric: weft.Fabric) -> None:
    """It would give its messages away."""
    await fabric.send("classic", "kept")
    with pytest.raises(weft.Refused, match="not a stream"):
        await anext(fabric.stream("classic", offset="first"))
    async with fabric.receive("classic") as messages:
        assert (await anext(messages)).body == "kept"


async def test_one_at_a_time_waits_for_a_receiver(fabric: weft.Fabric) -> None:
    async with fabric.receive("shared") as messages:
        first = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)
        with pytest.raises(weft.LocalProtocolError, match="each needs its own"):
            await anext(messages)
        first.cancel()
        await asyncio.wait([first])
        await fabric.send("shared", 1)
        assert (await anext(messages)).body == 1


async def test_whatever_a_handler_does_is_answered(fabric: weft.Fabric) -> None:
    calls = 0

    @fabric.service("odd")
    async def odd(request: Message) -> object:
        nonlocal calls
        calls += 1
        match request.body:
            case "set":
                return {1}
            case "half a character":
                return "\ud800"
            case "too large":
                return bytes(140 << 20)
            case "cancelled":
                raise asyncio.CancelledError("elsewhere")
            case "time":
                raise TimeoutError("mine")
            case _:
                raise ValueError("\ud800")

    await odd.start()
    expected = {
        "set": "TypeError",
        "half a character": "UnicodeEncodeError",
        "too large": "LocalProtocolError",
        "cancelled": "CancelledError",
        "time": "TimeoutError",
        "": "ValueError",
    }
    for body, kind in expected.items():
        with pytest.raises(weft.ServiceError) as told:
            await fabric.request("odd", body, timeout_s=60)
        assert told.value.kind == kind
    assert calls == len(expected), "none was tried again"


async def test_a_step_that_makes_nonsense_goes_on(fabric: weft.Fabric) -> None:
    pipeline = fabric.pipeline("line", output="line.out")
    tries = 0

    @pipeline.step("only")
    async def only(message: Message) -> object:
        nonlocal tries
        tries += 1
        return {1} if tries == 1 else message.body

    await pipeline.start()
    await pipeline.send("value")
    async with fabric.receive("line.out") as out:
        assert (await anext(out)).body == "value"
    assert tries == 2
    await pipeline.stop()


def test_a_child_leaves_its_parents_connection_alone(node_url: str) -> None:
    with sync.connect(node_url) as fabric, fabric.receive("forked") as messages:
        fabric.send("forked", 1)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # a child that hangs must not hold up the test
            os._exit(_in_the_child(fabric, messages, node_url))
        assert os.waitpid(child, 0)[1] == 0
        assert [next(messages).body for _ in range(2)] == [1, "from the child"]
        fabric.send("forked", 3)
        assert next(messages).body == 3


def _in_the_child(fabric: sync.Fabric, messages: sync.Receiver, url: str) -> int:
    try:
        for use in (lambda: fabric.send("forked", 2), lambda: fabric.request("x", 2), messages.ready):
            with pytest.raises(weft.LocalProtocolError, match="before a fork"):
                use()
        with sync.connect(url) as own:
            own.send("forked", "from the child")
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
