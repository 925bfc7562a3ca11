"""Two nodes and a route between them; either is killed under load, and every message arrives exactly once.

Owns the load, the killing and the count. A publisher with confirms fills a queue at the source; the route moves it to
the destination, where nobody consumes until the end, so that a message that was moved twice is there twice. Peers that
are silent, slow or talk nonsense are played by sockets. Rule: docs/reference/links.md.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pika
import pytest
from pika.exceptions import AMQPError

import peers
from weft import Node
from weft.model.actions import Dial
from weft.model.changes import OpenLink
from weft.model.events import ConnectionClosed, DialFailed, Dialled, Event, LinkAttached, LinkDetached, PeerOpened

from .conftest import StartNode
from .living import PERSISTENT, LivingNode, get_all

ROUNDS = 3
WAIT_S = 30.0


def configuration(folder: Path, name: str, port: int, direction: str) -> list[str]:
    """Options of a node that moves `q` to or from the node at a port."""
    file = folder / f"{name}.toml"
    file.write_text(
        f"""
        [node]
        name = "{name}"

        [[links]]
        name = "peer"
        urls = ["amqp://guest:guest@127.0.0.1:{port}"]
        retry_max_s = 1

        [[routes]]
        link = "peer"
        kind = "queue"
        direction = "{direction}"
        queue = "q"
        exchange = "amq.direct"
        """
    )
    return ["--config", str(file)]


def wait_for(what: str, check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


class Load(threading.Thread):
    """Publishes numbers with confirms, whatever becomes of its node."""

    def __init__(self, node: LivingNode) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._over = threading.Event()
        self.confirmed: list[int] = []
        self.sent = 0

    def run(self) -> None:
        while not self._over.is_set():
            try:
                # A connection of its own: those of the node are cut by the thread that kills it.
                parameters = pika.ConnectionParameters(self._node.host, self._node.port, heartbeat=0)
                channel = pika.BlockingConnection(parameters).channel()
                channel.confirm_delivery()
                while not self._over.is_set():
                    self.sent += 1
                    channel.basic_publish("", "q", b"%d" % self.sent, PERSISTENT)
                    self.confirmed.append(self.sent)
            except (AMQPError, OSError, AssertionError):
                self._over.wait(0.05)

    def end(self) -> None:
        self._over.set()
        self.join(WAIT_S)
        assert not self.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["pull", "push"])
def test_either_end_may_die_and_every_message_is_there_once(
    start_node: StartNode, tmp_path: Path, direction: str
) -> None:
    ports = {"source": peers.free_port(), "goal": peers.free_port()}
    options = {name: ["--listen", f"127.0.0.1:{port}"] for name, port in ports.items()}
    mover, other = ("goal", "source") if direction == "pull" else ("source", "goal")
    options[mover] += configuration(tmp_path, mover, ports[other], direction)
    nodes = {name: start_node(tmp_path / f"data-{name}", *options[name]) for name in (other, mover)}
    channel = nodes["source"].channel()
    channel.queue_declare("q", durable=True)
    channel = nodes["goal"].channel()
    channel.queue_declare("there", durable=True)
    channel.queue_bind("there", "amq.direct", "q")
    load = Load(nodes["source"])
    load.start()
    chance = random.Random(7)
    for _ in range(ROUNDS):
        for name in ("goal", "source"):
            before = len(load.confirmed)
            wait_for("load", lambda before=before: len(load.confirmed) > before + 20)
            time.sleep(chance.uniform(0.1, 0.5))
            nodes[name].restart(kill=True)
    load.end()
    channel = nodes["source"].channel()
    wait_for("the rest", lambda: channel.queue_declare("q", passive=True).method.message_count == 0)
    channel = nodes["goal"].channel()
    found = Counter(int(delivery.body) for delivery in get_all(channel, "there"))
    wait_for("settlement", lambda: channel.queue_declare("there", passive=True).method.message_count == 0)
    lost = set(load.confirmed) - set(found)
    doubled = {number: count for number, count in found.items() if count > 1}
    print(f"{len(load.confirmed)} confirmed, {len(found)} found")
    assert (lost, doubled) == (set(), {})
    assert set(found) <= set(range(1, load.sent + 1))


class Watcher:
    """A controller that dials one peer, opens one link and notes what happens."""

    def __init__(self, link: OpenLink | None = None) -> None:
        self._link = link
        self.events: list[Event] = []
        self.seen = asyncio.Event()

    wants = frozenset(get_args(Event))

    def on_events(self, events: Sequence[Event], now_ns: int) -> list[OpenLink]:
        kinds = (Dialled, DialFailed, PeerOpened, LinkAttached, LinkDetached, ConnectionClosed)
        mine = [event for event in events if isinstance(event, kinds)]
        self.events += mine
        if mine:
            self.seen.set()
        opened = [event for event in mine if isinstance(event, PeerOpened)]
        return [replace(self._link, conn=event.conn) for event in opened if self._link is not None]

    async def until(self, kind: type[Event]) -> Event:
        async with asyncio.timeout(WAIT_S):
            while not any(isinstance(event, kind) for event in self.events):
                self.seen.clear()
                await self.seen.wait()
        return next(event for event in self.events if isinstance(event, kind))


async def dialled(action: Dial, kind: type[Event], link: OpenLink | None = None) -> Event:
    """What comes of a dial by a node of its own."""
    watcher = Watcher(link)
    async with Node(name="dialler") as node:
        node.declare_queue("here")
        driver = node._running.driver
        driver.add_controller(watcher)
        driver.apply([action])
        return await watcher.until(kind)


def playing(answer: Callable[[socket.socket], None]) -> int:
    """A peer that answers its first caller so; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener:
            caller, _ = listener.accept()
            with caller:
                answer(caller)

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def test_a_peer_that_is_not_there_is_told_so() -> None:
    event = asyncio.run(dialled(Dial(1, "127.0.0.1", peers.free_port()), DialFailed))
    assert isinstance(event, DialFailed)
    assert "connection refused" in event.text


