"""Losing the node, the loop or the process: what was promised holds, and everything comes back by itself."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

import peers
import weft
from weft.client import Message, sync

pytestmark = pytest.mark.slow

ANSWER_S = 30.0
"""Time for one answer, on a machine that has much else to do."""


class Life:
    """A node on one folder and one port, killed and started again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._port = peers.free_port()
        self._options = ("--listen", f"{peers.HOST}:{self._port}", *options)
        self.url = f"amqp://{peers.HOST}:{self._port}"
        self.start()

    def start(self) -> None:
        self.peer = peers.start_weft(self._folder, *self._options)

    def kill(self) -> None:
        self.peer.kill()


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path / "node")
    yield life
    life.kill()


async def restart(life: Life) -> None:
    await asyncio.to_thread(life.kill)
    await asyncio.to_thread(life.start)


async def declare_guarded(life: Life, queue: str) -> None:
    """A queue that takes each message id once."""
    import pika

    def declare() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(f"{life.url}/%2F"))
        arguments = {"x-barrier": "message-id"}
        connection.channel().queue_declare(queue, durable=True, arguments=arguments)
        connection.close()

    await asyncio.to_thread(declare)


async def test_a_killed_node_loses_nothing_and_doubles_nothing(life: Life) -> None:
    await declare_guarded(life, "ledger")
    confirmed: list[int] = []
    seen: Counter[int] = Counter()
    stop = asyncio.Event()

    async def produce(fabric: weft.Fabric, lane: int) -> None:
        number = 0
        while not stop.is_set():
            await fabric.send("ledger", lane * 1_000_000 + number, timeout_s=30)
            confirmed.append(lane * 1_000_000 + number)
            number += 1

    async with weft.connect(life.url) as sender, weft.connect(life.url) as reader:
        lanes = [asyncio.ensure_future(produce(sender, lane)) for lane in range(20)]
        for _ in range(3):
            await asyncio.sleep(0.5)
            await restart(life)
        await asyncio.sleep(0.5)
        stop.set()
        await asyncio.gather(*lanes)
        assert len(confirmed) > 100
        async with reader.receive("ledger") as messages:
            async with asyncio.timeout(40):
                while not set(confirmed) <= seen.keys():
                    seen[(await anext(messages)).body] += 1
            while (message := await messages.next(0.5)) is not None:  # what nobody was told of, and what came twice
                seen[message.body] += 1
    assert not [number for number, times in seen.items() if times > 1], "doubled"


async def test_receivers_subscriptions_and_services_come_back(life: Life) -> None:
    async with weft.connect(life.url) as server, weft.connect(life.url) as fabric:

        @server.service("echo")
        async def echo(request: Message) -> object:
            return request.body

        await echo.start()
        messages = fabric.receive("comeback")
        topics = await fabric.subscribe("comeback.#").ready()
        for turn in range(3):
            await fabric.send("comeback", turn)
            message = await anext(messages)
            assert message.body == turn
            message.accept()
            assert (await fabric.request("echo", turn, timeout_s=20)).body == turn
            await fabric.publish("comeback.now", turn)
            assert (await anext(topics)).body == turn
            await restart(life)
            await topics.ready()


async def test_a_receiver_that_waits_through_a_restart_gets_all_that_comes_then(life: Life) -> None:
    async with weft.connect(life.url) as fabric, fabric.receive("waiting", timeout_s=30) as messages:
        first = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0)  # it asks, and waits
        await restart(life)
        await fabric.send_many("waiting", list(range(100)), timeout_s=30)
        assert [(await first).body, *[(await anext(messages)).body for _ in range(99)]] == list(range(100))


async def test_a_stream_goes_on_where_it_was(life: Life) -> None:
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(f"{life.url}/%2F"))
    connection.channel().queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    connection.close()
    async with weft.connect(life.url) as fabric:
        await fabric.send_many("log", list(range(50)))
        seen = []
        async for message in fabric.stream("log", offset="first", credit=10):
            seen.append(message.body)
            if len(seen) == 20:
                await restart(life)
            if len(seen) == 50:
                break
    assert seen == list(range(50))


async def test_a_reply_finds_its_way_through_a_restart(life: Life) -> None:
    async with weft.connect(life.url) as server, weft.connect(life.url) as fabric:
        begun, go_on = asyncio.Event(), asyncio.Event()

        @server.service("slow")
        async def slow(request: Message) -> object:
            begun.set()
            await go_on.wait()
            return request.body

        await slow.start()
        asked = [asyncio.ensure_future(fabric.request("slow", number, timeout_s=30)) for number in range(10)]
        await begun.wait()
        address = fabric._replies.address if fabric._replies else None
        await restart(life)
        go_on.set()
        assert [reply.body for reply in await asyncio.gather(*asked)] == list(range(10))
        assert fabric._replies is not None
        assert fabric._replies.address == address


async def test_the_next_url_serves_when_one_does_not(tmp_path: Path) -> None:
    first, second = Life(tmp_path / "one"), Life(tmp_path / "two")
    try:
        async with weft.connect([first.url, second.url]) as fabric:
            await fabric.send("here", 1)
            await asyncio.to_thread(first.kill)
            await fabric.send("here", 2, timeout_s=10)
            assert fabric.core.target is not None
            assert str(fabric.core.target) == second.url
            async with fabric.receive("here") as messages:
                assert (await anext(messages)).body == 2
    finally:
        first.kill()
        second.kill()


