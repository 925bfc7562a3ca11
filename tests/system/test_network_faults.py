"""In every shape nodes die, hang and are cut off under load, all at once, and come back: nothing confirmed is lost,
nothing comes twice, and what carried before carries again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from system.cable import Cable
from system.fabrics import Fabric, until
from weft.cli.fabric import reconcile
from weft.client import connect
from weft.client.management import Management
from weft.fabric import load
from weft.model.errors import WeftError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NODES = range(5)
DEAD, HUNG, CUT = 1, 2, 4
"""What becomes of which node. The last one dials nobody, so all its connections go over a cable that can be cut."""
SHAPES = {
    "tree": [(1, [0]), (2, [0]), (3, [1]), (1, [4])],
    "ring": [(0, [1]), (1, [2]), (2, [3]), (3, [4]), (0, [4])],
    "complete": [(here, [there]) for there in NODES for here in range(there)],
    "mesh": [(1, [0]), (2, [0]), (3, [1]), (3, [2]), (1, [4]), (2, [4]), (3, [4])],
    "tiers": [(0, [1, 2]), (3, [1]), (3, [2]), (1, [4]), (2, [4])],
}
"""Who dials whom; in tiers the front has a second gateway in reserve."""
COUNT = 300
WAIT_S = 90.0
CONFIG = "[limits]\ndoubt_s = 3\n"
ROUTES = '[[routes]]\nkind = "dynamic"\nexchange = "events"\n[[routes]]\nkind = "dynamic"\nexchange = "events"\n'


class Shape:
    """The five nodes, in one shape after another."""

    def __init__(self, folder: Path, fabric: Fabric, cable: Cable) -> None:
        self.fabric = fabric
        self.cable = cable
        self._file = folder / "fabric.toml"

    def take(self, shape: str) -> None:
        """Become so, whatever it was before."""
        text = [f"[fabric]\nname = '{shape}'\n"]
        for number in NODES:
            port = self.cable.port if number == CUT else self.fabric.port(f"n{number}")
            text.append(
                f'[nodes.n{number}]\nlisten = "127.0.0.1:{port}"\nexchanges = {{ events = "topic" }}\n'
                'queues = ["q"]\nbindings = ["events -> q : news.#"]\n'
            )
        for here, there in SHAPES[shape]:
            peers = ", ".join(f'"n{number}"' for number in there)
            text.append(f'[[links]]\nfrom = "n{here}"\nto = [{peers}]\nheartbeat_s = 1\nretry_max_s = 1\n')
        self._file.write_text("\n".join(text) + ROUTES + 'direction = "push"\n')
        assert asyncio.run(reconcile(load(self._file), True, False, carry_out=True)) == 0
        until(lambda: self.carries(shape), WAIT_S)

    def carries(self, shape: str) -> bool:
        """Do all routes flow, and does everybody know that the others want news?"""
        rows = [row for number in NODES for row in self.rows(number, "route")]
        return len(rows) == 2 * len(SHAPES[shape]) and all(
            row["state"] == "flowing" and row["keys"] == 1 for row in rows
        )

    def rows(self, number: int, kind: str) -> list[dict[str, Any]]:
        """Objects of a node; nothing while it cannot be asked."""

        async def ask() -> list[dict[str, Any]]:
            async with connect(self.fabric.url(f"n{number}"), timeout_s=5) as client:
                return await Management(client).query(kind)

        try:
            return asyncio.run(ask())
        except WeftError:
            return []

    def is_lost(self, number: int) -> bool:
        """Has everybody who dialled a node given it up?"""
        rows = [row for at in NODES if at not in (DEAD, HUNG) for row in self.rows(at, "uplink")]
        return all(row["state"] != "operational" for row in rows if row["peer"] == f"n{number}")

    def on_the_way(self) -> int:
        """Messages in queues between nodes."""
        rows = [row for number in NODES for row in self.rows(number, "queue")]
        return sum(row["ready"] + row["unsettled"] for row in rows if row["name"].startswith("weft.bridge."))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shape]:
    folder = tmp_path_factory.mktemp("shapes")
    config = folder / "node.toml"
    config.write_text(CONFIG)
    with Fabric(folder) as fabric:
        for number in NODES:
            fabric.add(f"n{number}", "--config", str(config))
        with Cable(fabric.port(f"n{CUT}")) as cable:
            yield Shape(folder, fabric, cable)


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_lost_or_doubled(nodes: Shape, shape: str) -> None:
    nodes.take(shape)
    fabric = nodes.fabric
    begun, healed = threading.Event(), threading.Event()

    def publish() -> None:
        channel = fabric.channel("n0", confirms=True)
        for number in range(COUNT):
            if number == COUNT // 3:
                begun.set()
            if number == COUNT * 2 // 3:
                healed.wait(WAIT_S)
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("events", "news.today", f"{shape} {number}", properties)

    publisher = threading.Thread(target=publish)
    publisher.start()
    assert begun.wait(WAIT_S)
    fabric.kill(f"n{DEAD}")
    fabric.pause(f"n{HUNG}")
    nodes.cable.cut()
    until(lambda: all(nodes.is_lost(number) for number in (DEAD, HUNG, CUT)), WAIT_S)
    fabric.restart(f"n{DEAD}")
    fabric.go_on(f"n{HUNG}")
    nodes.cable.heal()
    healed.set()
    publisher.join(WAIT_S)
    assert not publisher.is_alive()
    until(lambda: nodes.carries(shape), WAIT_S)
    wanted = Counter(f"{shape} {number}" for number in range(COUNT))
    seen: dict[int, Counter[str]] = {number: Counter() for number in NODES}

    def drain() -> bool:
        for number, found in seen.items():
            _take_all(fabric, f"n{number}", found)
        return all(set(found) == set(wanted) for found in seen.values())

    until(drain, WAIT_S)
    until(lambda: not nodes.on_the_way(), WAIT_S)
    drain()
    assert {number: found - wanted for number, found in seen.items() if found != wanted} == {}


def _take_all(fabric: Fabric, name: str, found: Counter[str]) -> None:
    channel = fabric.channel(name)
    while (got := channel.basic_get("q"))[0] is not None:
        channel.basic_ack(got[0].delivery_tag)
        found[got[2].decode()] += 1
    channel.connection.close()
