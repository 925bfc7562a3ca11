"""Routes between real nodes: what flows, what waits, what comes back after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from unit.network.fabric import Nodes, flowing, keys, ready, take, until
from weft.cli.fabric_source import FabricSource
from weft.config import parse
from weft.model.errors import ConfigError, Refused
from weft.rules import parse as parse_rules
from weft.rules.run import Runner


async def test_a_queue_is_drained_into_an_exchange_elsewhere() -> None:
    async with Nodes() as fabric:
        gateway, remote = await fabric.add("gateway"), await fabric.add("remote")
        gateway.declare_queue("requests")
        remote.declare_exchange("impl")
        remote.declare_queue("work")
        remote.bind("impl", "work", "requests")
        fabric.link("remote", "gateway")
        remote.add_route("up", "queue", exchange="impl", queue="requests", key="requests")
        await gateway.send("requests", b"do it", correlation_id="7")
        (message,) = await take(remote, "work", 1)
        assert (message.body, message.exchange, message.routing_key) == (b"do it", "impl", "requests")
        assert message.properties["correlation_id"] == "7"
        await until(lambda: gateway._running.engine.queue_stats("/", "requests") == (0, 0, 1))


@pytest.mark.parametrize("backlog_max", [1, 2, 7, 249])
async def test_a_small_backlog_is_filled_whatever_the_credit(backlog_max: int) -> None:
    async with Nodes() as fabric:
        gateway, remote = await fabric.add("gateway"), await fabric.add("remote")
        gateway.declare_queue("requests")
        remote.declare_queue("work")
        for number in range(300):
            await gateway.send("requests", str(number))
        fabric.link("remote", "gateway")
        remote.add_route("up", "queue", queue="requests", key="work", backlog_max=backlog_max, credit=1_000)
        await until(lambda: remote._running.engine.queue_stats("/", "work") == (backlog_max, 0, 0))
        assert len(await take(remote, "work", 300)) == 300


async def test_a_route_waits_for_what_is_missing_and_says_so() -> None:
    async with Nodes() as fabric:
        gateway, remote = await fabric.add("gateway"), await fabric.add("remote")
        remote.declare_queue("work")
        fabric.link("remote", "gateway")
        remote.add_route("up", "queue", key="work", queue="later")
        await until(lambda: remote.network.federation.routes()[0]["state"] == "refused")
        assert "no queue 'later'" in remote.network.federation.routes()[0]["cause"]
        gateway.declare_queue("later")
        await gateway.send("later", b"x")
        assert (await take(remote, "work", 1))[0].body == b"x"


async def test_a_static_route_carries_one_key_and_keeps_it_while_away(tmp_path: Path) -> None:
    async with Nodes() as fabric:
        source, here = await fabric.add("source"), await fabric.add("here")
        for node in (source, here):
            node.declare_exchange("events", "topic")
        here.declare_queue("q")
        here.bind("events", "q", "#")
        fabric.link("here", "source")
        options = {"exchange": "events", "key": "orders.*", "name": "orders"}
        name = here.add_route("up", "static", **options, backlog_max=1)
        await until(lambda: flowing(here))
        await source.send("events/orders.new", b"1")
        await source.send("events/users.new", b"not wanted")
        (message,) = await take(here, "q", 1)
        assert (message.body, message.routing_key) == (b"1", "orders.new")
        assert message.properties["headers"]["x-weft-trace"] == ["source"]
        for number in range(20):
            await source.send("events/orders.new", str(number))
        await until(lambda: ready(here, "q") == 1)
        assert ready(source, "weft.bridge.here:orders") > 0
        here.add_route("up", "static", **options, credit=500)  # faster: what waits at the source is not lost
        assert [message.body for message in await take(here, "q", 20)] == [str(n).encode() for n in range(20)]
        here.network.remove_route(name)
        await until(lambda: not [q for q in source.snapshot()["queues"] if "orders" in q["name"]])


def round_trip(node: weft.Node) -> int | None:
    """Microseconds until the peer has answered for a message, as the node's only route tells."""
    (row,) = node.management.manager._providers["route"].rows(node.management.manager.node, "/")
    assert (row["round_trip_p99_us"] is None) == (row["round_trip_max_us"] is None)
    return row["round_trip_p99_us"]


