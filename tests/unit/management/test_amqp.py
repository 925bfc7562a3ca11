"""`$management` by both protocols, against a live node."""

from __future__ import annotations

import asyncio
import json
import os

import aio_pika
import pika
import pytest

import weft
from weft.config import parse

from .conftest import Console


async def test_a_queue_is_made_read_and_deleted(node: weft.Node, console: Console) -> None:
    assert node.http_port == 0  # all of this goes over AMQP alone
    status, made = await console.ask("CREATE", {"arguments": {"x-max-length": 5}}, type="queue", name="orders")
    assert (status, made["name"], made["durable"]) == (201, "orders", True)
    status, read = await console.ask("READ", type="queue", name="orders")
    assert (status, read["arguments"], read["identity"]) == (200, {"x-max-length": 5}, "queue/%2F/orders")
    assert (await console.ask("READ", identity=read["identity"]))[0] == 200
    assert (await console.ask("DELETE", type="queue", name="orders"))[0] == 204
    assert (await console.ask("READ", type="queue", name="orders"))[0] == 404
    assert (await console.ask("DELETE", type="queue", name="orders"))[0] == 404


async def test_counters_equal_what_was_sent(node: weft.Node, console: Console) -> None:
    for _ in range(7):
        await node.send("orders", b"12345")
    async with node.receive("orders") as receiver:
        for _ in range(3):
            (await anext(receiver)).accept()
    _, row = await console.ask("READ", type="queue", name="orders")
    assert (row["published"], row["settled"], row["ready"], row["ready_bytes"]) == (7, 3, 4, 20)


async def test_messages_are_looked_at_taken_purged_and_moved(node: weft.Node, console: Console) -> None:
    for number in range(5):
        await node.send("here.q", str(number))
    node.declare_queue("there")
    _, seen = await console.ask("get", {"count": 2}, type="queue", name="here.q")
    assert [message["payload"] for message in seen["messages"]] == ["0", "1"]
    _, taken = await console.ask("get", {"ackmode": "ack_requeue_false"}, type="queue", name="here.q")
    assert [message["payload"] for message in taken["messages"]] == ["0"]
    assert await console.ask("move", {"to": "there", "count": 3}, type="queue", name="here.q") == (200, {"count": 3})
    assert await console.ask("purge", type="queue", name="here.q") == (200, {"count": 1})
    _, row = await console.ask("READ", type="queue", name="there")
    assert row["ready"] == 3
    status, _ = await console.ask("move", {"to": "nowhere"}, type="queue", name="there")
    _, row = await console.ask("READ", type="queue", name="there")
    assert (status, row["ready"]) == (404, 3)


async def test_dead_letters_go_back_where_they_died(node: weft.Node, console: Console) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    node.declare_queue("work", arguments=arguments)
    node.declare_queue("dead")
    await node.send("work", b"x")
    async with node.receive("work") as receiver:
        (await anext(receiver)).reject()
    assert await console.ask("move", type="queue", name="dead") == (200, {"count": 1})
    rows = {row["name"]: row["ready"] for row in await console.rows("queue")}
    assert (rows["work"], rows["dead"]) == (1, 0)


async def test_exchanges_and_bindings(node: weft.Node, console: Console) -> None:
    assert (await console.ask("CREATE", {"type": "topic"}, type="exchange", name="news"))[0] == 201
    node.declare_queue("q")
    body = {"source": "news", "destination": "q", "routing_key": "a.*"}
    status, made = await console.ask("CREATE", body, type="binding")
    assert (status, made["name"]) == (201, "news/queue/q/a.%2A")
    sent = {"routing_key": "a.b", "payload": "aGk=", "payload_encoding": "base64"}
    assert await console.ask("publish", sent, type="exchange", name="news") == (200, {"routed": True})
    assert (await console.ask("DELETE", type="binding", name=made["name"]))[0] == 204
    assert await console.ask("publish", sent, type="exchange", name="news") == (200, {"routed": False})
    assert (await console.ask("DELETE", type="exchange", name="news"))[0] == 204


async def test_users_permissions_and_vhosts(console: Console) -> None:
    assert (await console.ask("CREATE", type="vhost", name="blue"))[0] == 201
    assert (await console.ask("CREATE", {"password": "joe", "tags": ["management"]}, type="user", name="joe"))[0] == 201
    rights = {"configure": "^joe", "write": ".*", "read": ".*"}
    assert (await console.ask("CREATE", rights, type="permission", name="joe", vhost="blue"))[0] == 201
    rows = await console.rows("user")
    assert all("password_hash" not in row for row in rows)
    assert {row["name"] for row in rows} == {"guest", "joe"}
    assert (await console.ask("UPDATE", {"tags": []}, type="user", name="joe"))[0] == 200
    assert (await console.ask("DELETE", type="user", name="joe"))[0] == 204
    assert (await console.ask("DELETE", type="vhost", name="blue"))[0] == 204


