"""Links to a real RabbitMQ: pulled from its queues and pushed to them, whatever protocol wrote the messages.

Owns the proof that a link needs nothing of its peer but AMQP 1.0. One RabbitMQ is started for all of it. It must never
ask more than RabbitMQ's plugin can do. Rule: docs/reference/links.md, "Other brokers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pika
import pytest

from rabbit import RabbitMQ
from weft import Node
from weft.model.actions import Dial
from weft.model.changes import OpenLink
from weft.model.events import LinkAttached, LinkDetached

from .test_links import Watcher

pytestmark = [pytest.mark.slow, pytest.mark.peers, pytest.mark.timeout(180)]
COUNT = 200
CREDIT = 50
PROPERTIES = pika.BasicProperties(content_type="text/plain", delivery_mode=2, correlation_id="c", message_id="m")
"""What RabbitMQ's plugin tells a 1.0 peer of a 0-9-1 message; it keeps headers to itself."""


@pytest.fixture
def channel(rabbitmq: RabbitMQ) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq.url))
    yield connection.channel()
    connection.close()


def dial(peer: RabbitMQ) -> Dial:
    return Dial(1, peer.host, peer.port, mechanism="PLAIN", response=b"\0guest\0guest", hostname="vhost:/")


@pytest.mark.parametrize("relay", [False, True])
def test_a_queue_of_rabbitmq_is_drained(
    rabbitmq: RabbitMQ, channel: pika.adapters.blocking_connection.BlockingChannel, relay: bool
) -> None:
    channel.queue_declare("pulled", durable=True)
    channel.queue_bind("pulled", "amq.topic", "some.#")
    for number in range(COUNT):
        channel.basic_publish("amq.topic", "some.key", str(number).encode(), PROPERTIES)

    async def pull() -> None:
        async with Node(name="here") as node:
            node.declare_queue("got")
            node.bind("amq.topic", "got", "#.key")
            address = "/amq/queue/pulled"
            watcher = Watcher(OpenLink(0, 1, "pull", "pull", address, exchange="amq.topic", credit=CREDIT, relay=relay))
            node._running.driver.add_controller(watcher)
            node._running.driver.apply([dial(rabbitmq)])
            async with node.receive("got") as receiver, asyncio.timeout(30):
                for number in range(COUNT):
                    message = await anext(receiver)
                    assert message.body == str(number).encode()
                    message.accept()
            assert message.routing_key == "some.key"
            properties = message.properties
            assert (properties["message_id"], properties["correlation_id"]) == ("m", "c")
            assert (properties["delivery_mode"], properties["content_type"]) == (2, "text/plain")

    asyncio.run(pull())
    # What was accepted as the node ended may not have been told any more: it is there again, and no more than that.
    assert channel.queue_declare("pulled", passive=True).method.message_count <= CREDIT


def test_a_message_comes_back_from_rabbitmq_as_it_went(
    rabbitmq: RabbitMQ, channel: pika.adapters.blocking_connection.BlockingChannel
) -> None:
    channel.queue_declare("between", durable=True)
    headers = {"colour": "red", "size": 7}

    async def push(received: asyncio.Event) -> None:
        async with Node(name="there") as node:
            node.declare_queue("out")
            node.bind("amq.topic", "out", "#")
            watcher = Watcher(OpenLink(0, 1, "push", "push", "/amq/queue/between", queue="out", relay=True))
            node._running.driver.add_controller(watcher)
            node._running.driver.apply([dial(rabbitmq)])
            await watcher.until(LinkAttached)
            for number in range(COUNT):
                await node.send("amq.topic/a.b", str(number), headers=headers, delivery_mode=2, message_id="m")
            await received.wait()

    async def pull() -> None:
        async with Node(name="here") as node:
            node.declare_queue("got")
            watcher = Watcher(OpenLink(0, 1, "pull", "pull", "/amq/queue/between", queue="got", relay=True))
            node._running.driver.add_controller(watcher)
            node._running.driver.apply([dial(rabbitmq)])
            async with node.receive("got") as receiver, asyncio.timeout(30):
                for number in range(COUNT):
                    message = await anext(receiver)
                    assert message.body == str(number).encode()
                    message.accept()
            assert (message.exchange, message.routing_key) == ("amq.topic", "a.b")
            found = message.properties["headers"]
            assert {name: found[name] for name in headers} == headers
            assert found["x-weft-trace"] == ["there"]
            assert found["x-weft-id"].startswith("there:")
            assert (message.properties["message_id"], message.properties["delivery_mode"]) == ("m", 2)

    async def both() -> None:
        received = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            pulling = tasks.create_task(pull())
            pulling.add_done_callback(lambda _: received.set())
            tasks.create_task(push(received))

    asyncio.run(both())


def test_a_missing_queue_of_rabbitmq_is_told(rabbitmq: RabbitMQ) -> None:
    async def pull() -> str:
        async with Node(name="here") as node:
            node.declare_queue("got")
            watcher = Watcher(OpenLink(0, 1, "pull", "pull", "/amq/queue/missing", queue="got"))
            node._running.driver.add_controller(watcher)
            node._running.driver.apply([dial(rabbitmq)])
            event = await watcher.until(LinkDetached)
            assert isinstance(event, LinkDetached)
            return event.text

    assert "missing" in asyncio.run(pull())