@pytest.mark.parametrize("direction", ["pull", "push"])
async def test_bindings_are_followed_in_both_directions(direction: str) -> None:
    async with Nodes() as fabric:
        source, sink = await fabric.add("source"), await fabric.add("sink")
        for node in (source, sink):
            node.declare_exchange("x")
        owner, peer = (sink, "source") if direction == "pull" else (source, "sink")
        fabric.link(owner.name, peer)
        owner.add_route("up", "dynamic", exchange="x", direction=direction)
        await until(lambda: owner.network.federation.links()[0]["state"] == "operational")
        sink.declare_queue("q")
        sink.bind("x", "q", "k")
        await until(lambda: keys(source, "x") == {"k"})
        await source.send("x/k", b"wanted")
        assert await source.send("x/other", b"not wanted") == 0
        assert [message.body for message in await take(sink, "q", 1)] == [b"wanted"]
        await until(lambda: (round_trip(owner) is not None) == (direction == "push"))
        sink.unbind("x", "q", "k")
        await until(lambda: keys(source, "x") == set())


SLOW = """
[rules.slow]
object = "away"
class = "route"
attribute = "round_trip_p99_us"
above = 0
[rules.agreed]
object = "away"
class = "route"
attribute = "round_trip_p99_us"
above = 600_000_000
"""


async def test_a_rule_fires_when_round_trips_over_a_route_take_longer_than_agreed() -> None:
    async with Nodes() as fabric:
        source, sink = await fabric.add("source"), await fabric.add("sink")
        source.declare_queue("q")
        sink.declare_queue("q")
        fabric.link("source", "sink")
        source.add_route("up", "queue", queue="q", direction="push", key="q", name="away")
        async with weft.connect(fabric.url("source")) as client:
            runner = Runner(parse_rules(SLOW), FabricSource(client, "source"), write=lambda _: None)
            assert await runner.look() == []  # nothing went over it, so there is nothing to compare
            await source.send("q", b"x")
            await until(lambda: round_trip(source) is not None)
            (firing,) = await runner.look()
            assert (firing.rule.name, firing.kind, firing.object, firing.raised) == ("slow", "route", "away", True)
            assert await runner.look() == []  # once per crossing
            await runner.settle()


async def test_a_message_does_not_come_back() -> None:
    async with Nodes() as fabric:
        one, other = await fabric.add("one"), await fabric.add("other")
        for node in (one, other):
            node.declare_exchange("x")
            node.declare_queue("q")
            node.bind("x", "q", "k")
        fabric.link("one", "other")
        for direction in ("pull", "push"):
            one.add_route("up", "dynamic", exchange="x", direction=direction)
        await until(lambda: keys(one, "x") == keys(other, "x") == {"k"} and flowing(one))
        for number in range(50):
            await one.send("x/k", str(number))
            await other.send("x/k", str(number + 50))
        await until(lambda: ready(one, "q") == ready(other, "q") == 100)
        await until(lambda: all(q["ready"] == 0 for q in one.snapshot()["queues"] if "bridge" in q["name"]))
        assert sorted(int(m.body) for m in await take(one, "q", 100)) == list(range(100))
        assert ready(one, "q") == 0
        assert ready(other, "q") == 100


