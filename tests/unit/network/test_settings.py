"""A node that is started with five lines sets itself up from the directory, and follows it."""

from __future__ import annotations

import asyncio
import json
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

import weft
import zookeepers
from unit.network.fabric import Nodes, flowing, ready, take, until
from weft.cli.fabric import reconcile
from weft.client.management import Management
from weft.config import load, parse
from weft.directory import Directory, open_directory
from weft.fabric.file import parse as parse_fabric
from weft.management.definitions import export

BOOTSTRAP = """\
[node]
name = "here"
[directory]
url = "{url}"
"""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zookeepers.ZooKeeperServer]:
    if not zookeepers.installed():
        pytest.skip("needs java and Debian's zookeeper")
    server = zookeepers.ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


def names(node: weft.Node, table: str) -> set[str]:
    return {row["name"] for row in node.snapshot()[table]}


def permitted(node: weft.Node) -> set[str]:
    return {row.user for row in node._running.policy.permissions()}


async def test_five_lines_and_zookeeper_do_the_rest(zookeeper: zookeepers.ZooKeeperServer) -> None:
    url = f"zookeeper://{zookeeper.hosts}/weft-{uuid4().hex}"
    assert len(BOOTSTRAP.splitlines()) <= 5
    async with open_directory(url, "operator") as operator, Nodes() as fabric:
        gateway = await fabric.add("gateway")
        gateway.declare_queue("requests")
        await operator.put("/nodes/here/bindings/b", {"source": "impl", "destination": "work", "key": "k"})
        await operator.put("/nodes/here/exchanges/impl", {"type": "direct"})
        await operator.put("/nodes/here/queues/work", {"arguments": {"x-max-length": 1000}})
        await operator.put("/nodes/other/queues/not-mine", {})
        async with weft.Node(configuration=parse(BOOTSTRAP.format(url=url))) as here:
            await until(lambda: "work" in names(here, "queues"))
            assert "not-mine" not in names(here, "queues")
            await until(lambda: here.network.desk.keys_of_queue("/", "impl", "work") == [("k", "{}")])
            # Each kind, while it runs, within two seconds, and told as an event.
            events = here.receive("weft.events/#")
            await _soon(2, partial(_queue, operator, here))
            await _soon(2, partial(_user, operator, here))
            await _soon(2, partial(_route, operator, here, fabric.url("gateway")))
            await gateway.send("requests", b"1")
            assert [message.body for message in await take(here, "work", 1)] == [b"1"]
            await _told(events, {("queue", "late-0"), ("directory", "ada-0"), ("uplink", "up-0"), ("route", "r-0")})
            # An address is what the directory says now, for a client that knows its own node alone.
            async with weft.connect("weft+memory:here") as client:
                await _soon(1, partial(_address, operator, client))
                await _soon(1, partial(_address, operator, client))
            for row in here.network.federation.routes():
                await operator.delete(f"/nodes/here/routes/{row['name']}")
            await until(lambda: not here.network.federation.routes())
            # A queue that holds messages stays, whatever the directory says.
            await here.send("work", b"kept")
            await operator.delete("/nodes/here/queues/work")
            await operator.delete("/nodes/here/permissions/ada-0")
            await until(lambda: "ada-0" not in permitted(here))
            assert ready(here, "work") == 1


async def _soon(limit_s: float, change: Callable[[int], Awaitable[None]]) -> None:
    """A change is seen within so many seconds; a machine that is busy elsewhere for as long gets other chances."""
    took_s = []
    for number in range(10):
        began = time.monotonic()
        await change(number)
        took_s.append(time.monotonic() - began)
        if took_s[-1] < limit_s:
            return
    raise AssertionError(f"none of {took_s} is under {limit_s} s")


async def _queue(operator: Directory, here: weft.Node, number: int) -> None:
    await operator.put(f"/nodes/here/queues/late-{number}", {})
    await until(lambda: f"late-{number}" in names(here, "queues"))


