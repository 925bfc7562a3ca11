"""Tiers: what a message says of its way, who gets how much at each level, and networks of different quality."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pika
import pytest
from proton import Delivery, Message, symbol, ulong

import weft
from interop.proton10 import Client10
from interop.sections import BODIES, encode
from unit.network.fabric import Nodes, flowing, keys, ready, take, until
from weft.cli import main
from weft.client.management import Management
from weft.config import parse
from weft.federation.backoff import wait_ns

LINE = ("client", "front", "mid", "core")


async def _line(fabric: Nodes) -> weft.Node:
    """Nodes one behind the other; what is published at the first reaches a queue at the last, which goes out."""
    for name in LINE:
        node = await fabric.add(name)
        node.declare_exchange("events", "topic")
    for here, there in zip(LINE[1:], LINE, strict=False):
        fabric.link(here, there)
        fabric.nodes[here].add_route("up", "dynamic", exchange="events")
    core = fabric.nodes["core"]
    core.declare_queue("q")
    core.bind("events", "q", "#")
    await until(lambda: keys(fabric.nodes["client"], "events") == {"#"})
    return core


async def test_a_message_says_by_which_nodes_it_came_and_keeps_its_cluster_id(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three hops by direct links alone. What its publisher claims to be its way, all of it, hinders nothing."""
    async with Nodes() as fabric:
        core = await _line(fabric)

        def publish() -> None:
            parameters = pika.ConnectionParameters("127.0.0.1", fabric.nodes["client"].ports[0])
            with pika.BlockingConnection(parameters) as connection:
                channel = connection.channel()
                for headers in (None, {"x-weft-trace": list(LINE), "x-weft-id": "core:1"}):
                    channel.basic_publish("events", "k", b"x", pika.BasicProperties(cluster_id="x", headers=headers))

        def read() -> list[pika.BasicProperties]:
            with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", core.ports[0])) as connection:
                channel = connection.channel()
                return [channel.basic_get("q", auto_ack=True)[1] for _ in range(2)]

        await asyncio.to_thread(publish)
        await until(lambda: ready(core, "q") == 2)
        words = ["trace", "q", "--json", "--url", f"amqp://127.0.0.1:{core.ports[0]}"]
        assert await asyncio.to_thread(main, words) == 0
        assert [row["way"] for row in json.loads(capsys.readouterr().out)] == [" -> ".join(LINE)] * 2
        for properties in await asyncio.to_thread(read):
            assert properties.headers["x-weft-trace"] == list(LINE[:-1])
            assert properties.headers["x-weft-id"].startswith("client:")
            assert properties.cluster_id == "x"


async def test_every_section_of_a_message_is_the_same_after_three_hops() -> None:
    async with Nodes() as fabric:
        core = await _line(fabric)
        marked = encode((0x72, lambda d: d.put_object({symbol("x-opt-mine"): "kept"})))
        footer = encode((0x78, lambda d: d.put_object({symbol("x-crc"): ulong(99)})))

        def publish() -> None:
            client = Client10(SimpleNamespace(host="127.0.0.1", port=fabric.nodes["client"].ports[0]))
            sender = client.sender("events/k")
            for body in BODIES.values():
                assert client.send(sender, marked + body + footer) == Delivery.ACCEPTED
            client.socket.close()

        def read() -> list[bytes]:
            client = Client10(SimpleNamespace(host="127.0.0.1", port=core.ports[0]))
            receiver = client.receiver("q", credit=len(BODIES))
            found = [client.receive_raw(receiver)[1] for _ in BODIES]
            client.socket.close()
            return found

        await asyncio.to_thread(publish)
        for got, body in zip(await asyncio.to_thread(read), BODIES.values(), strict=True):
            assert got.endswith(body + footer)
            message = Message()
            message.decode(got)
            assert message.annotations["x-opt-mine"] == "kept"
            assert list(message.annotations["x-opt-weft-trace"]) == list(LINE[:-1])


async def test_a_tree_balances_at_each_level_and_each_container_has_its_own_replies() -> None:
    """Two containers, two gateways, two implementations. Whoever is done with one gets the next, at both levels."""
    async with Nodes() as fabric:
        for name in ("local", "gateway-1", "gateway-2", "impl-1", "impl-2"):
            node = await fabric.add(name)
            node.declare_exchange("service_res.direct")
            if name != "local":
                node.declare_queue("work")
        local = fabric.nodes["local"]
        local.declare_queue("requests")
        for gateway in ("gateway-1", "gateway-2"):
            fabric.link(gateway, "local")
            fabric.nodes[gateway].add_route("up", "queue", queue="requests", key="work", credit=2, backlog_max=2)
            fabric.nodes[gateway].add_route("up", "dynamic", exchange="service_res.direct", direction="push")
            for impl in ("impl-1", "impl-2"):
                fabric.link(impl, gateway, name=gateway)
                fabric.nodes[impl].add_route(gateway, "queue", queue="work", key="work", credit=1, backlog_max=1)
                fabric.nodes[impl].add_route(gateway, "dynamic", exchange="service_res.direct", direction="push")
        for container in ("one", "two"):
            local.declare_queue(container)
            local.bind("service_res.direct", container, container)
        impls = [fabric.nodes[name] for name in ("impl-1", "impl-2")]
        await until(lambda: all(keys(impl, "service_res.direct") == {"one", "two"} for impl in impls))
        done: Counter[str] = Counter()
        passed: Counter[str] = Counter()

        async def serve(node: weft.Node) -> None:
            async for request in node.receive("work", credit=1):
                done[node.name] += 1
                passed[request.properties["headers"]["x-weft-trace"][-1]] += 1
                await node.send(f"service_res.direct/{request.properties['reply_to']}", request.body)
                request.accept()
                await asyncio.sleep(0.001)

        serving = [asyncio.create_task(serve(impl)) for impl in impls]
        for number in range(200):
            container = "one" if number % 4 else "two"
            await local.send("requests", f"{container} {number}", reply_to=container)
        for container, count in (("one", 150), ("two", 50)):
            replies = [message.body.decode() for message in await take(local, container, count)]
            assert {reply.split()[0] for reply in replies} == {container}
            assert len(set(replies)) == count
            assert ready(local, container) == 0
        for task in serving:
            task.cancel()
        assert done.total() == passed.total() == 200
        assert min(done.values()) > 20, done
        assert min(passed.values()) > 20, passed
        assert set(passed) == {"gateway-1", "gateway-2"}


