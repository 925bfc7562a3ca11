"""The HTTP API against a live node, by its own users: RabbitMQ's tools, a Prometheus parser, any HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aio_pika
import aiohttp
import pytest
import pytest_asyncio
from flower.utils.broker import Broker
from prometheus_client.parser import text_string_to_metric_families

import weft
from weft.config import parse
from weft.management.http import patience

from .conftest import Browser

CONFIG = """
[http]
address = "127.0.0.1:0"
[[users]]
name = "joe"
password = "joe"
tags = ["management"]
[[users]]
name = "plain"
password = "plain"
[[vhosts]]
name = "blue"
[[permissions]]
user = "joe"
vhost = "blue"
configure = "^mine"
write = ".*"
read = ".*"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[weft.Node]:
    configuration = parse(CONFIG)
    async with weft.Node(name="here", listen="127.0.0.1:0", configuration=configuration) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="module")
async def browser(served: weft.Node) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession() as session:
        yield Browser(session, served.http_port)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_who_is_let_in(browser: Browser) -> None:
    assert (await browser.ask("GET", "/api/whoami", user=""))[0] == 401
    assert (await browser.ask("GET", "/api/whoami", user="nobody"))[0] == 401
    assert (await browser.ask("GET", "/api/whoami", user="plain"))[0] == 403
    assert (await browser.get("/api/whoami"))["name"] == "guest"


async def test_a_user_sees_and_does_what_it_may(browser: Browser) -> None:
    status, vhosts = await browser.ask("GET", "/api/vhosts", user="joe")
    assert (status, [vhost["name"] for vhost in vhosts]) == (200, ["blue"])
    assert (await browser.ask("GET", "/api/queues/%2F", user="joe"))[0] == 403
    assert (await browser.ask("PUT", "/api/queues/blue/mine", {}, user="joe"))[0] == 201
    assert (await browser.ask("PUT", "/api/queues/blue/theirs", {}, user="joe"))[0] == 403
    assert (await browser.ask("GET", "/api/users", user="joe"))[0] == 403
    assert (await browser.ask("DELETE", "/api/queues/blue/mine", user="joe"))[0] == 204


async def test_queues_and_messages(browser: Browser, served: weft.Node) -> None:
    assert (await browser.ask("PUT", "/api/queues/%2F/a%2Fb", {"arguments": {"x-max-length": 9}}))[0] == 201
    assert (await browser.ask("PUT", "/api/queues/%2F/a%2Fb", {"arguments": {"x-max-length": 9}}))[0] == 204
    assert (await browser.ask("PUT", "/api/queues/%2F/a%2Fb", {"durable": False}))[0] == 400
    message = {"routing_key": "a/b", "payload": "hello", "payload_encoding": "string", "properties": {"priority": 3}}
    assert await browser.ask("POST", "/api/exchanges/%2F/amq.default/publish", message) == (200, {"routed": True})
    row = await browser.get("/api/queues/%2F/a%2Fb")
    assert (row["messages"], row["message_stats"]["publish"], row["arguments"]) == (1, 1, {"x-max-length": 9})
    look = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    _, (seen,) = await browser.ask("POST", "/api/queues/%2F/a%2Fb/get", look)
    assert (seen["payload"], seen["properties"]["priority"], seen["routing_key"]) == ("hello", 3, "a/b")
    assert (await browser.ask("DELETE", "/api/queues/%2F/a%2Fb/contents"))[0] == 204
    assert (await browser.get("/api/queues/%2F/a%2Fb"))["messages"] == 0
    assert (await browser.ask("DELETE", "/api/queues/%2F/a%2Fb"))[0] == 204
    assert (await browser.ask("GET", "/api/queues/%2F/a%2Fb"))[0] == 404


async def test_pages(browser: Browser, served: weft.Node) -> None:
    for number in range(12):
        served.declare_queue(f"page{number:02}")
    page = await browser.get("/api/queues?page=2&page_size=5&name=page")
    names = [item["name"] for item in page["items"]]
    assert names == [f"page{number:02}" for number in range(5, 10)]
    assert (page["filtered_count"], page["page_count"], page["item_count"]) == (12, 3, 5)
    await served.send("page07", b"x")
    page = await browser.get("/api/queues?page=1&page_size=1&sort=messages&sort_reverse=true&columns=name,messages")
    assert page["items"] == [{"name": "page07", "messages": 1}]
    found = await browser.get("/api/queues?page=1&name=%5Epage1&use_regex=true&columns=name")
    assert [item["name"] for item in found["items"]] == ["page10", "page11"]
    assert (await browser.ask("GET", "/api/queues?page=99&name=page"))[0] == 400
    assert (await browser.ask("GET", "/api/queues?page=0"))[0] == 400
    assert (await browser.ask("GET", "/api/queues?name=(a%2B)%2B%24&use_regex=true&page=1"))[0] == 400