async def _user(operator: Directory, here: weft.Node, number: int) -> None:
    await operator.put(f"/nodes/here/users/ada-{number}", {"tags": ["monitoring"]})
    await operator.put(f"/nodes/here/permissions/ada-{number}", {"user": f"ada-{number}", "read": ".*"})
    await until(lambda: f"ada-{number}" in permitted(here))


async def _route(operator: Directory, here: weft.Node, url: str, number: int) -> None:
    await operator.put(f"/nodes/here/links/up-{number}", {"urls": [url], "role": "gateway"})
    route = {"link": f"up-{number}", "kind": "queue", "queue": "requests", "key": "k", "exchange": "impl"}
    await operator.put(f"/nodes/here/routes/r-{number}", route)
    await until(lambda: len(here.network.federation.routes()) > number and flowing(here))


async def _address(operator: Directory, client: weft.Fabric, _: int) -> None:
    value = {"queue": uuid4().hex}
    await operator.put("/addresses/orders", value)
    async with asyncio.timeout(30):
        while not await _resolves(client, "/addresses/orders", value):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def _told(events: AsyncIterator[weft.Message], wanted: set[tuple[str, str]]) -> None:
    """Wait until something was told of objects with these classes and names."""
    seen: set[tuple[str, str]] = set()
    async with asyncio.timeout(30):
        async for event in events:
            body = json.loads(event.body)
            seen.add((body["class"], body["object"].split("/")[-1]))
            if wanted <= seen:
                return


async def _resolves(client: weft.Fabric, path: str, value: dict[str, str]) -> bool:
    return ((await Management(client).find("directory", path)) or {}).get("value") == value


HASH = "scrypt$16$8$1$c2FsdHNhbHRzYWx0c2FsdA==$" + "A" * 43 + "="
SETTINGS: dict[str, dict[str, dict[str, object]]] = {
    "users": {"ada": {"tags": ["monitoring"]}},
    "permissions": {"ada": {"user": "ada", "configure": "", "write": "", "read": ".*"}},
    "policies": {"short": {"pattern": "^tmp", "definition": {"max-length": 10}, "apply_to": "queues", "priority": 3}},
    "links": {"up": {"urls": ["amqp://127.0.0.1:1"], "role": "gateway", "retry_max_s": 7}},
    "routes": {"r": {"link": "up", "kind": "static", "exchange": "impl", "key": "a.#", "credit": 55}},
}
DEFINED: dict[str, list[dict[str, object]]] = {
    "exchanges": [{"name": "impl", "vhost": "/", "type": "topic", "durable": True, "arguments": {}}],
    "queues": [{"name": "work", "vhost": "/", "durable": True, "arguments": {"x-max-length": 1000}}],
    "bindings": [
        {"source": "impl", "vhost": "/", "destination": "work", "destination_type": "queue", "routing_key": "k"}
    ],
}


async def _dump(node: weft.Node) -> object:
    """All that management tells of what a node was told to be."""
    manager = node.management.manager
    rows = [*node.network.federation.links(), *node.network.federation.routes()]
    told = {"state", "cause", "connects", "peer", "address", "conn", "numbers", "keys", "mended"}
    document = await export(manager, manager.node, None)
    users = [user for user in document["users"] if user["name"] != "guest"]  # whose hash is new each time
    return document | {"users": users}, [{k: v for k, v in row.items() if k not in told} for row in rows]


