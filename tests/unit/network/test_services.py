"""Services announce themselves through the fabric, and are gone when they are."""

from __future__ import annotations

import asyncio
import time

import pytest

import weft
from unit.network.fabric import Nodes, keys, ready, take, until
from weft.client.management import Management
from weft.config import parse
from weft.model.errors import WeftError

SERVICE = "user.lifecycle"
TRIES_MAX = 3
"""Others may keep the machine busy for a second now and then."""


async def _paypal(fabric: Nodes, remotes: int = 2, locals_: int = 2) -> None:
    """A gateway, remotes and local nodes, each linked to the gateway alone; no queue, no binding anywhere."""
    for name in ["gateway", *(f"remote{n}" for n in range(remotes)), *(f"local{n}" for n in range(locals_))]:
        node = await fabric.add(name)
        for exchange in ("service_gateway.direct", "service_res.direct"):
            node.declare_exchange(exchange)
        if name != "gateway":
            fabric.link(name, "gateway", role="gateway")
            node.add_route("up", "dynamic", exchange="service_gateway.direct", direction="push")
            node.add_route("up", "dynamic", exchange="service_res.direct", direction="push")
            node.add_route("up", "dynamic", exchange="service_res.direct", direction="pull")


def _below(node: weft.Node, prefix: str) -> list[str]:
    return [entry.path for entry in node.directory.known() if entry.path.startswith(prefix)]


def _serve(node: object, service: str = SERVICE) -> object:
    node.declare_queue(f"{service}.request.impl", arguments={"x-weft-service": service})  # type: ignore[attr-defined]
    return node.receive(f"{service}.request.impl", credit=1)  # type: ignore[attr-defined]


async def test_a_service_is_reachable_from_every_local_node_within_a_second() -> None:
    async with Nodes() as fabric:
        await _paypal(fabric)
        nodes = fabric.nodes
        await until(lambda: all(row["state"] == "operational" for row in nodes["local1"].network.federation.links()))
        others, delays = [nodes[name] for name in ("local0", "local1", "remote1")], []
        while True:
            began = time.monotonic()
            service = _serve(nodes["remote0"])
            await until(lambda: all(keys(node, "service_gateway.direct") for node in others))
            delays.append(time.monotonic() - began)
            if delays[-1] < 1:
                break
            assert len(delays) < TRIES_MAX, delays
            service.close()  # type: ignore[attr-defined]
            await until(lambda: not any(keys(node, "service_gateway.direct") for node in others))
        made = [queue["name"] for queue in nodes["gateway"].snapshot()["queues"]]
        routes = [row["name"] for row in nodes["remote0"].network.federation.routes()]
        assert f"{SERVICE}.request" in made
        _serve(nodes["remote0"]).close()  # type: ignore[attr-defined]
        assert [queue["name"] for queue in nodes["gateway"].snapshot()["queues"]] == made, "once more changes nothing"
        assert [row["name"] for row in nodes["remote0"].network.federation.routes()] == routes
        nodes["local0"].declare_queue("replies")
        nodes["local0"].bind("service_res.direct", "replies", "local0.me")
        await until(lambda: "local0.me" in keys(nodes["remote0"], "service_res.direct"))
        await nodes["local0"].send("service_gateway.direct/user.lifecycle.request", b"hello", reply_to="local0.me")
        request = await anext(service)  # type: ignore[call-overload]
        assert request.body == b"hello"
        request.accept()
        await nodes["remote0"].send(f"service_res.direct/{request.properties['reply_to']}", b"welcome")
        assert [message.body for message in await take(nodes["local0"], "replies", 1)] == [b"welcome"]
        entries = await nodes["local1"].directory.entries("/services")
        assert [entry.path for entry in entries] == ["/services/user.lifecycle/remote0"]
        service.close()  # type: ignore[attr-defined]
        await until(lambda: not keys(nodes["local1"], "service_gateway.direct"))
        assert await nodes["local1"].directory.entries("/services") == []


