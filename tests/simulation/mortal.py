"""Fabrics whose nodes die: every kind of route, gateways that fail over, processes killed, machines without power.

Owns a world as `fabric` does, on disks. Dynamic and static routes lie over every link, queue routes around one hub, and
satellites have one link with several addresses. Nodes lose their process or their power and start again.
What is promised here, for durable messages, routes and queues: YES, what its publisher was told is safe reaches each
queue that was bound when it was published, and one of those who drain a queue, exactly once, whoever died meanwhile.
Whether a message arrives whose node died before it answered, its publisher CANNOT KNOW; it never arrives twice. An
acknowledgement that was not on the disk yet is forgotten by a crash: then the same node delivers again, and says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simulation.disk import Platter
from simulation.fabric import EXCHANGE, KEYS, World
from simulation.loop import Life
from simulation.shapes import neighbours
from weft.config import Configuration
from weft.federation.bridges import bridge_name, pushed_bridge_name
from weft.model.limits import Limits
from weft.net import memory

WIRES, JOBS, WORK, IMPL = "wires", "jobs", "work", "work.impl"
WIRE_KEYS = ("w.x", "w.y")
DOUBT_S = 600
"""How long a hub waits for a node that may have a message: longer than any is away here."""
DOWN_S = (0.1, 15.0)
DEAD_SHARE_MAX = 0.34
MESSAGES = 150
SATELLITES_MAX = 3
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Lived:
    """What such a world was like."""

    seed: int
    shape: str
    nodes: int
    satellites: int
    killed: int
    unpowered: int
    messages: int
    unanswered: int
    """Published by nodes that died before they answered."""
    elapsed_s: float
    trace: str


class Mortal(World):
    """One run."""

    again = "DEATHS=1"
    patience_s = 0.25

    def __init__(self, seed: int, shape: str, size: int) -> None:
        super().__init__(seed, shape, size)
        names = sorted(self.graph)
        count = self.chance.randint(1, SATELLITES_MAX) if len(names) > 3 else 0
        self.gateways = {f"s{at:03}": self.chance.sample(names, self.chance.randint(2, 3)) for at in range(count)}
        """Addresses of each satellite's link, in their order."""
        self.cables += [(name, gateway) for name, gateways in self.gateways.items() for gateway in gateways]
        self.hub = self.chance.choice(names)
        self.drains: list[str] = []
        self.down: set[str] = set()
        self.deaths: Counter[str] = Counter()
        self.answered: set[bytes] = set()
        self.asked: dict[bytes, Life] = {}
        """Whose word each publisher waits for."""
        self.given: dict[str, dict[bytes, list[tuple[Life, bool]]]] = defaultdict(lambda: defaultdict(list))
        """(life of the node, was it marked as redelivered) of each delivery, by queue and body."""
        self.patient: set[str] = set()
        """Queues that are read only at the end."""

    def run(self) -> Lived:  # type: ignore[override]
        """Live through it all, on a disk that is forgotten."""
        with TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:
            self.folder = Path(folder)
            return super().run()  # type: ignore[return-value]

    async def _story(self) -> Lived:  # type: ignore[override]
        await self._build()
        await self._subscribe()
        await self._publish(MESSAGES, faults=True)
        await self._until("not everybody is back", lambda: not self.down)
        await self._until("routes do not flow again", self._is_up)
        for queue in sorted(self.patient):
            self._listen(queue)
        await self._until("messages were lost", self._is_complete)
        await self._until("bindings are not what the shape says", lambda: not self._wrong_bindings())
        await asyncio.sleep(1)
        self._check_messages()
        silent = [body for body, life in self.asked.items() if body not in self.answered and not life.is_over]
        assert not silent, f"publishers still wait: {silent[:5]} ({len(silent)})"
        return Lived(
            self.seed, self.shape, len(self.graph), len(self.gateways), self.deaths["kill"], self.deaths["power"],
            len(self.sent), len(self.sent) - len(self.answered), self.loop.time(), self.wire.trace.hexdigest(),
        )  # fmt: skip

    # building

    async def _build(self) -> None:
        for name in [*sorted(self.graph), *self.gateways]:
            await self._begin(name)
            for exchange, kind in ((EXCHANGE, "topic"), (WIRES, "topic"), (JOBS, "direct")):
                self._at(name, self.nodes[name].declare_exchange, exchange, kind)
        self._at(self.hub, self.nodes[self.hub].declare_queue, WORK)
        for pair in self.pairs:
            one, other = pair if self.chance.random() < 0.5 else reversed(pair)
            self._dial(one, other, [other])
            for kind, options in (("dynamic", {"exchange": EXCHANGE}), ("static", {"exchange": WIRES, "key": "#"})):
                self._carry(one, other, kind, "pull", **options)
                if self.chance.random() < 0.5:
                    self._carry(one, other, kind, "push", **options)
                else:
                    self._dial(other, one, [one])
                    self._carry(other, one, kind, "pull", **options)
            if self.hub in pair and len(self.drains) < 4:
                self._drain(one, other)
        for name, gateways in self.gateways.items():
            self._dial(name, "up", gateways)
            self._carry(name, "up", "dynamic", "pull", exchange=EXCHANGE)
            self._carry(name, "up", "dynamic", "push", exchange=EXCHANGE)
        await self._until("routes do not flow", self._is_up)

    async def _begin(self, name: str) -> None:
        await self._start(name, self.folder / name, Configuration(limits=Limits(doubt_s=DOUBT_S)))

    def _dial(self, name: str, link: str, peers: list[str]) -> None:
        if self.nodes[name].network.federation.link(link) is None:
            urls = [f"amqp://{peer}:5672" for peer in peers]
            self._at(name, self.nodes[name].add_link, link, urls, retry_max_s=2)

    def _carry(self, name: str, link: str, kind: str, direction: str, **options: Any) -> None:
        self._at(name, lambda: self.nodes[name].add_route(link, kind, direction=direction, **options))

    def _drain(self, one: str, other: str) -> None:
        """Have a neighbour of the hub drain its queue, by whoever has the link."""
        there = other if one == self.hub else one
        node = self.nodes[there]
        self._at(there, node.declare_queue, IMPL)
        self._at(there, node.bind, JOBS, IMPL, WORK)
        bound = self.chance.choice((0, 0, 2, 20)) if there == one else 0
        options = {"queue": WORK, "exchange": JOBS, "key": WORK, "backlog_max": bound}
        self._carry(one, other, "queue", "pull" if there == one else "push", **options)
        self.drains.append(there)
        self._want(there, IMPL, "")

    async def _subscribe(self) -> None:
        names = sorted(self.graph)
        for key in KEYS:
            for name in self.chance.sample(names, self.chance.randint(1, 2)):
                self._subscribe_one(name, EXCHANGE, key)
        for name in self.gateways:
            self._subscribe_one(name, EXCHANGE, self.chance.choice(KEYS))
        for key in WIRE_KEYS:
            self._subscribe_one(self.chance.choice(names), WIRES, key)
        await self._until("bindings are not what the shape says", lambda: not self._wrong_bindings())

    def _subscribe_one(self, name: str, exchange: str, key: str) -> None:
        queue = f"q{len(self.subscribed)}"
        self._at(name, self.nodes[name].declare_queue, queue)
        self._at(name, self.nodes[name].bind, exchange, queue, key)
        self._want(name, queue, key)

    def _want(self, name: str, queue: str, key: str) -> None:
        place = queue if queue != IMPL else f"{IMPL}@{name}"
        self.subscribed[place] = (name, key)
        if self.chance.random() < 0.5:
            self.patient.add(place)
        else:
            self._listen(place)

    # doing

    def _listen(self, place: str) -> None:
        name, _ = self.subscribed[place]
        self.patient.discard(place)
        if name not in self.down:
            self._spawn(name, self._read(name, place))

    async def _read(self, name: str, queue: str) -> None:
        life = self.lives[name]
        async for message in self.nodes[name].receive(queue.partition("@")[0]):
            trace = message.properties.get("headers", {}).get("x-weft-trace", [])
            assert len(trace) <= len(self.lives), f"a loop: {trace} and then {name}"
            if not queue.startswith(IMPL):
                assert len(set(trace)) == len(trace), f"a loop: {trace} and then {name}"
            body = bytes(message.body)
            self.given[queue][body].append((life, message.redelivered))
            self.wire.note(f"{queue} {name}", body)
            if queue.startswith(IMPL):
                await asyncio.sleep(0.02)
            message.accept()

    async def _publish(self, count: int, *, faults: bool) -> None:
        for _ in range(count):
            await asyncio.sleep(self.chance.uniform(0, 0.5))
            if faults and self.chance.random() < 0.35:
                self._fault()
            alive = [name for name in [*sorted(self.graph), *self.gateways] if name not in self.down]
            kind = self.chance.random()
            if kind < 0.3 and self.hub in alive:
                self._send_to(self.hub, WORK, WORK)
            elif kind < 0.5:
                inner = [name for name in alive if name in self.graph]
                self._send_to(self.chance.choice(inner), WIRES, self.chance.choice(WIRE_KEYS))
            else:
                self._send_to(self.chance.choice(alive), EXCHANGE, self.chance.choice(KEYS))
        self._mend()

    def _send_to(self, name: str, where: str, key: str) -> None:
        body = f"{len(self.sent)} {key}".encode()
        self.sent[body] = (name, "" if where == WORK else key)
        address = WORK if where == WORK else f"{where}/{key}"
        self._spawn(name, self._send_one(name, address, body))

    async def _send_one(self, name: str, address: str, body: bytes) -> None:
        self.asked[body] = self.lives[name]
        await self.nodes[name].send(address, body, delivery_mode=2)
        self.answered.add(body)

    def _fault(self) -> None:
        if self.chance.random() < 0.5:
            super()._fault()
            return
        alive = [name for name in self.lives if name not in self.down]
        if len(self.down) < DEAD_SHARE_MAX * len(self.lives):
            self._kill(self.chance.choice(alive), self.chance.choice(("kill", "power")))

    def _kill(self, name: str, kind: str) -> None:
        self.wire.note(f"{kind} {name}", b"")
        self.deaths[kind] += 1
        self.down.add(name)
        life = self.lives[name]
        self.loop.end(life)
        self.wire.die(life, silently=kind == "power")
        memory._LISTENERS.pop(name, None)
        if kind == "power":
            for part in life.mortal:
                if isinstance(part, Platter):
                    part.lose_power(self.chance)
        self._tasks.append(self.loop.create_task(self._revive(name, self.chance.uniform(*DOWN_S))))

    async def _revive(self, name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.wire.light(name)
        await self._begin(name)
        self.wire.note(f"back {name}", b"")
        self.down.discard(name)
        for place in sorted(set(self.subscribed) - self.patient):
            if self.subscribed[place][0] == name:
                self._spawn(name, self._read(name, place))

    # checking

    def _is_up(self) -> bool:
        return not self.down and super()._is_up()

    def _why(self) -> str:
        rows = [(name, row) for name, node in self.nodes.items() for row in node.network.federation.routes()]
        still = [
            f"{name}: {row['name']} {row['state']} {row['cause']}" for name, row in rows if row["state"] != "flowing"
        ]
        return f"{super()._why()}; routes {still[:5]} ({len(still)})"

    def _missing(self) -> list[tuple[str, bytes, str]]:
        worked = {body for place in self.drains for body in self.given[f"{IMPL}@{place}"]}
        missing = [
            (queue, body, publisher)
            for queue, (_, key) in self.subscribed.items()
            for body, (publisher, sent_key) in self.sent.items()
            if key and sent_key == key and body in self.answered and body not in self.given[queue]
        ]
        asked = [body for body, (_, key) in self.sent.items() if not key and body in self.answered]
        return missing + [(f"{IMPL}@{self.drains[0]}", body, self.hub) for body in asked if body not in worked]

    def _check_messages(self) -> None:
        for queue, got in self.given.items():
            for body, times in got.items():
                lives = Counter(life for life, _ in times)
                fresh = sum(not redelivered for _, redelivered in times)
                is_once = fresh <= 1 and max(lives.values()) == 1
                assert is_once, f"{queue} at {self.subscribed[queue]} got {body!r} twice"
        places = Counter(body for place in self.drains for body in self.given[f"{IMPL}@{place}"])
        doubled = [body for body, count in places.items() if count > 1]
        assert not doubled, f"worked on at two nodes: {doubled[:5]} ({len(doubled)})"

    def _wrong_bindings(self) -> list[str]:
        """As the shape says, with satellites where they are linked now; elsewhere nothing is kept for them."""
        found = [*self.pairs]
        self.bridges = []
        for name, node in self.nodes.items():
            for row in node.network.federation.routes():
                if row["kind"] != "dynamic" or not row["peer"]:
                    continue
                if row["direction"] == "pull":
                    self.bridges.append((row["peer"], name, bridge_name(name, row["name"])))
                else:
                    self.bridges.append((name, row["peer"], pushed_bridge_name(name, row["name"])))
                if name in self.gateways and row["direction"] == "pull":
                    found.append((name, row["peer"]))
        inner, self.graph = self.graph, neighbours(found)
        try:
            return [*super()._wrong_bindings(), *self._left_behind()]
        finally:
            self.graph = inner

    def _left_behind(self) -> list[str]:
        kept = {(source, queue) for source, _, queue in self.bridges}
        return [
            f"{name} keeps {queue['name']}"
            for name, node in self.nodes.items()
            for queue in node.snapshot()["queues"]
            if queue["name"].startswith("weft.bridge.s") and (name, queue["name"]) not in kept
        ]
