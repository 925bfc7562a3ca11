"""Who is believed when it speaks for nodes, and what of it."""

from __future__ import annotations

from typing import Any

import aio_pika
import pytest

import weft
from weft.config import parse
from weft.federation import control
from weft.model.errors import Refused
from weft.network import voices
from weft.network.voices import Voice, Voices

from .fabric import Nodes, until

USERS = """
[[users]]
name = "app"
password = "app"
[[permissions]]
user = "app"
configure = "^app"
write = "^(app.*|amq.default)$"
read = "^app"
[[users]]
name = "partner"
password = "partner"
[[permissions]]
user = "partner"
write = '^\\$fabric$'
"""


def entries(**paths: dict[str, Any]) -> bytes:
    """What a node called zed says about the directory."""
    records = [
        {"p": f"/{path.replace('_', '/')}", "v": value, "n": 1, "o": "zed", "e": False} for path, value in paths.items()
    ]
    return control.encode("entries", "zed", records=records)


def known(node: weft.Node) -> set[str]:
    return {entry.path for entry in node.directory.known()} - {"/members/a"}


def users(node: weft.Node) -> set[str]:
    return {user.name for user in node._running.policy.users()}


async def heard(node: weft.Node) -> None:
    await until(lambda: node._running.engine.queue_stats("/", "$fabric")[:2] == (0, 0))  # type: ignore[index]


async def test_who_may_publish_but_not_to_the_fabric_is_not_heard() -> None:
    async with Nodes() as fabric:
        node = await fabric.add("a", configuration=parse(USERS))
        url = f"127.0.0.1:{node.ports[0]}/"
        async with weft.connect(fabric.url("a")) as operator:
            await operator.send("$fabric", entries(services_first={}))
            await until(lambda: known(node) == {"/services/first"})
        async with await aio_pika.connect(f"amqp://app:app@{url}") as app:
            channel = await app.channel()
            forged = aio_pika.Message(entries(services_forged={}, nodes_a_users_evil={"tags": ["administrator"]}))
            await channel.default_exchange.publish(forged, "$fabric")
            back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "$fabric", "x-message-ttl": 0}
            await channel.declare_queue("app.detour", arguments=back)
            await channel.default_exchange.publish(forged, "app.detour")
            await until(lambda: node._running.engine.queue_stats("/", "app.detour")[0] == 0)  # type: ignore[index]
        await heard(node)
        assert known(node) == {"/services/first"}
        assert users(node) == {"app", "partner", "guest"}


async def test_who_is_refused_keeps_nobody_else_out() -> None:
    async with Nodes() as fabric:
        node = await fabric.add("a", configuration=parse(USERS))
        async with weft.connect(f"amqp://app:app@127.0.0.1:{node.ports[0]}") as app:
            with pytest.raises(Refused, match=r"write access to queue '\$fabric'"):
                await app.send("$fabric", entries(services_forged={}))
        async with weft.connect(fabric.url("a")) as operator:
            await operator.send("$fabric", entries(services_first={}))
            await until(lambda: known(node) == {"/services/first"})


async def test_a_partner_tells_of_nodes_and_sets_none_up() -> None:
    async with Nodes() as fabric:
        node = await fabric.add("a", configuration=parse(USERS))
        async with weft.connect(f"amqp://partner:partner@127.0.0.1:{node.ports[0]}") as partner:
            await partner.send("$fabric", entries(services_x_zed={}, nodes_a_users_evil={"tags": ["administrator"]}))
            await until(lambda: known(node) == {"/services/x/zed"})
        assert "evil" not in users(node)
        async with weft.connect(fabric.url("a")) as operator:
            await operator.send("$fabric", entries(nodes_a_users_good={"password": "good"}))
            await until(lambda: "good" in users(node))


async def test_whom_a_node_has_dialled_is_believed() -> None:
    async with Nodes() as fabric:
        here = await fabric.add("a")
        there = await fabric.add("b")
        await there.directory.put("/nodes/a/users/ann", {"password": "ann"})
        fabric.link("a", "b")
        await until(lambda: "ann" in users(here))


class Policy:
    """Two users and who entered by which connection."""

    def __init__(self) -> None:
        self.entered = {1: "app", 2: "partner"}

    def user_of(self, conn: int) -> str | None:
        return self.entered.get(conn)

    def may(self, user: str, vhost: str, right: str, name: str) -> bool:
        return (user, vhost, right, name) == ("partner", "/", "write", "$fabric")

    def users(self) -> list[Any]:
        return []


def test_the_last_words_of_a_connection_count_as_those_before(monkeypatch: Any) -> None:
    monkeypatch.setattr(voices, "GONE_MAX", 2)
    policy = Policy()
    known = Voices(policy, {3, 4}.__contains__)  # type: ignore[arg-type]
    assert [known.of(conn, "/") for conn in (0, 1, 2)] == [Voice.NOBODY, Voice.NOBODY, Voice.NEIGHBOUR]
    policy.entered.clear()
    assert [known.of(conn, "/") for conn in (1, 2)] == [Voice.NOBODY, Voice.NEIGHBOUR]
    assert [known.of(conn, "/") for conn in (3, 4, 2)] == [Voice.SETTER, Voice.SETTER, Voice.NOBODY]