async def test_requests_are_balanced_by_who_is_free() -> None:
    async with Nodes() as fabric:
        await _paypal(fabric, locals_=1)
        nodes = fabric.nodes
        done = {"remote0": 0, "remote1": 0}

        async def work(name: str, pause_s: float) -> None:
            async for request in _serve(nodes[name]):  # type: ignore[attr-defined]
                await asyncio.sleep(pause_s)
                request.accept()
                done[name] += 1

        tasks = [asyncio.create_task(work("remote0", 0.002)), asyncio.create_task(work("remote1", 0.004))]
        await until(lambda: keys(nodes["local0"], "service_gateway.direct"))
        await until(lambda: len(_below(nodes["local0"], "/services")) == 2)
        for number in range(600):
            await nodes["local0"].send("service_gateway.direct/user.lifecycle.request", str(number))
        await until(lambda: sum(done.values()) == 600, 30)
        for task in tasks:
            task.cancel()
        share = done["remote0"] / 600
        assert 0.55 < share < 0.78, done


async def test_the_service_of_a_dead_node_is_withdrawn() -> None:
    async with Nodes() as fabric:
        await _paypal(fabric, remotes=1, locals_=1)
        nodes = fabric.nodes
        await until(lambda: nodes["local0"].network.federation.links()[0]["state"] == "operational")
        _serve_keeper = _serve(nodes["remote0"])
        await until(lambda: keys(nodes["local0"], "service_gateway.direct"))
        assert _serve_keeper is not None
        for connection in list(nodes["remote0"]._running.driver.connections.values()):
            connection.transport.abort()  # as a power failure would: nothing is said
        await nodes["remote0"].network.stop()
        await until(lambda: not keys(nodes["local0"], "service_gateway.direct"))


async def test_entries_reach_every_node_and_the_late_ones() -> None:
    async with Nodes() as fabric:
        for name in ("a", "b", "c"):
            await fabric.add(name)
        fabric.link("a", "b")
        fabric.link("b", "c")
        await fabric.nodes["a"].directory.put("/addresses/orders", {"queue": "orders"})
        await until(lambda: len(_below(fabric.nodes["c"], "/addresses")) == 1)
        await fabric.add("d")
        fabric.link("d", "c")
        await until(lambda: len(_below(fabric.nodes["d"], "/addresses")) == 1)
        await fabric.nodes["d"].directory.delete("/addresses/orders")
        await until(lambda: not _below(fabric.nodes["a"], "/addresses"))


@pytest.mark.timeout(300)
async def test_instances_are_in_the_directory_for_as_long_as_they_are_attached() -> None:
    async with Nodes() as fabric:
        for name in ("a", "b"):
            await fabric.add(name)
        fabric.link("a", "b")
        here, there = fabric.nodes["a"], fabric.nodes["b"]

        def instances(node: weft.Node, service: str) -> list[object]:
            found = [entry for entry in node.directory.known() if entry.path == f"/services/{service}/a"]
            return [name for entry in found for name in entry.value["instances"]]

        async with weft.connect(fabric.url("a")) as one, weft.connect(fabric.url("a")) as two:
            for client in (one, two):
                for service in ("greet", f"service://{SERVICE}"):

                    @client.service(service)
                    async def answer(_request: object) -> None:
                        return None

                    await answer.start()
            both = sorted([one.name, two.name])
            await until(lambda: instances(there, "greet") == instances(there, SERVICE) == both, 60)
            for connection in list(here._running.driver.connections.values()):
                if here._running.topology.container_of(connection.conn_id) == one.name:
                    connection.transport.abort()
            await until(lambda: one.core.connections == 2 and instances(there, "greet") == both, 60)
            await one.close()
            await until(lambda: instances(there, "greet") == instances(there, SERVICE) == [two.name], 60)
        await until(lambda: not _below(there, "/services"), 60)


async def test_a_client_may_address_the_service_and_not_what_implements_it() -> None:
    configuration = parse(
        "[[users]]\nname = 'app'\npassword = 'app'\n"
        "[[permissions]]\nuser = 'app'\nconfigure = '^$'\nwrite = '^service_gateway.direct$'\nread = '^$'\n"
    )
    async with Nodes() as fabric:
        node = await fabric.add("gateway", configuration=configuration)
        node.declare_exchange("service_gateway.direct")
        for queue in ("user.lifecycle.request", "user.lifecycle.request.impl"):
            node.declare_queue(queue)
        node.bind("service_gateway.direct", "user.lifecycle.request", "user.lifecycle.request")
        async with weft.connect(f"amqp://app:app@127.0.0.1:{node.ports[0]}") as client:
            await client.send("/exchange/service_gateway.direct/user.lifecycle.request", b"please")
            with pytest.raises(WeftError, match=r"(?i)refused"):
                await client.send("user.lifecycle.request.impl", b"past the gateway")
        assert ready(node, "user.lifecycle.request") == 1
        assert ready(node, "user.lifecycle.request.impl") == 0


