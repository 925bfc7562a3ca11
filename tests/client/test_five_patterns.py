"""The patterns of messaging, each in a few lines: a call, a letter, a circular, a newspaper, a mailbox.

`test_patterns.py` has what belongs to them: deadlines, errors, what is late or comes twice.
"""

from __future__ import annotations

from pathlib import Path

import weft
from weft.client import Message


async def test_a_call_is_answered(fabric: weft.Fabric) -> None:
    @fabric.service("double")
    async def double(request: Message) -> object:
        return 2 * request.body

    await double.start()
    assert (await fabric.request("double", 21, timeout_s=30)).body == 42


async def test_point_to_point_each_message_goes_to_one(fabric: weft.Fabric) -> None:
    async with fabric.receive("work", timeout_s=30) as one, fabric.receive("work", timeout_s=30) as two:
        await fabric.send_many("work", [1, 2, 3, 4])
        bodies = [(await anext(receiver)).body for receiver in (one, two, one, two)]
        assert sorted(bodies) == [1, 2, 3, 4]
        assert await one.next(0.05) is None


async def test_multicast_every_message_goes_to_all(node: weft.Node, fabric: weft.Fabric) -> None:
    node.declare_exchange("all", "fanout")
    async with fabric.receive("all", timeout_s=30) as one, fabric.receive("all", timeout_s=30) as two:
        await fabric.send("all", "hello")
        assert [(await anext(receiver)).body for receiver in (one, two)] == ["hello", "hello"]


async def test_publish_and_subscribe_all_get_what_they_asked_for(fabric: weft.Fabric) -> None:
    async with (
        fabric.subscribe("forex.*", timeout_s=30) as forex,
        fabric.subscribe("forex.usd", timeout_s=30) as dollar,
        fabric.subscribe("#", timeout_s=30) as everything,
    ):
        for topic in ("forex.usd", "forex.eur", "weather"):
            await fabric.publish(topic, topic)
        assert [(await anext(forex)).body for _ in range(2)] == ["forex.usd", "forex.eur"]
        assert (await anext(dollar)).body == "forex.usd"
        assert [(await anext(everything)).body for _ in range(3)] == ["forex.usd", "forex.eur", "weather"]
        assert await dollar.next(0.05) is None


async def test_store_and_forward_nobody_has_to_be_there_at_the_same_time(tmp_path: Path) -> None:
    """The sender without a node, the node without a sender, a restart, and the receiver last of all."""
    async with weft.connect("amqp://127.0.0.1:1", spool=tmp_path / "spool", timeout_s=0.05) as sender:
        await sender.send("box", "kept by the client")
    async with weft.Node(name="box", data_dir=tmp_path / "data", listen="127.0.0.1:0") as node:
        url = f"amqp://127.0.0.1:{node.ports[0]}"
        async with weft.connect(url, spool=tmp_path / "spool", timeout_s=30) as sender:
            await sender.send("box", "kept by the node")
    async with (
        weft.Node(name="box", data_dir=tmp_path / "data", listen="127.0.0.1:0") as node,
        weft.connect(f"amqp://127.0.0.1:{node.ports[0]}", timeout_s=30) as receiver,
        receiver.receive("box", timeout_s=30) as messages,
    ):
        assert [(await anext(messages)).body for _ in range(2)] == ["kept by the client", "kept by the node"]
