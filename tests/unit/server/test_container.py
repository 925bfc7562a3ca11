"""Addresses answered by Python: every hook is called, whatever the peer does, and a failing one harms nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aio_pika
import pytest
from proton import Message
from proton.utils import BlockingConnection

import weft


class Recorder(weft.NodeType):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.changed = asyncio.Event()

    def note(self, word: str) -> None:
        self.calls.append(word)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 10)

    def on_create(self) -> None:
        self.note("create")

    def on_attach(self, link: weft.Link) -> None:
        self.note(f"attach {link.sends}")

    def on_detach(self, link: weft.Link) -> None:
        self.note(f"detach {link.sends}")

    async def on_message(self, message: weft.Message) -> None:
        if message.body == b"bad":
            raise ValueError("no")
        self.note(message.body.decode())
        message.accept()

    def on_destroy(self) -> None:
        self.note("destroy")


async def test_every_hook_is_called_once() -> None:
    kind = Recorder()
    async with weft.Node(listen="127.0.0.1:0") as node:
        node.register("place", kind)
        with pytest.raises(weft.LocalProtocolError, match="already"):
            node.register("place", Recorder())
        connection = await asyncio.to_thread(BlockingConnection, f"127.0.0.1:{node.ports[0]}", timeout=10)
        sender = await asyncio.to_thread(connection.create_sender, "place")
        await asyncio.to_thread(sender.send, Message(body=b"one", inferred=True))
        await asyncio.to_thread(sender.close)
        await kind.until(lambda: "detach True" in kind.calls)
        await asyncio.to_thread(connection.create_receiver, "place")
        # The connection goes without a word to the link.
        await asyncio.to_thread(connection.close)
        await kind.until(lambda: "detach False" in kind.calls)
    assert kind.calls == ["create", "attach True", "one", "detach True", "attach False", "detach False", "destroy"]
    assert not kind.links


async def test_a_message_that_fails_is_rejected_and_the_next_is_served(caplog: pytest.LogCaptureFixture) -> None:
    kind = Recorder()
    async with weft.Node(listen="127.0.0.1:0") as node:
        node.register("place", kind)
        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/")
        channel = await connection.channel()
        with caplog.at_level(logging.ERROR, "weft"):
            for body in (b"bad", b"good"):
                await channel.default_exchange.publish(aio_pika.Message(body), "place")
            await kind.until(lambda: "good" in kind.calls)
        assert "failed" in caplog.text
        await connection.close()
        await node.unregister("place")
        with pytest.raises(weft.LocalProtocolError, match="no node type"):
            await node.unregister("place")


async def test_what_it_sends_reaches_receivers_and_links_end_with_the_address() -> None:
    kind = Recorder()
    async with weft.Node(listen="127.0.0.1:0") as node:
        node.register("place", kind)
        connection = await asyncio.to_thread(BlockingConnection, f"127.0.0.1:{node.ports[0]}", timeout=10)
        receiver = await asyncio.to_thread(connection.create_receiver, "place")
        await kind.send(b"news")
        message = await asyncio.to_thread(receiver.receive, timeout=10)
        assert bytes(message.body) == b"news"
        await node.unregister("place")
        assert kind.calls[-2:] == ["detach False", "destroy"]
        with pytest.raises(weft.LocalProtocolError):
            await kind.send(b"more")
        await asyncio.to_thread(connection.close)