async def test_a_deadline_says_what_is_wrong(life: Life) -> None:
    async with weft.connect(life.url) as fabric:
        await fabric.send("q", 1)
        await asyncio.to_thread(life.kill)
        before = time.monotonic()
        with pytest.raises(weft.DeadlineExceeded, match=r"refused|closed|reset"):
            await fabric.send("q", 2, timeout_s=0.5)
        assert time.monotonic() - before < 8  # its own deadline, not that of the client


async def test_heartbeats_go_out_while_the_loop_is_blocked(tmp_path: Path) -> None:
    config = tmp_path / "weft.toml"
    config.write_text("[limits]\nheartbeat_s = 1\n")
    peer = peers.start_weft(tmp_path / "node", "--config", str(config))
    try:
        async with weft.connect(f"amqp://{peers.HOST}:{peer.port}", heartbeat_s=1) as fabric:

            @fabric.service("primes")
            async def primes(request: Message) -> int:
                end = time.monotonic() + request.body
                found = 0
                while time.monotonic() < end:  # pure computing, on the loop itself
                    found += 1
                return found

            await primes.start()
            assert (await fabric.request("primes", 4, timeout_s=30)).body > 0
            assert fabric.core.connections == 1
    finally:
        peer.kill()


@pytest.fixture
def squares(life: Life) -> Iterator[None]:
    """A service that no event loop of the tests carries."""
    with sync.connect(life.url) as server:

        @server.service("square")
        def square(request: Message) -> int:
            return int(request.body) ** 2

        square.start()
        yield


@pytest.mark.usefixtures("squares")
async def test_replies_come_to_others_while_the_loop_that_reads_is_blocked(life: Life) -> None:
    async with weft.connect(life.url) as fabric:
        with ThreadPoolExecutor(1) as pool:
            for number in range(3):
                assert (await fabric.request("square", number)).body == number**2
                other = pool.submit(lambda: asyncio.run(fabric.request("square", 9, timeout_s=30)))
                assert other.result(60).body == 81  # waited for without letting the loop run
            assert (await fabric.request("square", 4)).body == 16
        assert fabric.core.connections == 1


@pytest.mark.usefixtures("squares")
def test_a_client_outlives_the_loop_it_was_opened_on(life: Life) -> None:
    fabric = weft.connect(life.url)
    asyncio.run(fabric.open())
    for number in range(3):
        assert asyncio.run(fabric.request("square", number, timeout_s=30)).body == number**2
    assert fabric.core.connections == 1
    asyncio.run(fabric.close())


SERVICE = textwrap.dedent("""
    import asyncio, sys, weft

    async def main():
        async with weft.connect(sys.argv[1]) as fabric:
            @fabric.service("rolling", concurrency=4, presence_s=600)
            async def rolling(request):
                await asyncio.sleep(0.005)
                return request.body
            print("up", flush=True)
            await fabric.serve()

    asyncio.run(main())
""")


def start_instance(url: str) -> subprocess.Popen[str]:
    instance = subprocess.Popen([sys.executable, "-c", SERVICE, url], stdout=subprocess.PIPE, text=True)
    assert instance.stdout is not None
    with instance.stdout as said:
        assert said.readline() == "up\n"
    return instance


def test_no_request_fails_while_instances_are_replaced_or_killed(life: Life) -> None:
    """What a killed instance had in its hands, another one answers."""
    instances = [start_instance(life.url) for _ in range(2)]
    failed: list[Exception] = []
    answered: list[float] = []
    over = threading.Event()
    with sync.connect(life.url) as fabric:

        def ask() -> None:
            while not over.is_set():
                try:
                    fabric.request("rolling", 1, timeout_s=ANSWER_S)
                    answered.append(time.monotonic())
                except weft.WeftError as error:
                    failed.append(error)

        askers = [threading.Thread(target=ask) for _ in range(4)]
        for asker in askers:
            asker.start()
        try:
            for turn in range(2):
                ended, instances[turn] = instances[turn], start_instance(life.url)
                ended.send_signal(signal.SIGTERM)
                assert ended.wait(20) == 0
            instances.append(start_instance(life.url))
            for instance in instances[:2]:
                instance.kill()
            enough = len(answered) + 40
            while len(answered) < enough and not failed:
                time.sleep(0.01)
        finally:
            over.set()
            for asker in askers:
                asker.join()
            for instance in instances:
                instance.kill()
                instance.wait()
    assert not failed
    gap_s = max(later - earlier for earlier, later in pairwise(sorted(answered)))
    assert gap_s < ANSWER_S


def resolve(life: Life, service: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "directory", "--url", life.url, "--json", "resolve", service]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.timeout(300)
def test_the_node_withdraws_a_service_that_is_killed(life: Life) -> None:
    """Instances announce themselves every ten minutes here: whatever is known sooner is the node's own."""
    with sync.connect(life.url) as fabric:

        @fabric.service("rolling", presence_s=600)
        def rolling(_request: Message) -> None:
            return None

        rolling.start()
        instance = start_instance(life.url)
        told = fabric.watch("rolling")
        try:
            assert {next(told)[1], next(told)[1]} == {"up"}
        finally:
            instance.kill()
        assert instance.wait(60) == -signal.SIGKILL
        lost, state = next(told)
        assert (lost == fabric.name, state) == (False, "down")
        assert [row["value"]["instances"] for row in json.loads(resolve(life, "rolling").stdout)] == [[fabric.name]]
        rolling.stop()
        assert resolve(life, "rolling").returncode == 1