async def test_connections_channels_and_consumers(browser: Browser, served: weft.Node) -> None:
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{served.ports[0]}/")
    closed = asyncio.Event()
    connection.close_callbacks.add(lambda *_: closed.set())
    channel = await connection.channel()
    queue = await channel.declare_queue("consumed", auto_delete=True)
    await queue.consume(print)
    (row,) = await browser.get("/api/connections")
    assert (row["user"], row["vhost"], row["channels"], row["protocol"]) == ("guest", "/", 1, "AMQP 0-9-1")
    (told,) = await browser.get("/api/channels")
    assert (told["consumer_count"], told["connection_details"]["name"]) == (1, row["name"])
    (consumer,) = await browser.get("/api/consumers/%2F")
    assert (consumer["queue"]["name"], consumer["ack_required"]) == ("consumed", True)
    name = row["name"].replace(" ", "%20").replace(">", "%3E")
    assert (await browser.ask("DELETE", f"/api/connections/{name}"))[0] == 204
    await closed.wait()


async def test_the_node_is_well(browser: Browser, served: weft.Node) -> None:
    overview = await browser.get("/api/overview")
    assert overview["node"] == "here"
    assert overview["object_totals"]["queues"] == len(await browser.get("/api/queues"))
    (node,) = await browser.get("/api/nodes")
    assert (node["name"], node["running"], node["mem_alarm"]) == ("here", True, False)
    for check in ("alarms", "local-alarms", "virtual-hosts", "is-in-service", f"port-listener/{served.ports[0]}"):
        assert (await browser.get(f"/api/health/checks/{check}"))["status"] == "ok"
    assert (await browser.ask("GET", "/api/health/checks/port-listener/1"))[0] == 503
    assert (await browser.get("/api/aliveness-test/%2F"))["status"] == "ok"
    for empty in ("policies", "parameters", "operator-policies", "global-parameters", "topic-permissions"):
        assert await browser.get(f"/api/{empty}") == []


async def test_definitions_make_the_same_again(browser: Browser, served: weft.Node) -> None:
    served.declare_exchange("orders", "topic")
    served.declare_queue("kept", arguments={"x-message-ttl": 1000})
    served.bind("orders", "kept", "new.*", arguments={"a": 1})
    served.declare_queue("")  # the node makes a name
    document = await browser.get("/api/definitions")
    async with weft.Node(name="copy", configuration=parse('[http]\naddress = "127.0.0.1:0"\n')) as copy:
        other = Browser(browser._session, copy.http_port)
        assert (await other.ask("POST", "/api/definitions", document))[0] == 204
        again = await other.get("/api/definitions")
        for kind in ("users", "vhosts", "permissions", "exchanges", "queues", "bindings"):
            assert sorted(map(str, again[kind])) == sorted(map(str, document[kind])), kind
        assert (await other.ask("POST", "/api/definitions", {"queues": [{"name": 7}]}))[0] == 400
    part = await browser.get("/api/definitions/%2F")
    assert {"name": "kept", "durable": True, "auto_delete": False, "arguments": {"x-message-ttl": 1000}} in part[
        "queues"
    ]


async def test_lists_are_sorted_by_what_clients_ask_for(browser: Browser, served: weft.Node) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{served.ports[0]}/"
    connections = [await aio_pika.connect(url) for _ in range(3)]
    for count, connection in enumerate(connections):
        for _ in range(count):
            channel = await connection.channel()
            queue = await channel.declare_queue(f"sorted-{count}", durable=True)
            await queue.consume(asyncio.Queue().put)
    down = "&sort_reverse=true"
    rows = await browser.get(f"/api/connections?sort=channels{down}")
    assert [row["channels"] for row in rows] == [2, 1, 0]
    rows = await browser.get(f"/api/channels?sort=number{down}")
    assert [row["number"] for row in rows] == [2, 1, 1]
    named = sorted(row["name"] for row in rows)
    assert [row["name"] for row in await browser.get("/api/channels?sort=name")] == named
    page = await browser.get(f"/api/channels?sort=name{down}&page=2&page_size=2")
    assert ([row["name"] for row in page["items"]], page["total_count"]) == ([named[0]], 3)
    page = await browser.get("/api/channels?page=1&name=%20%5C(2%5C)&use_regex=true")
    assert ([row["number"] for row in page["items"]], page["filtered_count"], page["total_count"]) == ([2], 1, 3)
    told = await browser.get("/api/channels/" + quote(named[0], safe=""))
    assert told["name"] == named[0]
    of_one = await browser.get(f"/api/connections/{quote(named[0].rpartition(' (')[0], safe='')}/channels")
    assert named[0] in [row["name"] for row in of_one]
    rows = await browser.get("/api/connections?sort=name")
    assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)
    page = await browser.get("/api/connections?sort=connected_at&page=2&page_size=2")
    assert (len(page["items"]), page["total_count"]) == (1, 3)
    rows = await browser.get(f"/api/queues?name=sorted&sort=consumers{down}")
    assert [row["consumers"] for row in rows] == [2, 1]
    rows = await browser.get(f"/api/weft/queue?name=sorted&sort=consumers{down}")
    assert [row["consumers"] for row in rows] == [2, 1]
    for connection in connections:
        await connection.close()