async def test_a_file_and_the_directory_make_the_same_node(
    zookeeper: zookeepers.ZooKeeperServer, tmp_path: Path
) -> None:
    """The base by a package of files, or everything by the directory: nobody can tell which it was."""
    file = tmp_path / "node.toml"
    tables = [
        f"[[{kind}]]\nname = {json.dumps(name)}\n" + "".join(f"{k} = {_toml(v)}\n" for k, v in row.items())
        for kind, rows in SETTINGS.items()
        for name, row in rows.items()
    ]
    text = "".join(tables).replace('[[permissions]]\nname = "ada"\n', "[[permissions]]\n")
    file.write_text(text.replace('name = "ada"\ntags', f'name = "ada"\npassword_hash = "{HASH}"\ntags'))
    async with weft.Node(name="here", configuration=load(file)) as by_file:
        async with weft.connect("weft+memory:here") as client:
            await Management(client).call("node", None, "import", {"definitions": DEFINED})
        wanted = await _dump(by_file)
    url = f"zookeeper://{zookeeper.hosts}/weft-{uuid4().hex}"
    async with open_directory(url, "operator") as operator:
        entries = [(kind, name, row) for kind, rows in SETTINGS.items() for name, row in rows.items()]
        entries += [("exchanges", "impl", {"type": "topic"}), ("queues", "work", {"arguments": {"x-max-length": 1000}})]
        entries += [("bindings", "b", {"source": "impl", "destination": "work", "key": "k"})]
        for kind, name, row in entries:
            hashed = {"password_hash": HASH} if kind == "users" else {}
            await operator.put(f"/nodes/here/{kind}/{name}", row | hashed)
        async with weft.Node(configuration=parse(BOOTSTRAP.format(url=url))) as by_directory:
            await until(lambda: len(by_directory.network.federation.routes()) == 1)
            assert await _dump(by_directory) == wanted


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_traffic_goes_on_without_the_directory(
    zookeeper: zookeepers.ZooKeeperServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"zookeeper://{zookeeper.hosts}/weft-{uuid4().hex}"
    async with open_directory(url, "operator") as operator:
        await operator.put("/nodes/here/queues/work", {})
        async with weft.Node(configuration=parse(BOOTSTRAP.format(url=url)), listen="127.0.0.1:0") as here:
            await until(lambda: "work" in names(here, "queues"))
            async with asyncio.timeout(30):
                while await operator.get("/members/here") is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            zookeeper.stop()
            for number in range(100):
                await here.send("work", str(number))
            assert len(await take(here, "work", 100)) == 100
            # A fabric is applied meanwhile: what nodes can do themselves is done, the rest is told, and made up for.
            place = f'listen = "127.0.0.1:{here.ports[0]}"\ntier = "front"\nqueues = ["applied"]'
            fabric = parse_fabric(tomllib.loads(f"[nodes.here]\n{place}"))
            assert await reconcile(fabric, False, False, carry_out=True) == 1
            said = capsys.readouterr()
            assert "+ queue applied" in said.out
            assert said.err.startswith("here: ")
            assert said.err.count("\n") == 1
            assert "applied" in names(here, "queues")
            zookeeper.start()
            async with asyncio.timeout(30):
                while True:
                    try:
                        await operator.put("/nodes/here/queues/later", {})
                        break
                    except weft.Unavailable:
                        await asyncio.sleep(0.1)
            await until(lambda: "later" in names(here, "queues"), 30)
            async with asyncio.timeout(30):
                while await reconcile(fabric, False, False, carry_out=True):
                    pass
            entry = await operator.get("/topology/here")
            assert entry is not None
            assert entry.value == {"kind": "local", "tier": "front"}


async def test_a_node_starts_without_its_directory() -> None:
    async with weft.Node(configuration=parse(BOOTSTRAP.format(url="zookeeper://127.0.0.1:1/weft"))) as here:
        await here.send("q", b"1")
        assert len(await take(here, "q", 1)) == 1


async def test_the_fabric_itself_is_a_directory() -> None:
    async with Nodes() as fabric:
        here, there = await fabric.add("here"), await fabric.add("there")
        fabric.link("here", "there")
        await there.directory.put("/nodes/here/queues/wanted", {"arguments": {"x-max-length": 5}})
        await until(lambda: "wanted" in names(here, "queues"))
        await there.directory.delete("/nodes/here/queues/wanted")
        await until(lambda: "wanted" not in names(here, "queues"))
