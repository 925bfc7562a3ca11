"""The network of the talk, from its file, as nine processes. One of each kind is killed under load, and nobody waits
long. Then the same nine become three regions, and the table of sockets tells who speaks to whom.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import peers
import weft
from system.fabrics import Fabric
from system.sockets import connected
from weft.client.management import Management

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PAYPAL = Path(__file__).parents[2] / "examples" / "fabrics" / "paypal.toml"
LOCALS = ("local-1", "local-2", "local-3")
REMOTES = ("remote-1", "remote-2")
INFRA = ("infra-1", "infra-2")
NODES = ("gateway-1", "gateway-2", *REMOTES, *LOCALS, *INFRA)
REQUEST = "user.lifecycle.request"
AFTER = 40
"""Requests sent after a death that are answered before the dead one comes back."""
OUTAGE_MAX_S = 5.0
WAIT_S = 60.0
REGIONS = """
nodes:
{nodes}
links:
  - {{from: [local-1, infra-1], to: gateway-1, name: up, retry_max_s: 1}}
  - {{from: [local-2, infra-2], to: gateway-2, name: up, retry_max_s: 1}}
  - {{from: [local-3, remote-2], to: remote-1, name: up, retry_max_s: 1}}
  - {{from: gateway-1, to: [gateway-2, remote-1], each: true, retry_max_s: 1}}
  - {{from: gateway-2, to: remote-1, retry_max_s: 1}}
routes:
  - {{kind: dynamic, exchange: world}}
  - {{kind: dynamic, exchange: world, direction: push}}
  - {{from: local-1, kind: queue, direction: push, queue: orders, exchange: world, key: orders}}
"""
REGION_OF = {
    "slc": ("gateway-1", "local-1", "infra-1"),
    "phx": ("gateway-2", "local-2", "infra-2"),
    "dub": ("remote-1", "local-3", "remote-2"),
}
GATEWAYS = {"gateway-1", "gateway-2", "remote-1"}


class Nine(Fabric):
    """The nodes that `weft fabric up` has started from the file, and those that took a dead one's place."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        base = _free_run(len(NODES))
        self._ports = {name: base + at for at, name in enumerate(NODES)}
        self.file = folder / "paypal.toml"
        text = PAYPAL.read_text()
        for port, first in ((5673, "gateway-1"), (5683, "remote-1"), (5693, "local-1"), (5703, "infra-1")):
            text = text.replace(f":{port}", f":{self._ports[first]}")
        self.file.write_text(text)
        command = [sys.executable, "-m", "weft", "fabric", "up", str(self.file), "--data-dir", str(folder)]
        self._up, self._output = peers.start("fabric", command, {}, lambda line: "is up: 9 nodes" in line)
        children = Path(f"/proc/{self._up.pid}/task/{self._up.pid}/children").read_text().split()
        self.pids = {_name_of(int(pid)): int(pid) for pid in children}

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)

    def restart(self, name: str, *, env: object = None) -> None:
        self.add(name)
        self.pids[name] = self.nodes[name].pid

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._up.terminate()
        assert self._up.wait(WAIT_S) == 0, self._output.text()


def _name_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return words[words.index("--name") + 1]


def _free_run(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        base = random.randint(peers.PORTS[0], peers.PORTS[1] - count)
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((peers.HOST, port))
        except OSError:
            continue
        return base


@pytest.fixture(scope="module")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nine]:
    with Nine(tmp_path_factory.mktemp("nine")) as fabric:
        yield fabric


class Load:
    """Numbered requests and events from one client, answered by a service at each remote, kept by both infra nodes.

    `confirmed` has what the client's node has answered for, the others when each number first arrived.
    """

    def __init__(self, nine: Nine) -> None:
        self._nine = nine
        self._over = asyncio.Event()
        self.confirmed: list[int] = []
        self.answered: dict[int, float] = {}
        self.kept: dict[str, dict[int, float]] = {name: {} for name in INFRA}

    async def write(self, client: weft.Fabric) -> None:
        """Until it is over; what has no answer yet is sent again by the client itself, wherever it is then."""
        number = 0
        while not self._over.is_set():
            await client.send(f"/exchanges/service_gateway.direct/{REQUEST}", number)
            await client.send("/exchanges/events/asked", number)
            self.confirmed.append(number)
            number += 1
            await asyncio.sleep(0.005)

    async def read(self, client: weft.Fabric) -> None:
        async for reply in client.receive("replies"):
            self.answered.setdefault(int(reply.body), time.monotonic())

    async def serve(self, name: str) -> None:
        async with weft.connect(self._nine.url(name)) as service:
            async for request in service.receive(f"{REQUEST}.impl", accept="explicit", credit=10):
                await service.send("/exchanges/service_res.direct/me", request.body, timeout_s=WAIT_S)
                request.accept()

    async def keep(self, name: str) -> None:
        async with weft.connect(self._nine.url(name)) as infra:
            async for event in infra.receive("log"):
                self.kept[name].setdefault(int(event.body), time.monotonic())

    async def lose(self, victim: str) -> None:
        """Kill it; the rest goes on, and has nowhere stood still for long. Then it comes back."""
        killed, first = time.monotonic(), len(self.confirmed) + 1
        self._nine.kill(victim)

        def arrived() -> list[dict[int, float]]:
            either = {**self.kept["infra-1"], **self.kept["infra-2"]}
            return [self.answered, either]

        await _until(lambda: all(sum(n > first for n in found) >= AFTER for found in arrived()))
        for found in arrived():
            times = sorted([killed, *(at for at in found.values() if at > killed)])
            outage_s = max(later - earlier for earlier, later in pairwise(times))
            assert outage_s < OUTAGE_MAX_S, f"{victim} was missed for {outage_s:.1f} s"
        await asyncio.to_thread(self._nine.restart, victim)

    async def end(self) -> None:
        """Everything that was confirmed has been answered, and is in both logs."""
        self._over.set()
        wanted = set(self.confirmed)
        await _until(lambda: all(wanted <= found.keys() for found in (self.answered, *self.kept.values())))


