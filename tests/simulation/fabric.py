"""A fabric from a seed: real nodes, dynamic routes both ways over every link, publishers, subscribers, faults.

Owns one world: what was published, what arrived where, and the checks. A seed, a shape and a size go in; `Failed` with
the seed comes out where the fabric did not keep a promise, else a `Result`.
What is promised here: YES, every message reaches each queue whose binding was known everywhere when it was published,
exactly once, whatever was cut, reset or paused meanwhile, if no node dies. NO promise is made to a binding that was
still on its way. Whether a message without a subscriber at its own node will arrive, its publisher CANNOT KNOW.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation.disk import Platter, virtual_disks
from simulation.loop import LIFE, Life, VirtualLoop, invented
from simulation.shapes import Edge, distances, edges, neighbours
from simulation.wire import Wire
from weft.config import Configuration
from weft.federation.bridges import bridge_name, pushed_bridge_name
from weft.server import Node

EXCHANGE = "news"
KEYS = ("a.x", "b.x", "c.x")
SETTLE_S = 120.0
"""Time of the world that anything may take to become true."""
MEND_S = 25.0
"""From the last fault on: connections are found dead, dialled again, compared."""
STEP_S = 0.005
CALM_MESSAGES, FAULTY_MESSAGES = 40, 120


class Failed(AssertionError):
    """A promise was broken; its text has the seed."""


@dataclass(frozen=True)
class Result:
    """What a world was like."""

    seed: int
    shape: str
    nodes: int
    links: int
    connections_max: int
    """Connections of the busiest node."""
    up_s: float
    """Until every route flowed."""
    converged_s: float
    """From a binding to the first message at it from the farthest node."""
    hops: int
    """How far that was."""
    messages: int
    crossings: int
    """How often a message passed a link."""
    elapsed_s: float
    trace: str


class World:
    """One run."""

    again = "DEATHS=0"
    """What else repeats it."""
    patience_s = STEP_S
    """How often is looked whether something is true."""

    def __init__(self, seed: int, shape: str, size: int) -> None:
        self.seed, self.shape, self.size = seed, shape, size
        self.chance = random.Random(f"{seed} {shape} {size}")
        self.loop = VirtualLoop()
        self.wire = Wire(self.loop, self.chance.getrandbits(64))
        self.pairs: list[Edge] = edges(shape, [f"n{at:03}" for at in range(size)], self.chance)
        self.cables = list(self.pairs)
        """What may be cut."""
        self.graph = neighbours(self.pairs)
        self.nodes: dict[str, Node] = {}
        self.bridges: list[tuple[str, str, str]] = []
        """(source, destination, queue at the source) of every route."""
        self.subscribed: dict[str, tuple[str, str]] = {}
        """(node, key) by queue."""
        self.got: dict[str, Counter[bytes]] = {}
        self.sent: dict[bytes, tuple[str, str]] = {}
        """(node, key) by body."""
        self.lives: dict[str, Life] = {}
        self._contexts: dict[str, Context] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    def run(self) -> Result:
        """Live through it all."""
        asyncio.set_event_loop(self.loop)
        try:
            with invented(self.loop, self.seed), virtual_disks():
                return self.loop.run_until_complete(self._live())
        except AssertionError as error:
            where = f"SEED={self.seed} SHAPE={self.shape} NODES={self.size} at {self.loop.time():.3f} s"
            raise Failed(f"{error}\n  again: make sim-fabric {self.again} {where}") from error
        finally:
            asyncio.set_event_loop(None)
            self.loop.bury()
            self.loop.close()

    async def _live(self) -> Result:
        try:
            return await self._story()
        finally:
            self._mend()
            await self._stop()

    async def _story(self) -> Result:
        await self._build()
        up_s = self.loop.time()
        hops, converged_s = await self._converge()
        await self._subscribe()
        before = self._crossings()
        await self._publish(CALM_MESSAGES, faults=False)
        await self._until("messages have not arrived", self._is_complete)
        self._check_messages()
        crossings, messages = self._crossings() - before, len(self.sent)
        assert crossings <= messages * 2 * len(self.pairs), f"{crossings} crossings by {messages} messages"
        await self._publish(FAULTY_MESSAGES, faults=True)
        await asyncio.sleep(MEND_S)
        await self._until("messages were lost", self._is_complete)
        self._check_messages()
        self._check_bindings()
        await self._unsubscribe()
        self._check_bindings()
        busiest = max(len(node.snapshot()["connections"]) for node in self.nodes.values())
        return Result(
            self.seed, self.shape, len(self.nodes), len(self.pairs), busiest, up_s, converged_s, hops,
            len(self.sent), crossings, self.loop.time(), self.wire.trace.hexdigest(),
        )  # fmt: skip

    # building

    async def _build(self) -> None:
        for name in sorted(self.graph):
            await self._start(name)
            self._at(name, self.nodes[name].declare_exchange, EXCHANGE, "topic")
        for pair in self.pairs:
            one, other = pair if self.chance.random() < 0.5 else reversed(pair)
            self._link(one, other)
            self._route(one, other, "pull")
            if self.chance.random() < 0.5:
                self._route(one, other, "push")
            else:
                self._link(other, one)
                self._route(other, one, "pull")
        await self._until("routes do not flow", self._is_up)

    async def _start(self, name: str, data_dir: Path | None = None, configuration: Configuration | None = None) -> None:
        """A life of a node begins."""
        life = self.lives[name] = Life(name)
        if data_dir is not None:
            life.mortal.append(Platter(data_dir))
        context = self._contexts[name] = copy_context()
        context.run(LIFE.set, life)
        options = {"data_dir": data_dir, "configuration": configuration or Configuration()}
        node = context.run(lambda: Node(name=name, listen=f"{name}:5672", **options))
        await self.loop.create_task(node.start(), context=context)
        self.nodes[name] = node

    def _link(self, one: str, other: str) -> None:
        node = self.nodes[one]
        self._at(one, node.add_link, other, f"amqp://{other}:5672", retry_max_s=2, durable=False)

    def _route(self, one: str, other: str, direction: str) -> None:
        options = {"exchange": EXCHANGE, "direction": direction, "durable": False}
        name = self._at(one, lambda: self.nodes[one].add_route(other, "dynamic", **options))
        if direction == "pull":
            self.bridges.append((other, one, bridge_name(one, name)))
        else:
            self.bridges.append((one, other, pushed_bridge_name(one, name)))

    def _is_up(self) -> bool:
        return all(
            row["state"] == "flowing" for node in self.nodes.values() for row in node.network.federation.routes()
        )

    async def _stop(self) -> None:
        alive = [task for task in self._tasks if task not in self.loop.dead]
        for task in alive:
            task.cancel()
        await asyncio.gather(*alive, return_exceptions=True)
        for name, node in self.nodes.items():
            if not self.lives[name].is_over:
                await self.loop.create_task(node.stop(), context=self._contexts[name])

    # doing

    def _at(self, name: str, do: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Have a node do something itself, so that a pause of it means this too."""
        return self._contexts[name].copy().run(do, *args, **options)

    def _bind(self, name: str, key: str) -> str:
        queue = f"q{len(self.got)}"
        node = self.nodes[name]
        self._at(name, node.declare_queue, queue, durable=False)
        self._at(name, node.bind, EXCHANGE, queue, key)
        self.subscribed[queue] = (name, key)
        self.got[queue] = Counter()
        self._spawn(name, self._read(name, queue))
        return queue

    async def _read(self, name: str, queue: str) -> None:
        async for message in self.nodes[name].receive(queue):
            trace = message.properties.get("headers", {}).get("x-weft-trace", [])
            assert len(set(trace)) == len(trace) <= len(self.graph), f"a loop: {trace} and then {name}"
            self.got[queue][bytes(message.body)] += 1
            self.wire.note(f"{queue} {name}", bytes(message.body))
            message.accept()

    def _send(self, name: str, key: str) -> None:
        """A node publishes: at once, or when its pause is over."""
        body = f"{len(self.sent)} {key}".encode()
        self.sent[body] = (name, key)
        self._spawn(name, self.nodes[name].send(f"{EXCHANGE}/{key}", body))

    def _spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(work, context=self._contexts[name].copy())
        self._tasks.append(task)

    async def _converge(self) -> tuple[int, float]:
        """Bind at one node, publish at the farthest until something arrives; nobody else listens yet."""
        near = self.chance.choice(sorted(self.graph))
        steps = distances(self.graph, near)
        far = max(steps, key=lambda name: (steps[name], name))
        queue = self._bind(near, KEYS[0])
        start_s = self.loop.time()
        while not self.got[queue]:
            self._send(far, KEYS[0])
            await asyncio.sleep(STEP_S)
            assert self.loop.time() < start_s + SETTLE_S, f"no message from {far} at {near}"
        converged_s = self.loop.time() - start_s
        await asyncio.sleep(1)
        self.got[queue].clear()
        self.sent.clear()
        return steps[far], converged_s

    async def _subscribe(self) -> None:
        for key in KEYS:
            for name in self.chance.sample(sorted(self.graph), self.chance.randint(1, 3)):
                self._bind(name, key)
        await self._until("bindings are not what the shape says", lambda: not self._wrong_bindings())

    async def _unsubscribe(self) -> None:
        """One key is bound nowhere any more; no node may remember it."""
        for queue, (name, key) in list(self.subscribed.items()):
            if key == KEYS[0]:
                self._at(name, self.nodes[name].unbind, EXCHANGE, queue, key)
                del self.subscribed[queue]
        await asyncio.sleep(MEND_S)

    async def _publish(self, count: int, *, faults: bool) -> None:
        for _ in range(count):
            await asyncio.sleep(self.chance.uniform(0, 0.5 if faults else 0.05))
            if faults and self.chance.random() < 0.3:
                self._fault()
            self._send(self.chance.choice(sorted(self.graph)), self.chance.choice(KEYS))
        self._mend()

    def _mend(self) -> None:
        self.wire.heal()
        for life in self.lives.values():
            self.loop.resume(life)

    def _fault(self) -> None:
        kind, pair = self.chance.choice(("cut", "reset", "pause", "resume", "heal")), self.chance.choice(self.cables)
        self.wire.note(f"{kind} {pair}", b"")
        match kind:
            case "cut":
                self.wire.cut(*pair)
            case "reset":
                self.wire.reset(*pair)
            case "pause":
                self.loop.pause(self.lives[pair[0]])
            case "resume":
                self.loop.resume(self.lives[pair[0]])
            case "heal":
                self.wire.heal()

    async def _until(self, what: str, is_true: Callable[[], bool]) -> None:
        end_s = self.loop.time() + SETTLE_S
        while not is_true():
            assert self.loop.time() < end_s, f"{what} after {SETTLE_S:.0f} s: {self._why()}"
            await asyncio.sleep(self.patience_s)

    # checking

    def _why(self) -> str:
        missing = [(queue, self.subscribed[queue], *lack) for queue, *lack in self._missing()]
        return f"missing {missing[:5]} ({len(missing)}); bindings {self._wrong_bindings()[:5]}"

    def _missing(self) -> list[tuple[str, bytes, str]]:
        return [
            (queue, body, publisher)
            for queue, (_, key) in self.subscribed.items()
            for body, (publisher, sent_key) in self.sent.items()
            if sent_key == key and not self.got[queue][body]
        ]

    def _is_complete(self) -> bool:
        return not self._missing()

    def _check_messages(self) -> None:
        for queue, got in self.got.items():
            doubled = [body for body, count in got.items() if count > 1]
            assert not doubled, f"{queue} at {self.subscribed[queue]} got twice: {doubled[:5]} ({len(doubled)})"

    def _crossings(self) -> int:
        """Messages that arrived by routes."""
        links = [row for node in self.nodes.values() for row in node.snapshot()["links"]]
        return sum(row["messages"] for row in links if row["incoming"] and row["name"].startswith("weft-"))

    def _check_bindings(self) -> None:
        wrong = self._wrong_bindings()
        assert not wrong, f"bindings are not what the shape says: {wrong[:5]} ({len(wrong)})"

    def _wrong_bindings(self) -> list[str]:
        """A bridge must have a key if the destination is nearer to a subscriber than the source; it must not if no
        subscriber can be reached from the destination but through the source.
        """
        wrong = []
        bound_at = {key: {name for name, bound in self.subscribed.values() if bound == key} for key in KEYS}
        far = {name: distances(self.graph, name) for name in self.graph}
        for source, destination, queue in self.bridges:
            keys = {key for key, _ in self.nodes[source].network.desk.keys_of_queue("/", EXCHANGE, queue)}
            beyond = distances(self.graph, destination, without=source)
            for key, places in bound_at.items():
                must = any(far[place][destination] < far[place][source] for place in places)
                may = any(place in beyond for place in places)
                if (must and key not in keys) or (key in keys and not may):
                    wrong.append(f"{source} -> {destination} {'lacks' if must else 'has'} {key} of {sorted(places)}")
        return wrong
