"""Permissions on topics, limits and parameters against a live node, by clients of both protocols."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import aiohttp
import pika
import pytest
import pytest_asyncio
from aiormq.exceptions import ChannelAccessRefused, ChannelPreconditionFailed
from proton import ConnectionException
from proton.utils import BlockingConnection

import weft
from weft.config import parse
from weft.model.errors import Refused, WeftError

from .conftest import Browser

CONFIG = """
[http]
address = "127.0.0.1:0"
[[users]]
name = "ann"
password = "ann"
[[users]]
name = "pam"
password = "pam"
tags = ["policymaker"]
[[permissions]]
user = "ann"
configure = ".*"
write = ".*"
read = ".*"
[[permissions]]
user = "pam"
"""
TOPICS = "/api/topic-permissions/%2F/ann"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[weft.Node]:
    async with weft.Node(name="here", listen="127.0.0.1:0", configuration=parse(CONFIG)) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="module")
async def browser(served: weft.Node) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession() as session:
        yield Browser(session, served.http_port)


def connect(node: weft.Node, user: str = "ann") -> Any:
    return aio_pika.connect(f"amqp://{user}:{user}@127.0.0.1:{node.ports[0]}/")


async def refused_entry(url: str) -> str:
    """What a client is told that may not enter."""

    def enter() -> str:
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as refused:
            pika.BlockingConnection(pika.URLParameters(url))
        return str(refused.value)

    return await asyncio.to_thread(enter)


@pytest_asyncio.fixture(loop_scope="module")
async def topics(browser: Browser) -> AsyncIterator[None]:
    """ann may publish below her own name, and read only what is about Europe."""
    body = {"exchange": "amq.topic", "write": "^{username}\\.", "read": "^eu\\."}
    assert (await browser.ask("PUT", TOPICS, body))[0] == 201
    yield
    assert (await browser.ask("DELETE", TOPICS))[0] == 204


@pytest.mark.usefixtures("topics")
async def test_keys_of_messages_over_0_9_1(served: weft.Node) -> None:
    async with await connect(served) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange("amq.topic")
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind(exchange, "eu.#")
        await exchange.publish(aio_pika.Message(b""), "ann.news")
        await (await channel.get_exchange("amq.direct")).publish(aio_pika.Message(b""), "bob.news")
        with pytest.raises(
            ChannelAccessRefused, match=r"topic 'bob.news' in exchange 'amq.topic' in vhost '/' refused"
        ):
            await exchange.publish(aio_pika.Message(b""), "bob.news")
        again = await connection.channel()
        copied = aio_pika.Message(b"", headers={"CC": ["bob.news"]})
        with pytest.raises(ChannelAccessRefused, match=r"bob.news"):
            await (await again.get_exchange("amq.topic")).publish(copied, "ann.news")


@pytest.mark.usefixtures("topics")
async def test_keys_of_bindings_over_0_9_1(served: weft.Node) -> None:
    async with await connect(served) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind("amq.direct", "us.#")
        with pytest.raises(ChannelAccessRefused, match=r"read access to topic 'us.#' in exchange 'amq.topic'"):
            await queue.bind("amq.topic", "us.#")


@pytest.mark.usefixtures("topics")
async def test_keys_over_1_0(served: weft.Node) -> None:
    served.declare_queue("heap")
    served.bind("amq.topic", "heap", "#")
    url = f"amqp://ann:ann@127.0.0.1:{served.ports[0]}"
    async with weft.connect(url) as fabric:
        await fabric.send("amq.topic/ann.news", b"mine")
        with pytest.raises(WeftError, match=r"bob\.news"):
            await fabric.send("amq.topic/bob.news", b"his")
        with pytest.raises(Refused, match=r"us\.#"):
            await anext(aiter(fabric.receive("amq.topic/us.#")))


async def test_a_change_holds_at_once(served: weft.Node, browser: Browser) -> None:
    async with await connect(served) as connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange("amq.topic")
        await exchange.publish(aio_pika.Message(b""), "bob.news")
        body = {"exchange": "amq.topic", "write": "^ann", "read": ""}
        assert (await browser.ask("PUT", TOPICS, body))[0] == 201
        with pytest.raises(ChannelAccessRefused):
            await exchange.publish(aio_pika.Message(b""), "bob.news")
        assert (await browser.ask("PUT", TOPICS, body | {"write": "^bob"}))[0] == 204
        channel = await connection.channel()
        await (await channel.get_exchange("amq.topic")).publish(aio_pika.Message(b""), "bob.news")
    told = await browser.get(TOPICS)
    assert told == [{"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "^bob", "read": ""}]
    for path in ("/api/topic-permissions", "/api/vhosts/%2F/topic-permissions", "/api/users/ann/topic-permissions"):
        assert await browser.get(path) == told
    assert (await browser.ask("DELETE", TOPICS))[0] == 204
    assert (await browser.ask("GET", TOPICS))[0] == 404
    assert (await browser.ask("PUT", TOPICS, body | {"write": "(?=x)"}))[0] == 400
    assert (await browser.ask("PUT", TOPICS, {"write": "", "read": ""}))[0] == 400


async def test_a_virtual_host_and_a_user_have_limits(served: weft.Node, browser: Browser) -> None:
    assert (await browser.ask("PUT", "/api/vhosts/small"))[0] == 201
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    assert (await browser.ask("PUT", "/api/permissions/small/ann", rights))[0] == 201
    assert (await browser.ask("PUT", "/api/vhost-limits/small/max-connections", {"value": 1}))[0] == 204
    assert (await browser.ask("PUT", "/api/vhost-limits/small/max-queues", {"value": 1}))[0] == 204
    limits = [{"vhost": "small", "value": {"max-connections": 1, "max-queues": 1}}]
    assert await browser.get("/api/vhost-limits") == limits
    assert await browser.get("/api/vhost-limits/small") == limits
    url = f"amqp://ann:ann@127.0.0.1:{served.ports[0]}/small"
    async with await aio_pika.connect(url) as connection:
        assert "connection limit (1) is reached" in await refused_entry(url)
        channel = await connection.channel()
        await channel.declare_queue("one")
        with pytest.raises(ChannelPreconditionFailed, match=r"queue limit in vhost 'small' \(1\) is reached"):
            await channel.declare_queue("two")
    assert (await browser.ask("DELETE", "/api/vhost-limits/small/max-queues"))[0] == 204
    assert (await browser.ask("PUT", "/api/queues/small/two", {}))[0] == 201
    assert (await browser.ask("PUT", "/api/user-limits/ann/max-connections", {"value": 0}))[0] == 204
    assert await browser.get("/api/user-limits/ann") == [{"user": "ann", "value": {"max-connections": 0}}]
    url = f"amqp://ann:ann@127.0.0.1:{served.ports[0]}/%2F"
    assert "user connection limit (0) is reached" in await refused_entry(url)
    assert (await browser.ask("DELETE", "/api/user-limits/ann/max-connections"))[0] == 204
    assert await browser.get("/api/user-limits") == []
    async with await connect(served):
        pass
    for path in ("vhost-limits/small/max-wings", "user-limits/ann/max-queues", "user-limits/nobody/max-connections"):
        assert (await browser.ask("PUT", f"/api/{path}", {"value": 1}))[0] in (400, 404)
    assert (await browser.ask("PUT", "/api/vhost-limits/small/max-queues", {"value": "many"}))[0] == 400
    assert (await browser.ask("DELETE", "/api/vhosts/small"))[0] == 204
    assert await browser.get("/api/vhost-limits") == []


async def test_a_user_has_so_many_channels(served: weft.Node, browser: Browser) -> None:
    url = f"amqp://ann:ann@127.0.0.1:{served.ports[0]}/%2F"
    assert (await browser.ask("PUT", "/api/user-limits/ann/max-channels", {"value": 3}))[0] == 204

    def use() -> str:
        with pika.BlockingConnection(pika.URLParameters(url)) as other:
            other.channel()
            connection = pika.BlockingConnection(pika.URLParameters(url))
            connection.channel().close()
            connection.channel()
            connection.channel()
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as refused:
                connection.channel()
        assert refused.value.reply_code == 530
        return str(refused.value.reply_text)

    assert "has reached the maximum allowed user limit of (3)" in await asyncio.to_thread(use)
    assert (await browser.ask("PUT", "/api/user-limits/ann/max-channels", {"value": 0}))[0] == 204

    def begin() -> None:
        plain = BlockingConnection(url.removesuffix("/%2F"), timeout=50, allowed_mechs="PLAIN")
        with pytest.raises(ConnectionException, match="resource-limit-exceeded"):
            plain.create_sender("heap")

    await asyncio.to_thread(begin)
    assert (await browser.ask("DELETE", "/api/user-limits/ann/max-channels"))[0] == 204
    async with weft.connect(f"amqp://ann:ann@127.0.0.1:{served.ports[0]}") as fabric:
        await fabric.send("heap", b"")


async def test_parameters_are_kept(browser: Browser) -> None:
    one = "/api/parameters/federation-upstream/%2F/up%2Fstream"
    assert (await browser.ask("PUT", one, {"value": {"uri": "amqp://"}}))[0] == 201
    assert (await browser.ask("PUT", one, {"value": {"uri": "amqps://"}}, user="pam"))[0] == 204
    kept = {"component": "federation-upstream", "vhost": "/", "name": "up/stream", "value": {"uri": "amqps://"}}
    assert await browser.get(one) == kept
    for path in ("", "/federation-upstream", "/federation-upstream/%2F"):
        assert await browser.get(f"/api/parameters{path}") == [kept]
    assert await browser.get("/api/parameters/shovel") == []
    assert (await browser.ask("PUT", one, {}))[0] == 400
    assert (await browser.ask("PUT", "/api/parameters/operator_policy/%2F/x", {"value": {}}))[0] == 400
    assert (await browser.ask("PUT", "/api/global-parameters/motto", {"value": [1, None]}))[0] == 201
    assert (await browser.ask("PUT", "/api/global-parameters/motto", {"value": "x"}, user="pam"))[0] == 403
    assert await browser.get("/api/global-parameters/motto") == {"name": "motto", "value": [1, None]}
    document = await browser.get("/api/definitions")
    assert kept in document["parameters"]
    assert document["global_parameters"] == [{"name": "motto", "value": [1, None]}]
    assert (await browser.ask("DELETE", one))[0] == 204
    assert (await browser.ask("DELETE", one))[0] == 404
    assert (await browser.ask("DELETE", "/api/global-parameters/motto"))[0] == 204
    assert (await browser.ask("POST", "/api/definitions", document))[0] == 204
    assert await browser.get("/api/definitions") == document


async def test_everything_is_in_definitions(browser: Browser) -> None:
    assert (await browser.ask("PUT", TOPICS, {"exchange": "amq.topic", "write": "w", "read": "r"}))[0] == 201
    assert (await browser.ask("PUT", "/api/vhost-limits/%2F/max-queues", {"value": 500}))[0] == 204
    assert (await browser.ask("PUT", "/api/user-limits/ann/max-channels", {"value": 5}))[0] == 204
    document = await browser.get("/api/definitions")
    topic = {"user": "ann", "vhost": "/", "exchange": "amq.topic", "write": "w", "read": "r"}
    assert document["topic_permissions"] == [topic]
    limits = {"component": "vhost-limits", "vhost": "/", "name": "limits", "value": {"max-queues": 500}}
    assert limits in document["parameters"]
    (ann,) = [user for user in document["users"] if user["name"] == "ann"]
    assert ann["limits"] == {"max-channels": 5}
    assert (await browser.ask("DELETE", TOPICS))[0] == 204
    assert (await browser.ask("DELETE", "/api/vhost-limits/%2F/max-queues"))[0] == 204
    assert (await browser.ask("DELETE", "/api/user-limits/ann/max-channels"))[0] == 204
    assert (await browser.ask("POST", "/api/definitions", document))[0] == 204
    assert await browser.get("/api/definitions") == document
    await asyncio.gather(
        browser.ask("DELETE", TOPICS),
        browser.ask("DELETE", "/api/vhost-limits/%2F/max-queues"),
        browser.ask("DELETE", "/api/user-limits/ann/max-channels"),
    )
