"""A fabric grows while it works: gateways join, a star becomes a mesh, shards move. Nobody notices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import weft
from unit.network.fabric import Nodes, flowing, keys, ready, take, until
from weft.cli.fabric import reconcile
from weft.fabric import load

ROUNDS = 4
NODES = ("hub", "a", "b", "c", "d")
SHARDS = 4


async def test_a_third_gateway_carries_a_third_and_the_client_knows_nothing_of_it() -> None:
    """Each gateway is done with one message at a time, and gets the next one then: what counts is how many they are."""
    async with Nodes() as fabric:
        local = await fabric.add("local")
        local.declare_queue("orders")
        client = await fabric.add("client")
        client.declare_queue("orders")
        fabric.link("client", "local")
        client.add_route("up", "queue", direction="push", queue="orders", key="orders")

        async def join(name: str) -> None:
            gateway = await fabric.add(name)
            gateway.declare_queue("work")
            fabric.link(name, "local")
            gateway.add_route("up", "queue", queue="orders", key="work", credit=1, backlog_max=1)

        async def carry(gateways: int) -> int:
            """So many in a few rounds, in each of which every gateway that has something is done with it."""
            names = [f"gateway{number}" for number in range(gateways)]
            done = 0
            for _ in range(ROUNDS):
                await until(lambda: all(ready(fabric.nodes[name], "work") == 1 for name in names))
                for name in names:
                    done += len(await take(fabric.nodes[name], "work", 1))
            return done

        for number in range(40):
            await client.send("orders", str(number))
        await join("gateway0")
        await join("gateway1")
        before = await carry(2)
        await join("gateway2")
        assert await carry(3) == before * 3 // 2


def _file(folder: Path, fabric: Nodes, links: str) -> Path:
    """All nodes, each with what it wants; `links` as the file has them."""
    tables = [
        f'[nodes.{name}]\nlisten = "127.0.0.1:{fabric.nodes[name].ports[0]}"\nexchanges = {{ events = "topic" }}\n'
        'queues = ["q"]\nbindings = ["events -> q : news.#"]\n'
        for name in NODES
    ]
    routes = '[[routes]]\nkind = "dynamic"\nexchange = "events"\n'
    path = folder / "fabric.toml"
    path.write_text("\n".join([*tables, links, routes, routes + 'direction = "push"\n']))
    return path


STAR = '[[links]]\nfrom = ["a", "b", "c", "d"]\nto = "hub"\nretry_max_s = 1\n'
MESH = "".join(
    f'[[links]]\nfrom = "{here}"\nto = {there}\neach = true\nretry_max_s = 1\n'
    for here, there in (("a", ["b", "c"]), ("b", ["c", "d"]), ("d", ["a", "hub"]), ("hub", ["c"]))
)


@asynccontextmanager
async def _traffic(nodes: list[weft.Node], sent: list[str]) -> AsyncIterator[None]:
    """Everybody publishes, until the end."""
    over = asyncio.Event()

    async def publish(node: weft.Node) -> None:
        while not over.is_set():
            body = f"{node.name}-{len(sent)}"
            sent.append(body)
            await node.send("events/news.today", body, delivery_mode=2)
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        for node in nodes:
            tasks.create_task(publish(node))
        yield
        over.set()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_star_becomes_a_mesh_under_traffic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file is applied after the other, with --prune; every node gets every message, once."""
    async with Nodes() as fabric:
        nodes = [await fabric.add(name) for name in NODES]
        assert await reconcile(load(_file(tmp_path, fabric, STAR)), False, False, carry_out=True) == 0
        await until(lambda: all(flowing(node) for node in nodes[1:]))
        await until(lambda: all(keys(node, "events") == {"news.#"} for node in nodes))
        sent: list[str] = []
        async with _traffic(nodes, sent):
            mesh = load(_file(tmp_path, fabric, MESH))
            while await reconcile(mesh, True, False, carry_out=True):  # a busy route is left for later
                pass
        assert {(row["name"], row["peer"]) for row in fabric.nodes["a"].network.federation.links()} == {
            ("b", "b"),
            ("c", "c"),
        }
        capsys.readouterr()
        assert await reconcile(mesh, True, False, carry_out=False) == 0
        assert capsys.readouterr().out.count("as the file wants it") == len(NODES)
        await until(lambda: all(ready(node, "q") >= len(sent) for node in nodes), 60)
        for node in nodes:
            assert Counter(message.body.decode() for message in await take(node, "q", len(sent))) == Counter(sent)
            assert ready(node, "q") == 0