def test_a_peer_that_talks_nonsense_is_left() -> None:
    port = playing(lambda caller: caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    event = asyncio.run(dialled(Dial(1, "127.0.0.1", port), ConnectionClosed))
    assert isinstance(event, ConnectionClosed)
    assert "does not speak AMQP" in event.cause


def test_a_peer_that_falls_silent_is_given_up() -> None:
    def half_open(caller: socket.socket) -> None:
        caller.sendall(b"AMQP\x00\x01\x00\x00" + OPEN)
        while caller.recv(4096):
            pass

    port = playing(half_open)
    start = time.monotonic()
    event = asyncio.run(dialled(Dial(1, "127.0.0.1", port, mechanism="", idle_ms=250), ConnectionClosed))
    assert isinstance(event, ConnectionClosed)
    assert "no frame from the peer" in event.cause
    assert time.monotonic() - start < 10


OPEN = bytes.fromhex("00000016 02000000 005310 c00901 a10673696c656e74".replace(" ", ""))
"""A frame with open, container-id `silent`."""


def test_refusals_say_why(node: LivingNode) -> None:
    wrong = Dial(1, node.host, node.port, mechanism="PLAIN", response=b"\0guest\0wrong")
    event = asyncio.run(dialled(wrong, ConnectionClosed))
    assert isinstance(event, ConnectionClosed)
    assert "refused the user or password" in event.cause
    right = Dial(1, node.host, node.port, mechanism="PLAIN", response=b"\0guest\0guest")
    link = OpenLink(0, 1, "pull", "pull", "/queues/missing", queue="here")
    event = asyncio.run(dialled(right, LinkDetached, link))
    assert isinstance(event, LinkDetached)
    assert event.condition == "amqp:not-found"
    assert "missing" in event.text


def test_a_slow_peer_is_given_no_more_than_its_credit(start_node: StartNode, tmp_path: Path) -> None:
    slow = start_node(tmp_path / "slow")
    channel = slow.connect().channel()
    channel.queue_declare("full", durable=True, arguments={"x-max-length": 5, "x-overflow": "reject-publish"})

    async def push() -> tuple[int, int]:
        link = OpenLink(0, 1, "push", "push", "/queues/full", queue="here", relay=True)
        watcher = Watcher(link)
        async with Node(name="dialler") as node:
            node.declare_queue("here")
            for number in range(50):
                await node.send("here", str(number))
            driver = node._running.driver
            driver.add_controller(watcher)
            dial = Dial(1, slow.host, slow.port, mechanism="PLAIN", response=b"\0guest\0guest")
            driver.apply([dial])
            await watcher.until(LinkAttached)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, wait_for, "a full queue", lambda: depth() == 5)
            ready, unsettled, _ = node._running.engine.queue_stats("/", "here") or (0, 0, 0)
            return await loop.run_in_executor(None, depth), ready + unsettled

    def depth() -> int:
        return int(channel.queue_declare("full", passive=True).method.message_count)

    there, here = asyncio.run(push())
    assert (there, here) == (5, 45)