PROFILES = {
    "events": '"max-length" = 5, overflow = "drop-head", durability = "memory"',
    "services": 'ack = "end-to-end", "message-ttl" = 60000',
    "logging": 'durability = "sync"',
}


def _profile(network: str) -> str:
    return f"[[policies]]\nname = 'quality'\npattern = '^state'\ndefinition = {{ {PROFILES[network]} }}\n"


async def test_three_networks_of_different_quality_are_joined_by_routes(tmp_path: Path) -> None:
    """Events keep the newest few in memory, services answer when the work is done, logging has all of it on disk."""
    async with Nodes() as fabric:
        for network in PROFILES:
            node = await fabric.add(network, configuration=parse(_profile(network)), data_dir=tmp_path / network)
            node.declare_exchange("changes", "topic", durable=True)
            node.declare_queue("state", durable=True)
            node.bind("changes", "state", "#")
        for network in ("events", "logging"):
            fabric.link(network, "services", name="services")
            fabric.nodes[network].add_route("services", "static", exchange="changes", key="account.#")
        events, services, logging = fabric.nodes.values()
        await until(lambda: flowing(events) and flowing(logging))
        assert len({await _effective(fabric.url(name)) for name in PROFILES}) == 3
        async with weft.connect(fabric.url("services")) as client, weft.connect(fabric.url("services")) as worker:
            sent = [
                asyncio.create_task(client.send("/exchanges/changes/account.opened", number, timeout_s=60))
                for number in range(20)
            ]
            await until(lambda: ready(services, "state") == ready(logging, "state") == 20)
            await until(lambda: ready(events, "state") == 5)
            assert not any(task.done() for task in sent), "nobody has worked on it"
            async with asyncio.timeout(30):
                async for message in worker.receive("state", accept="explicit"):
                    message.accept()
                    if message.body == 19:
                        break
                await asyncio.gather(*sent)
        assert [message.body for message in await take(events, "state", 5)] == [b"%d" % n for n in range(15, 20)]
        await services.send("changes/other.key", b"stays in its network")
        await events.send("changes/account.opened", b"lost with the power")
        await logging.stop()
        await events.stop()
        for network, kept in (("logging", 20), ("events", 0)):
            again = await fabric.add(network, data_dir=tmp_path / network)
            assert ready(again, "state") == kept


async def _effective(url: str) -> str:
    async with weft.connect(url) as client:
        return str((await Management(client).read("queue", "state"))["effective_policy_definition"])


@pytest.mark.parametrize("failures", [1, 2, 5, 50, 5_000])
def test_a_link_waits_longer_each_time_and_never_longer_than_it_may(failures: int) -> None:
    waits_ms = [wait_ns(failures, 5_000, chance) / 1e6 for chance in (0.0, 0.5, 1.0)]
    assert waits_ms == sorted(waits_ms, reverse=True)
    assert 25 <= waits_ms[-1] <= waits_ms[0] <= 5_000
    assert waits_ms[0] == min(50 * 2 ** (failures - 1), 5_000)


class Direct(weft.NodeType):
    """A program that is the address: nothing is kept between it and who sends."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[bytes] = []

    async def on_message(self, message: weft.Message) -> None:
        self.got.append(message.body)
        message.accept()


async def test_the_same_program_speaks_to_a_queue_and_to_another_program() -> None:
    """Over a node that keeps messages, one that only passes them on to a program, and both ways in one network."""

    async def client(url: str, address: str) -> None:
        async with weft.connect(url) as fabric:
            await fabric.send(address, "hello")  # answered for by a queue, or by the program itself

    async with Nodes() as fabric:
        near, far = await fabric.add("near"), await fabric.add("far")
        program = Direct()
        near.register("direct", program)
        for node, queue in ((near, "kept"), (near, "onward"), (far, "onward")):
            node.declare_queue(queue)
        fabric.link("near", "far")
        near.add_route("up", "queue", direction="push", queue="onward", key="onward")
        for address in ("kept", "direct", "onward"):
            await client(fabric.url("near"), address)
        assert program.got == [b"hello"]
        assert ready(near, "kept") == 1
        assert [message.body for message in await take(far, "onward", 1)] == [b"hello"]