async def test_virtual_hosts_say_what_they_are_for(browser: Browser, tmp_path: Path) -> None:
    configuration = parse('[http]\naddress = "127.0.0.1:0"\n')
    about = {"description": "orders of the north", "tags": ["production", "north"], "default_queue_type": "quorum"}
    async with weft.Node(data_dir=tmp_path, name="noted", configuration=configuration) as node:
        other = Browser(browser._session, node.http_port)
        assert (await other.ask("PUT", "/api/vhosts/a%2Fb", about))[0] == 201
        assert (await other.ask("PUT", "/api/vhosts/a%2Fb", {}))[0] == 204
        assert (await other.ask("PUT", "/api/vhosts/rh", {"tags": "x, y", "defaultqueuetype": "undefined"}))[0] == 201
        row = await other.get("/api/vhosts/rh")
        assert (row["tags"], row["default_queue_type"], row["description"]) == (["x", "y"], "classic", "")
        for wrong in ({"tags": [1]}, {"description": 7}, {"default_queue_type": "fast"}, {"metadata": 3}):
            status, told = await other.ask("PUT", "/api/vhosts/a%2Fb", wrong)
            assert (status, told["error"]) == (400, "bad_request"), wrong
        assert (await other.ask("PUT", "/api/queues/a%2Fb/typed", {}))[0] == 201
        document = await other.get("/api/definitions")
    async with weft.Node(data_dir=tmp_path, name="noted", configuration=configuration) as again:
        other = Browser(browser._session, again.http_port)
        row = await other.get("/api/vhosts/a%2Fb")
        assert {name: row[name] for name in about} == about == row["metadata"]
        assert (await other.get("/api/queues/a%2Fb/typed"))["type"] == "quorum"
    async with weft.Node(name="copy", configuration=configuration) as copy:
        other = Browser(browser._session, copy.http_port)
        assert (await other.ask("POST", "/api/definitions", document))[0] == 204
        assert (await other.get("/api/definitions"))["vhosts"] == document["vhosts"]
        assert (await other.ask("DELETE", "/api/vhosts/a%2Fb"))[0] == 204
        assert (await other.ask("PUT", "/api/vhosts/a%2Fb", {}))[0] == 201
        assert (await other.get("/api/vhosts/a%2Fb"))["description"] == ""


async def test_metrics_are_what_prometheus_reads(browser: Browser, served: weft.Node) -> None:
    for _ in range(3):
        await served.send("measured", b"x" * 300)
    async with served.receive("measured") as receiver:
        (await anext(receiver)).accept()
    families = {family.name: family for family in text_string_to_metric_families(await browser.get("/metrics"))}
    assert families["rabbitmq_queues"].samples[0].value == len(await browser.get("/api/queues"))
    overview = await browser.get("/api/overview")
    received = families["rabbitmq_global_messages_received"].samples[0].value
    assert received == overview["message_stats"]["publish"]
    waits = {sample.labels["quantile"] for sample in families["weft_time_in_queue_seconds"].samples}
    assert waits == {"0.5", "0.9", "0.99", "1"}
    sizes = {sample.labels["bytes_max"] for sample in families["weft_time_in_queue_by_size_seconds"].samples}
    assert "1024" in sizes
    text = await browser.get("/metrics/per-object")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    ready = {
        sample.labels["queue"]: sample.value for sample in families["rabbitmq_detailed_queue_messages_ready"].samples
    }
    assert ready["measured"] == 2