@pytest.mark.timeout(300)
async def test_a_node_is_drained_under_load_and_no_request_fails() -> None:
    """Replies that are on their way to where the client was are asked for, whichever connection asked first."""
    async with Nodes() as fabric:
        for name in ("gateway", "remote", "one", "two"):
            node = await fabric.add(name)
            node.declare_exchange("service_gateway.direct")
            if name != "gateway":
                fabric.link(name, "gateway", role="gateway")
                node.add_route("up", "dynamic", exchange="service_gateway.direct", direction="push")
                for direction in ("pull", "push"):
                    node.add_route("up", "dynamic", exchange="amq.topic", direction=direction)
        two = fabric.nodes["two"].ports[0]
        async with (
            weft.connect(fabric.url("remote")) as server,
            weft.connect([fabric.url("one"), fabric.url("two")]) as client,
            weft.connect(fabric.url("one")) as operator,
        ):

            @server.service("service://echo", concurrency=8)
            async def echo(request: weft.client.Message) -> object:
                return request.body

            await echo.start()
            for name in ("one", "two"):
                await until(lambda: keys(fabric.nodes[name], "service_gateway.direct"))  # noqa: B023
            await Management(operator).call("node", None, "drain")
            moved = 0
            while moved < 10:
                assert (await client.request("service://echo", moved, timeout_s=100)).body == moved
                moved += client.core.target is not None and client.core.target.port == two


async def test_two_queues_of_one_service_are_one_service_until_both_are_gone() -> None:
    async with Nodes() as fabric:
        here, gateway = await fabric.add("here"), await fabric.add("gateway")
        fabric.link("here", "gateway", role="gateway")
        for queue in ("old", "new"):
            here.declare_queue(queue, arguments={"x-weft-service": "s"})
        old, new = here.receive("old"), here.receive("new")
        await until(lambda: _below(gateway, "/services") == ["/services/s/here"])
        gone: list[str] = []
        await gateway.directory.watch("/services", lambda found: gone.extend(f.path for f in found if f.entry is None))
        old.close()
        here.delete_queue("old")
        await until(lambda: here.directory._book.get("/services/s/here").value["queue"] == "new")
        await until(lambda: gateway.directory._book.get("/services/s/here").value["queue"] == "new")
        assert gone == []
        assert [row["name"] for row in here.network.federation.routes()] == ["service:s:up"]
        new.close()
        await until(lambda: gone == ["/services/s/here"])
        assert here.network.federation.routes() == []


@pytest.mark.parametrize("service", ["a b", "ü" * 100, "*", "%2F", "a:b"])
async def test_a_service_may_be_called_anything(service: str) -> None:
    async with Nodes() as fabric:
        here, gateway = await fabric.add("here"), await fabric.add("gateway")
        fabric.link("here", "gateway", role="gateway")
        odd, plain = _serve(here, service), _serve(here, "plain")
        await until(lambda: all(ready(gateway, f"{name}.request") == 0 for name in (service, "plain")))
        assert len(here.network.federation.routes()) == 2
        await gateway.send(f"service_gateway.direct/{service}.request", b"x")
        assert (await anext(odd)).body == b"x"  # type: ignore[call-overload]
        del plain
        here.network.remove_link("up")
        assert here.network.federation.routes() == []


async def test_an_instance_whose_link_was_taken_over_leaves_none_behind() -> None:
    async with Nodes() as fabric:
        node = await fabric.add("a")
        node.declare_queue("orders")
        async with weft.connect(fabric.url("a")) as client:
            link = {"name": "same", "window": 1, "capabilities": ["weft:service"]}
            first = client.session().receiver("orders", **link)
            await until(lambda: _below(node, "/services") == ["/services/orders/a"])
            second = client.session().receiver("orders", **link)  # the same link, for the node
            await client.send("orders", "x")
            (await anext(second)).accept()
            assert _below(node, "/services") == ["/services/orders/a"]
            del first
        await until(lambda: _below(node, "/services") == [])
