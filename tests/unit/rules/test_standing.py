"""How rules stand is shown by the node they watch, whatever their actions are."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import weft
from weft.cli.fabric_source import FabricSource
from weft.management.manager import Manager
from weft.model.errors import Refused
from weft.rules import Observation, parse
from weft.rules.run import Runner

MONITOR = Path(__file__).parents[3] / "examples" / "monitoring.py"
RULES = """
interval_s = 0.1
[rules.depth]
object = "q*"
attribute = "ready"
above = 1
clear = 0
[rules.new]
event = "queue.created.#"
object = "late*"
"""


async def until_shown(manager: Manager, name: str, **wanted: object) -> None:
    async with asyncio.timeout(30):
        while True:
            with suppress(Refused):
                row = await manager.read(manager.node, "rule", "/", name)
                if wanted.items() <= row.items():
                    return
            await asyncio.sleep(0.01)


class Names:
    """A fabric of which a name is known, and nothing can be told."""

    node = "here"

    def __init__(self, *names: str) -> None:
        self.names = names

    async def observe(self, kind: str) -> list[Observation]:
        return [Observation(kind, name, {"ready": 5}) for name in self.names]

    def __getattr__(self, name: str) -> None:
        return None


async def test_an_action_that_cannot_be_is_told_and_the_others_are_done(tmp_path: Path) -> None:
    rule = '[rules.depth]\nobject = "q*"\nattribute = "ready"\nabove = 1\naction = "touch"\n'
    file = parse(f'{rule}[actions.touch]\nkind = "restart"\nrun = ["touch", "{tmp_path}/{{object}}"]\n')
    said: list[str] = []
    runner = Runner(file, Names("q\0", "q1", "other"), write=said.append)  # type: ignore[arg-type]
    assert len(await runner.look()) == 2
    await runner.settle()
    assert os.listdir(tmp_path) == ["q1"]
    assert said == ["action touch failed: ValueError('embedded null byte')"]


async def test_the_node_shows_how_rules_stand() -> None:
    async with weft.Node(listen="127.0.0.1:0") as node, weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric:
        manager, source, file = node.management.manager, FabricSource(fabric, "here"), parse(RULES)
        await source.register(file.rules)
        for queue in ("q1", "q2"):
            node.declare_queue(queue)
        running = asyncio.ensure_future(Runner(file, source, write=lambda _: None).run())
        for queue in ("q1", "q1", "q2", "q2"):
            await node.send(queue, b"x")
        await until_shown(manager, "depth", state="crossed", fired=2)
        await manager.call(manager.node, "queue", "/", "q1", "purge", {})
        # The other is above still, and ends its alarm by being deleted.
        node.delete_queue("q2")
        await until_shown(manager, "depth", state="clear", fired=2)
        # A node that knows nothing of a rule, as after a restart, is told of it again.
        await manager.delete(manager.node, "rule", "/", "depth", {})
        for _ in range(2):
            await node.send("q1", b"x")
        await until_shown(manager, "depth", state="crossed", fired=3)
        async with asyncio.timeout(30):
            while not node.management.events.is_heard:  # noqa: ASYNC110 - nothing tells when the watcher listens
                await asyncio.sleep(0.01)
        node.declare_queue("late")
        await until_shown(manager, "new", state="clear", fired=1, object="queue late*")
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


LATENCIES = """
interval_s = 0.1
[rules.objective]
class = "route"
object = "*"
attribute = "round_trip_p99_us"
above = 0
[rules.type]
object = "slow"
attribute = "types.order.p99_us"
above = 1000
"""


async def test_latencies_of_routes_and_of_types_of_messages_are_watched() -> None:
    async with (
        weft.Node(name="here", listen="127.0.0.1:0") as node,
        weft.Node(name="there", listen="127.0.0.1:0") as peer,
        weft.connect(f"amqp://127.0.0.1:{node.ports[0]}") as fabric,
    ):
        manager, source, file = node.management.manager, FabricSource(fabric, "here"), parse(LATENCIES)
        await source.register(file.rules)
        running = asyncio.ensure_future(Runner(file, source, write=lambda _: None).run())
        for one, queue in ((peer, "goal"), (node, "carried"), (node, "slow")):
            one.declare_queue(queue)
        node.add_link("up", [f"amqp://127.0.0.1:{peer.ports[0]}"])
        route = node.add_route("up", "queue", queue="carried", key="goal", direction="push")
        await node.send("carried", b"goes", delivery_mode=2)
        await node.send("slow", b"waits", type="order")
        await until_shown(manager, "objective", state="crossed", fired=1)
        row = await manager.read(manager.node, "route", "/", route)
        assert 0 < row["round_trip_p50_us"] <= row["round_trip_p99_us"] <= row["round_trip_max_us"]
        await asyncio.sleep(0.002)  # it has waited for longer than its rule allows
        async with node.receive("slow") as receiver:
            (await anext(receiver)).accept()
        await until_shown(manager, "type", state="crossed", fired=1)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def test_the_monitor_of_the_talk_alerts_once_and_is_short() -> None:
    done = subprocess.run([sys.executable, MONITOR], capture_output=True, text=True, timeout=60, check=True)
    lines = done.stdout.splitlines()
    alerts = [line for line in lines if not line.startswith("ignored: queue ")]
    assert "ignored: queue something_else" in lines
    assert [line.split(" ", 1)[1] for line in alerts] == [
        "critical transaction_test: queue transaction_test: messages is 121, above 100"
    ]
    assert len(MONITOR.read_text().splitlines()) < 40