async def test_every_class_is_served(browser: Browser) -> None:
    description = await browser.get("/api/openapi.json")
    for name in description["components"]["schemas"]:
        assert isinstance(await browser.get(f"/api/weft/{name}"), list)
    assert (await browser.ask("POST", "/api/weft/node/here/echo", {"value": "hi"})) == (200, {"value": "hi"})
    assert (await browser.ask("POST", "/api/weft/node/here/dance", {}))[0] == 501
    assert (await browser.ask("GET", "/api/weft/ghost"))[0] == 404


async def test_flower_reads_its_queues(served: weft.Node) -> None:
    """Celery Flower's own code, which asks for the queues of a virtual host and gives up after two seconds."""
    served.declare_queue("celery")
    await served.send("celery", b"{}")
    api = f"http://guest:guest@127.0.0.1:{served.http_port}/api/"
    flower = Broker("amqp://guest:guest@127.0.0.1//", http_api=api)
    rows: list[dict[str, Any]] = []
    async with asyncio.timeout(50):
        while not rows:  # it answers with none when the machine was too busy for its two seconds
            rows = await flower.queues(["celery"])
    (celery,) = rows
    assert (celery["messages"], celery["messages_unacknowledged"], celery["consumers"]) == (1, 0, 0)


ADMIN = shutil.which("rabbitmqadmin")


@pytest.mark.peers
@pytest.mark.skipif(ADMIN is None, reason="rabbitmqadmin is not installed")
async def test_rabbitmqadmin(served: weft.Node, tmp_path: Path) -> None:
    def run(*words: str) -> str:
        command = [str(ADMIN), "-H", "127.0.0.1", "-P", str(served.http_port), "-f", "tsv", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def session() -> None:
        run("declare", "queue", "name=admin", "durable=true")
        run("declare", "exchange", "name=desk", "type=topic")
        run("declare", "binding", "source=desk", "destination=admin", "routing_key=a.*")
        run("publish", "exchange=desk", "routing_key=a.b", "payload=hi")
        assert "hi" in run("get", "queue=admin", "ackmode=ack_requeue_true")
        assert "admin\t1" in run("list", "queues", "name", "messages")
        run("purge", "queue", "name=admin")
        assert "admin\t0" in run("list", "queues", "name", "messages")
        run("declare", "vhost", "name=green")
        run("declare", "user", "name=ann", "password=ann", "tags=monitoring")
        run("declare", "permission", "vhost=green", "user=ann", "configure=.*", "write=.*", "read=.*")
        assert "green" in run("list", "permissions")
        run("declare", "policy", "name=short", "pattern=^admin", 'definition={"max-length":1}', "apply-to=queues")
        run("declare", "operator_policy", "name=cap", "pattern=.*", 'definition={"expires":99999}', "priority=2")
        run("declare", "parameter", "component=shovel", "name=digger", 'value={"src-queue":"a"}')
        run("declare", "vhost_limit", "vhost=green", "name=max-queues", "value=9")
        assert "short\t^admin" in run("list", "policies", "name", "pattern")
        assert "cap" in run("list", "operator_policies", "name")
        assert "digger" in run("list", "parameters", "name")
        assert "green" in run("list", "vhost_limits")
        assert '"policy": "short"' in run("-f", "pretty_json", "list", "queues", "name", "policy")
        run("export", str(tmp_path / "all.json"))
        run("delete", "policy", "name=short")
        run("delete", "operator_policy", "name=cap")
        run("delete", "parameter", "component=shovel", "name=digger")
        run("delete", "queue", "name=admin")
        run("import", str(tmp_path / "all.json"))
        assert '"policy": "short"' in run("-f", "pretty_json", "list", "queues", "name", "policy")
        assert "digger" in run("list", "parameters", "name")
        run("delete", "policy", "name=short")
        run("delete", "operator_policy", "name=cap")
        run("delete", "parameter", "component=shovel", "name=digger")
        run("delete", "vhost", "name=green")
        run("delete", "user", "name=ann")

    await asyncio.to_thread(session)


@pytest.mark.parametrize("sent", [b"", b"GET /api/overview HTTP/1.1\r\nX-Slow: "], ids=["nothing", "half a head"])
async def test_who_never_asks_is_cut_off(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.05)
    async with weft.Node(configuration=parse(CONFIG)) as node:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.http_port)
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_who_has_asked_may_ask_again_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "IDLE_S", 0.05)
    async with weft.Node(configuration=parse(CONFIG)) as node:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.http_port)
        for _ in range(2):
            writer.write(b"GET /api/openapi.json HTTP/1.1\r\nHost: here\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            await reader.readexactly(int(length.split(b":")[1]))
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