async def test_a_plan_that_was_agreed_on_is_carried_out_or_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Nodes() as fabric:
        nodes = [await fabric.add(name) for name in NODES]

        async def run(links: str, **options: Any) -> tuple[int, str]:
            code = await reconcile(load(_file(tmp_path, fabric, links)), True, False, **options)
            said = capsys.readouterr()
            return code, said.out + said.err

        code, said = await run(STAR, carry_out=False)
        plan = said.split()[-1]
        assert (code, await run(STAR, carry_out=False)) == (0, (0, said))
        code, said = await run(MESH, carry_out=True, agreed=plan)  # the file was changed meanwhile
        assert code == 1
        assert f"not {plan}: the file or a node has changed. Nothing was done" in said
        nodes[0].declare_queue("stray", durable=True)  # and now a node was
        assert (await run(STAR, carry_out=True, agreed=plan))[0] == 1
        assert not any(node.network.federation.links() for node in nodes)
        nodes[0].delete_queue("stray")
        assert (await run(STAR, carry_out=True, agreed=plan))[0] == 0
        await until(lambda: all(flowing(node) for node in nodes[1:]))


async def test_two_may_apply_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file, several times over: all succeed, and it is as the file wants it."""
    monkeypatch.setattr("weft.cli.pruning.REST_S", 0.05)
    async with Nodes() as fabric:
        nodes = [await fabric.add(name) for name in NODES]
        star = load(_file(tmp_path, fabric, STAR))
        codes = await asyncio.gather(*(reconcile(star, True, False, carry_out=True) for _ in range(3)))
        assert codes == [0, 0, 0]
        await until(lambda: all(flowing(node) for node in nodes[1:]))
        assert await reconcile(star, True, False, carry_out=True) == 0
        # Two that want different things: whatever came of it, the next one is obeyed.
        mesh = load(_file(tmp_path, fabric, MESH))
        await asyncio.gather(*(reconcile(file, True, True, carry_out=True) for file in (mesh, star, mesh)))
        await reconcile(mesh, True, True, carry_out=True)
        assert await reconcile(mesh, True, True, carry_out=True) == 0
        assert {row["name"] for row in fabric.nodes["a"].network.federation.links()} == {"b", "c"}
        await until(lambda: all(flowing(node) for node in nodes if node.network.federation.links()))


async def test_a_shard_moves_to_another_cluster_under_traffic() -> None:
    """A record's key names its shard; each shard is one cluster's at a time, and moves with what waits in it."""
    async with Nodes() as fabric:
        gateway, first, second = [await fabric.add(name) for name in ("gateway", "first", "second")]
        gateway.declare_exchange("records")
        for shard in range(SHARDS):
            gateway.declare_queue(f"shard-{shard}")
            gateway.bind("records", f"shard-{shard}", str(shard))
        for cluster in (first, second):
            cluster.declare_queue("work")
            fabric.link(cluster.name, "gateway")

        def serve(cluster: weft.Node, shard: int) -> None:
            cluster.add_route("up", "queue", queue=f"shard-{shard}", key="work", name=f"shard-{shard}")

        async def publish(records: range) -> None:
            for record in records:
                await gateway.send(f"records/{record % SHARDS}", str(record))
                await asyncio.sleep(0)

        async def worked(cluster: weft.Node) -> set[int]:
            bodies = [int(message.body) for message in await take(cluster, "work", ready(cluster, "work"))]
            assert len(set(bodies)) == len(bodies)
            return set(bodies)

        def settled(records: int) -> bool:
            waiting = [ready(gateway, f"shard-{shard}") for shard in range(SHARDS)]
            return not any(waiting) and ready(first, "work") + ready(second, "work") == records

        for shard in range(SHARDS):
            serve(first, shard)
        await until(lambda: flowing(first))
        traffic = asyncio.create_task(publish(range(200)))
        for shard in (2, 3):
            first.network.remove_route(f"shard-{shard}")
            serve(second, shard)
        await traffic
        await until(lambda: flowing(second) and settled(200))
        early, late = await worked(first), await worked(second)
        assert early | late == set(range(200))
        assert not early & late
        assert {record % SHARDS for record in late} <= {2, 3}
        await publish(range(200, 240))
        await until(lambda: settled(40))
        assert await worked(second) == {record for record in range(200, 240) if record % SHARDS in (2, 3)}