CONFIG = """
[[users]]
name = "joe"
password = "joe"
tags = ["management"]
[[users]]
name = "nobody"
password = "nobody"
[[permissions]]
user = "joe"
configure = "^(mine|amq.gen-)"
write = "^(mine.*|amq[.]default)$"
read = ".*"
[[permissions]]
user = "nobody"
configure = ".*"
write = ".*"
read = ".*"
"""


async def test_what_a_user_may_do_depends_on_tags_and_permissions() -> None:
    async with weft.Node(name="here", listen="127.0.0.1:0", configuration=parse(CONFIG)) as node:
        joe, nobody = Console(node.ports[0], "joe"), Console(node.ports[0], "nobody")
        node.declare_queue("others")
        assert (await nobody.ask("QUERY", entityType="queue"))[0] == 403
        assert "others" in [row["name"] for row in await joe.rows("queue")]
        assert (await joe.ask("CREATE", type="queue", name="mine"))[0] == 201
        assert (await joe.ask("CREATE", type="queue", name="others.too"))[0] == 403
        assert (await joe.ask("DELETE", type="queue", name="others"))[0] == 403
        assert (await joe.ask("QUERY", entityType="user"))[0] == 403
        assert (await joe.ask("quiesce", type="node"))[0] == 403
        assert [row["user"] for row in await joe.rows("connection")] == ["joe"]
        await nobody.close()
        await joe.close()


async def test_the_node_says_what_it_is(console: Console) -> None:
    (row,) = await console.rows("node")
    about = os.uname()
    assert (row["name"], row["os_name"], row["machine"]) == ("here", about.sysname, about.machine)
    assert (row["host_name"], row["release"], row["state"]) == (about.nodename, about.release, "running")


async def test_quiesce_stops_delivery_but_not_management(node: weft.Node, console: Console) -> None:
    assert (await console.ask("quiesce", type="node"))[0] == 200
    await node.send("q", b"x")
    async with node.receive("q") as receiver:
        taking = asyncio.ensure_future(anext(receiver))
        _, row = await console.ask("READ", type="queue", name="q")
        assert (row["ready"], row["state"], taking.done()) == (1, "quiesced", False)
        assert (await console.ask("resume", type="node"))[0] == 200
        (await taking).accept()


async def test_a_connection_is_closed_by_request(node: weft.Node, console: Console) -> None:
    closed = asyncio.Event()
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/")
    connection.close_callbacks.add(lambda *_: closed.set())
    rows = await console.rows("connection")
    (row,) = [row for row in rows if row["protocol"] == "AMQP 0-9-1"]
    assert row["user"] == "guest"
    assert row["client_properties"]["product"]
    assert (await console.ask("close", {"reason": "test"}, type="connection", name=row["name"]))[0] == 200
    await closed.wait()


async def test_requests_that_make_no_sense(console: Console) -> None:
    before = (await console.ask("QUERY", entityType="queue"))[1]["total"]
    assert (await console.ask("CREATE", type="queue", name=""))[0] == 400
    assert (await console.ask("QUERY", entityType="queue"))[1]["total"] == before
    assert (await console.ask("QUERY"))[0] == 400
    assert (await console.ask("QUERY", entityType="ghost"))[0] == 404
    assert (await console.ask("READ", type="queue"))[0] == 400
    assert (await console.ask("frobnicate", type="queue", name="q"))[0] == 501
    assert (await console.ask("CREATE", {"durable": "yes"}, type="queue", name="q"))[0] == 400
    assert (await console.ask("CREATE", {"colour": "blue"}, type="queue", name="q"))[0] == 400
    assert (await console.ask("CREATE", ["a"], type="queue", name="q"))[0] == 400
    assert (await console.ask("QUERY", {"pattern": "(a+)+$"}, entityType="queue"))[0] == 400


async def test_a_0_9_1_client_asks_in_json(node: weft.Node) -> None:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{node.ports[0]}/")
    async with connection:
        channel = await connection.channel()
        answers: asyncio.Queue[aio_pika.abc.AbstractIncomingMessage] = asyncio.Queue()
        replies = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await replies.consume(answers.put, no_ack=True)
        asked = aio_pika.Message(
            b"{}", headers={"operation": "query", "type": "node"}, reply_to=replies.name, correlation_id="7"
        )
        await channel.default_exchange.publish(asked, routing_key="$management")
        answer = await answers.get()
        assert (answer.headers["statusCode"], answer.correlation_id) == (200, "7")
        body = json.loads(answer.body)
        assert body["results"][0][body["attributeNames"].index("name")] == "here"


async def test_nobody_else_takes_requests(node: weft.Node) -> None:
    def refusals() -> list[int]:
        connection = pika.BlockingConnection(pika.ConnectionParameters(port=node.ports[0]))
        codes = []
        for attempt in (
            lambda channel: channel.basic_consume("$management", print),
            lambda channel: channel.basic_get("$management"),
            lambda channel: channel.queue_declare("$management"),
            lambda channel: channel.queue_purge("$management"),
        ):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
                attempt(connection.channel())
            codes.append(refused.value.reply_code)
        connection.close()
        return codes

    assert await asyncio.to_thread(refusals) == [405, 405, 403, 405]
    assert node.snapshot()["queues"] == []
