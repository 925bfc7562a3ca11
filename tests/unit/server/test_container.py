"""Addresses answered by Python: every hook is called, whatever the peer does, and a failing one harms nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import aio_pika
import pytest
from proton import Message
from proton.reactor import AtMostOnce
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

    def on_flow(self, link: weft.Link, credit: int) -> None:
        self.note(f"flow {credit}")

    def on_settled(self, message_id: str, outcome: str) -> None:
        self.note(f"{outcome} {message_id}")

    def on_destroy(self) -> None:
        self.note("destroy")


async def test_every_hook_is_called_once() -> None:
    kind = Recorder()
    async with weft.Node(listen="127.0.0.1:0") as node:
        node.register("place", kind)
        for taken in ("place", "place.out"):
            with pytest.raises(weft.LocalProtocolError, match="already"):
                node.register(taken, Recorder())
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


WORDS = {"accepted": "accept", "rejected": "reject", "released": "release", "modified": "retry"}


@pytest.mark.parametrize("outcome", WORDS)
async def test_it_hears_what_receivers_grant_and_what_they_decide(outcome: str) -> None:
    kind = Recorder()
    async with weft.Node(listen="127.0.0.1:0") as node:
        node.register("place", kind)
        fabric = weft.connect(f"amqp://127.0.0.1:{node.ports[0]}")
        async with fabric, fabric.receive("place", accept="explicit", credit=3) as messages:
            await kind.until(lambda: "flow 3" in kind.calls)
            await kind.send(b"news", message_id="m")
            message = await anext(messages)
            assert not any("m" in call.split() for call in kind.calls), "nobody has decided yet"
            getattr(message, WORDS[outcome])()
            await kind.until(lambda: f"{outcome} m" in kind.calls)
            if outcome in ("released", "modified"):  # it is there again, with a life of its own
                (await anext(messages)).accept()
                await kind.until(lambda: "accepted m" in kind.calls)
    assert kind.calls.count(f"{outcome} m") == 1


async def test_what_leaves_settled_has_ended_and_what_a_lost_link_held_has_not() -> None:
    kind = Recorder()
    async with weft.Node(listen="127.0.0.1:0") as node:
        node.register("place", kind)
        url = f"127.0.0.1:{node.ports[0]}"
        await kind.send(b"lost", message_id="lost")
        connection = await asyncio.to_thread(BlockingConnection, url, timeout=10)
        receiver = await asyncio.to_thread(connection.create_receiver, "place", credit=1)
        await asyncio.to_thread(receiver.receive, timeout=10)
        await asyncio.to_thread(connection.close)
        await kind.until(lambda: "detach False" in kind.calls)
        assert "released lost" not in kind.calls, "nobody has said so"
        connection = await asyncio.to_thread(BlockingConnection, url, timeout=10)
        await asyncio.to_thread(connection.create_receiver, "place", credit=1, options=AtMostOnce())
        await kind.until(lambda: "accepted lost" in kind.calls)
        await asyncio.to_thread(connection.close)


async def test_hooks_that_fail_harm_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(weft.NodeType):
        def fail(self, *_: object) -> None:
            raise ValueError("no")

        on_create = on_attach = on_detach = on_flow = on_settled = on_destroy = fail

    async with weft.Node(listen="127.0.0.1:0") as node:
        kind = Broken()
        node.register("broken", kind)
        async with weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric:
            await kind.send(b"news")
            async with fabric.receive("broken", timeout_s=30) as messages:
                assert (await anext(messages)).data == b"news"
        await node.unregister("broken")
    assert caplog.text.count("a hook of a node type failed") >= 5
