"""Relays between real nodes: two sides in step, one object, there after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.network.fabric import Nodes, take, until
from weft.federation import relay_of
from weft.model.errors import ConfigError, Refused
from weft.network.relays import Relays
from weft.server import Node


def relays(node: Node) -> Relays:
    return node._running.membership.relays


def relay(node: Node, name: str, url: str, **values: object) -> None:
    relays(node).put(relay_of({"name": name, "urls": [url], **values}))


async def test_an_exchange_is_kept_in_step_both_ways() -> None:
    async with Nodes() as fabric:
        one, other = await fabric.add("one"), await fabric.add("other")
        for node in (one, other):
            node.declare_exchange("news", "topic")
            node.declare_queue("all")
            node.bind("news", "all", "#")
        relay(one, "news", fabric.url("other"), exchange="news")
        await until(lambda: relays(one).rows()[0]["state"] == "flowing")
        await one.send("news/a", b"from one")
        await other.send("news/b", b"from other")
        for node in (one, other):
            assert {message.body for message in await take(node, "all", 2)} == {b"from one", b"from other"}
        (row,) = relays(one).rows()
        assert (row["name"], row["exchange"], row["peer"]) == ("news", "news", "other")


async def test_a_queue_goes_to_the_queue_of_its_name() -> None:
    async with Nodes() as fabric:
        shop, centre = await fabric.add("shop"), await fabric.add("centre")
        for node in (shop, centre):
            node.declare_queue("sales")
        await shop.send("sales", b"before")
        relay(shop, "sales", fabric.url("centre"), queue="sales")
        await shop.send("sales", b"after")
        assert [message.body for message in await take(centre, "sales", 2)] == [b"before", b"after"]


async def test_it_is_one_object_that_survives_and_goes_as_a_whole(tmp_path: Path) -> None:
    async with Nodes() as fabric:
        one = await fabric.add("one", data_dir=tmp_path / "one")
        one.declare_exchange("news", "topic")
        relay(one, "news", "amqp://127.0.0.1:1", exchange="news", mode="complete")
        with pytest.raises(Refused, match="belongs to something else"):
            one.network.remove_route("news.in")
        one.add_link("taken", "amqp://127.0.0.1:1")
        with pytest.raises(Refused, match="there is a link 'taken' already"):
            relay(one, "taken", "amqp://127.0.0.1:1", exchange="news")
        with pytest.raises(ConfigError, match="link 'news': a relay or a policy has one of this name"):
            one.network.configure([{"name": "news", "urls": ["amqp://127.0.0.1:2"]}], [])
        await one.stop()
        again = await fabric.add("one", data_dir=tmp_path / "one")
        assert [row["mode"] for row in relays(again).rows()] == ["complete"]
        assert [row["name"] for row in again.network.federation.routes()] == ["news.in", "news.out"]
        relay(again, "news", "amqp://127.0.0.1:1", queue="later")
        assert [row["name"] for row in again.network.federation.routes()] == ["news.out"]
        again.add_route("news", "queue", queue="q", key="q", name="guest")
        with pytest.raises(Refused, match="carries other routes: guest"):
            relays(again).remove("news")
        assert [row["name"] for row in relays(again).rows()] == ["news"]
        again.network.remove_route("guest")
        relays(again).remove("news")
        assert not again.network.federation.routes()
        assert [row["name"] for row in again.network.federation.links()] == ["taken"]
        with pytest.raises(Refused, match="no relay 'news'"):
            relays(again).remove("news")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "either an exchange or a queue"),
        ({"exchange": "x", "queue": "q"}, "either an exchange or a queue"),
        ({"exchange": "x", "mode": "square"}, "relay is 'square'"),
        ({"exchange": "x", "urls": ["http://x"]}, "is not amqp://"),
        ({"exchange": "x", "credits": 1}, "a relay has no 'credits'"),
    ],
)
def test_a_wrong_one_is_refused_with_the_reason(values: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        relay_of({"name": "r", "urls": ["amqp://there"], **values})