async def test_links_and_routes_survive_a_restart(tmp_path: Path) -> None:
    async with Nodes() as fabric:
        gateway = await fabric.add("gateway", data_dir=tmp_path / "gateway")
        gateway.declare_queue("requests")
        port = gateway.ports[0]
        async with weft.Node(name="remote", data_dir=tmp_path / "remote") as remote:
            remote.declare_queue("work")
            remote.add_link("up", fabric.url("gateway"), role="gateway")
            remote.add_route("up", "queue", key="work", queue="requests", name="r1")
            remote.add_route("up", "queue", key="work", queue="requests", name="r2", durable=False)
            await until(lambda: flowing(remote))
        async with weft.Node(name="remote", data_dir=tmp_path / "remote") as remote:
            await gateway.send("requests", b"x", delivery_mode=2)
            assert (await take(remote, "work", 1))[0].body == b"x"
            assert [row["name"] for row in remote.network.federation.routes()] == ["r1"]
            assert remote.network.federation.links()[0]["role"] == "gateway"
            await gateway.stop()
            await until(lambda: remote.network.federation.routes()[0]["state"] == "waiting")
            await fabric.add("gateway", data_dir=tmp_path / "gateway", listen=f"127.0.0.1:{port}")
            await until(lambda: flowing(remote))


async def test_the_next_address_is_tried() -> None:
    async with Nodes() as fabric:
        first, second = await fabric.add("first"), await fabric.add("second")
        here = await fabric.add("here")
        for node in (first, second):
            node.declare_queue("q")
        here.declare_queue("work")
        fabric.link("here", "first", "second")
        here.add_route("up", "queue", key="work", queue="q")
        await until(lambda: flowing(here))
        assert here.network.federation.links()[0]["peer"] == "first"
        await first.stop()
        await second.send("q", b"x")
        assert (await take(here, "work", 1))[0].body == b"x"
        assert here.network.federation.links()[0]["peer"] == "second"


async def test_a_node_does_not_link_to_itself() -> None:
    async with Nodes() as fabric:
        here = await fabric.add("here")
        fabric.link("here", "here")
        await until(lambda: "itself" in here.network.federation.links()[0]["cause"])


CONFIG = """
[[links]]
name = "up"
urls = ["{url}"]
role = "gateway"

[[routes]]
link = "up"
kind = "queue"
queue = "requests"
key = "work"
name = "r"
"""


async def test_a_configuration_file_has_links_and_routes() -> None:
    async with Nodes() as fabric:
        gateway = await fabric.add("gateway")
        gateway.declare_queue("requests")
        configuration = parse(CONFIG.format(url=fabric.url("gateway")))
        async with weft.Node(name="remote", configuration=configuration) as remote:
            remote.declare_queue("work")
            await until(lambda: flowing(remote))
            with pytest.raises(Refused, match="configuration file"):
                remote.network.remove_route("r")
            await remote.reload(parse(""))
            assert remote.network.federation.links() == remote.network.federation.routes() == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[links]]\nname = 'a'\nurls = ['http://x']", "is not amqp://"),
        ("[[links]]\nname = 'a b'\nurls = ['x']", "not a name for a link"),
        ("[[routes]]\nlink = 'none'\nkind = 'queue'\nqueue = 'q'\nkey = 'k'", "does not exist"),
        ("[[links]]\nname='a'\nurls=['x']\n[[routes]]\nlink='a'\nkind='odd'", "kind is 'odd'"),
        ("[[links]]\nname='a'\nurls=['x']\n[[routes]]\nlink='a'\nkind='queue'", "which one"),
    ],
)
async def test_a_wrong_file_is_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        async with weft.Node(configuration=parse(text)):
            pass


async def test_a_link_that_carries_routes_stays() -> None:
    async with Nodes() as fabric:
        await fabric.add("peer")
        here = await fabric.add("here")
        fabric.link("here", "peer")
        here.add_route("up", "queue", key="work", queue="q", name="r")
        with pytest.raises(Refused, match="carries routes: r"):
            here.network.remove_link("up")
        here.network.remove_route("r")
        here.network.remove_link("up")
        assert here.network.federation.links() == []