async def _until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not what():  # noqa: ASYNC110 - several receivers fill what is looked at
            await asyncio.sleep(0.01)


async def _until_known(url: str) -> None:
    """Wait until a local node knows who wants requests and events."""
    async with weft.connect(url) as client, asyncio.timeout(WAIT_S):
        management = Management(client)
        pushed = {"direction": "push"}
        while [row.get("keys") for row in await management.query("route", where=pushed)] != [1, 1]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _until_empty(url: str) -> None:
    async with weft.connect(url) as client, asyncio.timeout(WAIT_S):
        management = Management(client)
        held = 1
        while held:
            rows = await management.query("queue")
            held = sum((row.get("ready") or 0) + (row.get("unsettled") or 0) for row in rows)


def _folders(folder: Path, pid: int) -> set[str]:
    """Of the nodes' folders, those in which a process has files open or mapped."""
    opened = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]
    mapped = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    paths = [Path(name) for name in (*opened, *mapped) if name.startswith(f"{folder}/")]
    return {path.relative_to(folder).parts[0] for path in paths}


async def test_any_process_may_be_killed_under_load(nine: Nine) -> None:
    for local in LOCALS:
        channel = nine.channel(local)
        channel.queue_declare("replies", durable=True)
        channel.queue_bind("replies", "service_res.direct", "me")
        channel.connection.close()
    drawn = await asyncio.to_thread(nine.command, f"weft map --url {nine.url('local-2')}")
    tiers = re.findall(r"-- (\w+) tier|\[([\w-]+)\]", drawn)
    assert [tier or name for tier, name in tiers] == [
        *("front", *LOCALS), *("mid", "gateway-1", "gateway-2"), *("core", *INFRA, *REMOTES),
    ]  # fmt: skip
    assert len(re.findall(r"\] .* \d+ published, \d+ delivered", drawn)) == len(nine.pids), "what each node did"
    assert re.search(r"==> gateway-1 .*operational\n +[-<]", drawn), "links, and under them routes"
    assert re.search(r"[-<][->] dynamic .*: \w+, \d+ carried", drawn), "and what those carried"
    for local in LOCALS:
        await _until_known(nine.url(local))
    load = Load(nine)
    async with weft.connect([nine.url(name) for name in LOCALS]) as client:
        tasks = [asyncio.create_task(load.serve(name)) for name in REMOTES]
        tasks += [asyncio.create_task(load.keep(name)) for name in INFRA]
        tasks += [asyncio.create_task(load.read(client)), asyncio.create_task(load.write(client))]
        await _until(lambda: len(load.answered) >= AFTER and all(load.kept.values()))
        for victim in ("local-1", "gateway-1", "remote-1", "infra-1"):
            await load.lose(victim)
        await load.end()
        for gateway in ("gateway-1", "gateway-2"):
            await _until_empty(nine.url(gateway))  # pipes hold nothing when the traffic is over
        for name, pid in nine.pids.items():
            assert _folders(nine.folder, pid) == {name}, "each has its own data, and nobody else's"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_regions_are_joined_at_gateways_and_nowhere_else(nine: Nine) -> None:
    lines = []
    for region, names in REGION_OF.items():
        for name in names:
            kind = "gateway" if name in GATEWAYS else "local"
            has = {"local-1": ", queues: [orders]", "local-3": ', queues: [desk], bindings: ["world -> desk : orders"]'}
            lines.append(
                f'  {name}: {{listen: "127.0.0.1:{nine.port(name)}", kind: {kind}, region: {region}, '
                f"exchanges: {{world: topic}}{has.get(name, '')}}}"
            )
    file = nine.folder / "regions.yaml"
    file.write_text(REGIONS.format(nodes="\n".join(lines)))
    await asyncio.to_thread(nine.command, f"weft fabric apply {file} --prune --force")
    region_of = {name: region for region, names in REGION_OF.items() for name in names}

    def inter_region() -> set[frozenset[str]]:
        return {pair for pair in connected(nine.pids) if len({region_of[name] for name in pair}) > 1}

    await _until(lambda: len(inter_region()) == 3)
    assert inter_region() == {frozenset(pair) for pair in (
        ("gateway-1", "gateway-2"), ("gateway-1", "remote-1"), ("gateway-2", "remote-1"),
    )}  # fmt: skip
    # A client in Salt Lake City names a queue of its own node and nothing else; who reads is in Dublin.
    async with weft.connect(nine.url("local-1")) as client, weft.connect(nine.url("local-3")) as desk:
        await client.send("orders", "from slc")
        async with asyncio.timeout(WAIT_S):
            async for message in desk.receive("desk"):
                assert message.body == "from slc"
                break
    assert len(inter_region()) == 3
