"""The measure `network`: what several nodes do together, beside what one does alone.

Owns its cases: round trips over a gateway and a remote, responses beside too many requests, the split between a fast
and a slow remote, a partition that dies beside another, how soon a binding brings traffic, ten thousand bindings, and a
gateway that is killed. Each starts nodes of its own, as processes, and returns figures; rows and targets are made of
them here. It must never wait for a
guess: a case begins when messages have been seen to go through.
Rule: a node's peer is another node of the same build, so only the round trips are figures beside something else.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pika
from bench import Bench, BenchError, Row, Run, row
from brokers import Broker
from hop import QUEUE, flow

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from pika import frame, spec

import weft
from interop.raw091 import RawConnection
from system.fabrics import Fabric

TALK_MS = {
    1: 0.60, 100: 0.60, 1024: 0.66, 2048: 0.64, 4096: 0.65, 8192: 0.66, 16384: 0.73, 32768: 0.90, 65536: 1.07,
    131072: 1.55,
}  # fmt: skip
"""Mean round trip through one node by size in bytes, as the talk's table has it: two machines, 1 Gb/s."""
TRIPS = 3_000
CORES = os.sched_getaffinity(0)
TRIPS_FOR_P99 = 2_000
ROUNDS_FOR_P99 = 7
"""Short runs in turns: a p99 wanders more between seconds than what it is to tell."""
FULL = 1_000
FLOOD_PER_S = 10_000
FAST_S, SLOW_S = 0.02, 0.04
SHARED = 300
PARTITIONS = {"payments": QUEUE, "risk-1": "risk", "risk-2": "risk"}
"""The nodes of two partitions, and the queue of a gateway that each draws from."""
DYING = ("risk-1", "risk-2")
DRAWN = 100_000
ROUNDS_OF_DEATH = 5
PROBES = 50
BINDINGS = 10_000
BINDINGS_PER_WRITE = 500
LIVE_PAUSE_S = 0.002
LIVE_BEFORE_S, LIVE_AFTER_S = 1.0, 3.0
DOUBT_S = 5
"""How long what the dead gateway may have waits for it, instead of a minute: the case need not take that long."""
WAIT_S = 60.0

REQUESTS, REPLIES = "service_gateway.direct", "service_res.direct"
DOUBT = f"""
[limits]
doubt_s = {DOUBT_S}
"""
LINK = """
[[links]]
name = "{name}"
urls = [{urls}]
role = "gateway"
retry_max_s = 1
"""
REMOTE = """
[[routes]]
link = "{link}"
kind = "queue"
queue = "work"
key = "work"
credit = {credit}
backlog_max = {backlog_max}
"""
DRAIN = """
[[routes]]
link = "up"
kind = "queue"
queue = "{queue}"
key = "{queue}"
credit = 1000
"""
PULL = """
[[routes]]
link = "{link}"
kind = "dynamic"
exchange = "{exchange}"
"""
PUSH = """
[[routes]]
link = "{link}"
kind = "dynamic"
direction = "push"
exchange = "{exchange}"
"""


def network(bench: Bench, quick: bool) -> list[Row]:
    """All cases."""
    rows = [*_round_trips(bench, quick), *_isolation(bench)]
    cases: list[tuple[Callable[[Fabric], Run], Callable[[Run], list[Row]]]] = [
        (split, _split_rows), (death, _death_rows), (bindings, _binding_rows), (takeover, _takeover_rows),
    ]  # fmt: skip
    for case, told in cases:
        bench.say(f"network: {case.__name__}")
        with fabric() as nodes:
            rows += told(case(nodes))
        bench.runs += 1
    return rows


@contextmanager
def fabric() -> Iterator[Fabric]:
    """Nodes that end with the case."""
    with (
        tempfile.TemporaryDirectory(prefix="network-", ignore_cleanup_errors=True) as folder,
        Fabric(Path(folder)) as nodes,
    ):
        yield nodes


def add(nodes: Fabric, name: str, config: str = "") -> None:
    """Start a node with this configuration, and the exchanges of the talk."""
    file = nodes.folder / f"{name}.toml"
    file.write_text(config)
    nodes.add(name, "--config", str(file))
    channel = nodes.channel(name)
    for exchange in (REQUESTS, REPLIES):
        channel.exchange_declare(exchange, "direct", durable=True)
    channel.connection.close()


def link(name: str, *urls: str) -> str:
    return LINK.format(name=name, urls=", ".join(f'"{url}"' for url in urls))


def pump(channel: Any, done: Callable[[], object], what: str, pause_s: float = 0.01) -> None:
    """Let a pika channel's callbacks work until something is so."""
    deadline = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > deadline:
            raise BenchError(f"{what} took more than {WAIT_S:.0f} s")
        channel.connection.process_data_events(time_limit=pause_s)


# round trips over two nodes


def _round_trips(bench: Bench, quick: bool) -> list[Row]:
    """The gateway has a core of its own; the remote and the clients, which wait for each other, share another."""
    here, there = min(CORES), max(CORES)
    with fabric() as nodes:
        far = _trip_nodes(nodes, here, there)
        pid = nodes.nodes["gateway"].pid
        gateway = Broker("weft", nodes.port("gateway"), pid, ready_s=0)
        rows: list[Row] = []
        for size in (1024,) if quick else TALK_MS:
            near: dict[str, int | str] = {"size": size, "count": TRIPS}

            def trips(options: dict[str, int | str]) -> Run:
                with on_core(there):
                    return bench.load("load091", "rtt", gateway, options)

            runs = bench.turns({"one": partial(trips, near), "weft": partial(trips, {**near, **far})})
            ratio = statistics.median(b["p50_us"] / a["p50_us"] for a, b in zip(*runs.values(), strict=True))
            what = (
                f"round trip of {size:,} B over gateway and remote, p50 (the talk's one node: {TALK_MS[size]:.2f} ms)"
            )
            target, met = (f"≤ 2.2 × one node (here {ratio:.2f} ×)", ratio <= 2.2) if size == 1024 else ("", None)
            rows.append(row(what, "µs", {"weft": runs["weft"]}, "p50_us", target=target, met=met))
            rows.append(row("  through one node", "µs", {"weft": runs["one"]}, "p50_us"))
    return rows


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes started inside run on one core."""
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, CORES)


def _trip_nodes(nodes: Fabric, here: int, there: int) -> dict[str, int | str]:
    """A gateway, and a remote that drains its queue and pushes replies back: the options of a load between them."""
    with on_core(here):
        add(nodes, "gateway")
    gateway = nodes.channel("gateway")
    gateway.queue_declare("work")
    gateway.queue_declare("work.reply")
    gateway.queue_bind("work.reply", REPLIES, "work.reply")
    routes = REMOTE.format(link="up", credit=1000, backlog_max=0) + PUSH.format(link="up", exchange=REPLIES)
    with on_core(there):
        add(nodes, "remote", link("up", nodes.url("gateway")) + routes)
    remote = nodes.channel("remote")
    remote.queue_declare("work")
    nodes.until_flowing("remote", 2)
    seen: list[bytes] = []
    gateway.basic_consume("work.reply", lambda *args: seen.append(args[-1]), auto_ack=True)
    remote.basic_publish(REPLIES, "work.reply", b"reply")
    pump(gateway, lambda: seen, "the way back")
    for channel in (gateway, remote):
        channel.connection.close()
    pids = f"{nodes.nodes['gateway'].pid},{nodes.nodes['remote'].pid}"
    port = nodes.port("remote")
    return {"echo_port": port, "pid": pids, "queue": "work", "reply_exchange": REPLIES, "leave": 1}


# requests and responses within one node


def _isolation(bench: Bench) -> list[Row]:
    """Round trips of responses: alone, while more requests arrive than anybody takes, and while as many arrive at
    another node that shares the core: what that costs them is the machine's doing.
    """
    here, there = min(CORES), max(CORES)
    with fabric() as nodes:
        for name in ("one", "other"):
            with on_core(here):
                add(nodes, name)
            channel = nodes.channel(name)
            channel.queue_declare("work", arguments={"x-max-length": FULL})
            channel.queue_bind("work", REQUESTS, "work")
        broker = Broker("weft", nodes.port("one"), nodes.nodes["one"].pid, ready_s=0)

        def calm() -> Run:
            with on_core(there):
                return bench.load("load091", "rtt", broker, {"count": TRIPS_FOR_P99})

        def overloaded(name: str) -> Run:
            words = [
                f"port={nodes.port(name)}",
                f"rate={FLOOD_PER_S}",
                f"secs={WAIT_S}",
                f"exchange={REQUESTS}",
                "queue=work",
            ]
            with on_core(there):
                flood = subprocess.Popen([str(bench.programs / "load091"), "flood", *words])
            try:
                # That others keep the machine busy is what this is about.
                run = {**calm(), "other_cpu": 0.0}
                if flood.poll() is not None:
                    raise BenchError(f"the flood ended by itself, with {flood.returncode}")
                return run
            finally:
                flood.terminate()
                flood.wait()

        floods = {"weft": partial(overloaded, "one"), "elsewhere": partial(overloaded, "other")}
        runs = bench.turns({"calm": calm, **floods}, ROUNDS_FOR_P99)

    def change_of(name: str) -> float:
        flooded, calm_ = ([run["p99_us"] for run in runs[which]] for which in (name, "calm"))
        return (middle(flooded) / middle(calm_) - 1) * 100

    change, elsewhere = change_of("weft"), change_of("elsewhere")
    what = f"{FLOOD_PER_S:,} requests a second that nobody takes: change of the p99 of other round trips"
    return [
        Row(what, "%", {"weft": change}, "< 20 %", change < 20),
        Row("  the same requests to another node on the same core", "%", {"weft": elsewhere}),
    ]


def middle(figures: list[float]) -> float:
    """Mean of the middle half. The p99 of a short run is a matter of its twenty slowest trips: the median of pairs of
    such runs wandered from 4 to 21 %.
    """
    quarter = len(figures) // 4
    return statistics.mean(sorted(figures)[quarter : len(figures) - quarter])


# two remotes, one twice as fast


def split(nodes: Fabric) -> Run:
    """How many of the messages of one queue each of two services does, one of which is twice as fast."""
    add(nodes, "gateway")
    work = nodes.channel("gateway")
    work.queue_declare("work", durable=True)
    for name in ("fast", "slow"):
        add(nodes, name, link("up", nodes.url("gateway")) + REMOTE.format(link="up", credit=2, backlog_max=1))
        nodes.channel(name).queue_declare("work", durable=True)
        nodes.until_flowing(name)
    done = asyncio.run(_serve(nodes, {"fast": FAST_S, "slow": SLOW_S}))
    return {"fast": done["fast"], "slow": done["slow"]}


async def _serve(nodes: Fabric, work_s: dict[str, float]) -> Counter[str]:
    done: Counter[str] = Counter()
    ended = asyncio.Event()

    async def service(name: str) -> None:
        async with weft.connect(nodes.url(name)) as client:
            async for request in client.receive("work", accept="explicit", credit=1):
                await asyncio.sleep(work_s[name])
                request.accept()
                done[name] += 1
                if done.total() == SHARED:
                    ended.set()

    services = [asyncio.create_task(service(name)) for name in work_s]
    async with weft.connect(nodes.url("gateway")) as client:
        await client.send_many("work", [b"x" * 1024] * SHARED)
    try:
        await asyncio.wait_for(ended.wait(), WAIT_S)
    except TimeoutError:
        raise BenchError(f"only {done.total()} of {SHARED} messages were done") from None
    finally:
        for task in services:
            task.cancel()
        await asyncio.gather(*services, return_exceptions=True)
    return done


def _split_rows(run: Run) -> list[Row]:
    share = run["fast"] / run["slow"]
    what = "two remotes drain one queue, one is twice as fast: its messages for each of the other's"
    return [Row(what, "×", {"weft": share}, "2, within 10 %", abs(share - 2) <= 0.2)]


# a partition dies


def death(nodes: Fabric) -> Run:
    """Messages per second that one partition draws from a gateway while both nodes of another are dead and messages for
    them pile up there, for each of those it draws while they live.
    """
    add(nodes, "gateway")
    gateway = nodes.channel("gateway")
    for name, queue in PARTITIONS.items():
        gateway.queue_declare(queue)
        add(nodes, name, link("up", nodes.url("gateway")) + DRAIN.format(queue=queue))
        nodes.channel(name).queue_declare(queue, durable=True)
        nodes.until_flowing(name)
    ways = [nodes.nodes["gateway"], nodes.nodes["payments"]]

    def per_s() -> float:
        began = time.monotonic()
        flow(ways, QUEUE, DRAWN)
        return DRAWN / (time.monotonic() - began)

    ratios: list[float] = []
    for _ in range(ROUNDS_OF_DEATH):
        alive = per_s()
        for name in DYING:
            nodes.kill(name)
        for _ in range(FULL):
            gateway.basic_publish("", PARTITIONS[DYING[0]], b"x" * 1024)
        ratios.append(per_s() / alive)
        for name in DYING:
            nodes.restart(name)
            nodes.until_flowing(name)
    return {"kept": statistics.median(ratios) * 100}


def _death_rows(run: Run) -> list[Row]:
    what = "both nodes of a partition are killed: rate of another's messages, of what it was before"
    return [Row(what, "%", {"weft": run["kept"]}, "≥ 90 %", run["kept"] >= 90)]


# bindings


def bindings(nodes: Fabric) -> Run:
    """From a binding at one node to the first message published at another, and ten thousand bindings."""
    add(nodes, "source")
    add(nodes, "goal", link("up", nodes.url("source")) + PULL.format(link="up", exchange=REPLIES))
    nodes.until_flowing("goal")
    source, goal = nodes.channel("source"), nodes.channel("goal")
    goal.queue_declare("mine")
    seen: dict[str, float] = {}
    goal.basic_consume("mine", lambda _c, method, _p, _b: seen.setdefault(method.routing_key, time.monotonic()), True)

    def first_message(key: str, bind: Callable[[], object]) -> float:
        began = time.monotonic()
        bind()
        pump(goal, lambda: key in seen or source.basic_publish(REPLIES, key, b"x"), f"the binding of {key}", 0.001)
        return seen[key] - began

    probes = [f"probe.{number}" for number in range(PROBES)]
    waits = [first_message(key, lambda key=key: goal.queue_bind("mine", REPLIES, key)) for key in probes]
    keys = [f"many.{number}" for number in range(BINDINGS)]
    all_s = first_message(keys[-1], lambda: _bind(nodes.port("goal"), "mine", keys))
    for key in keys[:-1]:
        source.basic_publish(REPLIES, key, b"x")
    pump(goal, lambda: len(seen) == PROBES + BINDINGS, f"a message for each of {BINDINGS:,} bindings")
    return {"p50_ms": statistics.median(waits) * 1e3, "max_ms": max(waits) * 1e3, "all_s": all_s}


def _bind(port: int, queue: str, keys: list[str]) -> None:
    """Bind a queue by many keys at once; all are there on return."""
    with RawConnection("127.0.0.1", port) as connection:
        connection.open()
        connection.open_channel()
        binds = [spec.Queue.Bind(queue=queue, exchange=REPLIES, routing_key=key, nowait=True) for key in keys]
        connection.send(b"".join(frame.Method(1, bind).marshal() for bind in binds))
        connection.socket.settimeout(WAIT_S)
        connection.call(1, spec.Queue.Declare(queue=queue, passive=True))
        connection.expect(spec.Queue.DeclareOk)


def _binding_rows(run: Run) -> list[Row]:
    slowest, all_s = run["max_ms"], run["all_s"]
    return [
        Row("dynamic route: from a binding to its first message, p50", "ms", {"weft": run["p50_ms"]}),
        Row(f"  the slowest of {PROBES}", "ms", {"weft": slowest}, "< 100 ms", slowest < 100),
        Row(f"  {BINDINGS:,} bindings, to the last one's first message", "s", {"weft": all_s}, "< 5 s", all_s < 5),
    ]


# a gateway is killed


def takeover(nodes: Fabric) -> Run:
    """Requests written at a local node, confirmed, while the gateway that carries them is killed: how long none came,
    and how many never did. What waited in the dead gateway comes when it is started again.
    """
    for name in ("gateway-1", "gateway-2"):
        add(nodes, name)
        channel = nodes.channel(name)
        channel.queue_declare("work", durable=True)
        channel.queue_bind("work", REQUESTS, "work")
    gateways = [nodes.url(name) for name in ("gateway-1", "gateway-2")]
    drains = (link(f"up-{i}", url) + REMOTE.format(link=f"up-{i}", credit=10, backlog_max=10)
              for i, url in enumerate(gateways))  # fmt: skip
    links, routes = zip(*(part.split("[[routes]]") for part in drains), strict=True)
    add(nodes, "remote", "".join(links) + "".join(f"[[routes]]{part}" for part in routes))
    remote = nodes.channel("remote")
    remote.queue_declare("work", durable=True)
    nodes.until_flowing("remote", 2)
    add(nodes, "local", DOUBT + link("up", *gateways) + PUSH.format(link="up", exchange=REQUESTS))
    nodes.until_flowing("local")
    came: dict[int, float] = {}
    copies: Counter[int] = Counter()

    def on_message(_channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        came.setdefault(int(body), time.monotonic())
        copies[int(body)] += 1

    remote.basic_consume("work", on_message, auto_ack=True)
    stop = threading.Event()
    confirmed: list[int] = []
    writer = threading.Thread(target=_write, args=(nodes.channel("local", confirms=True), confirmed, stop))
    writer.start()
    try:
        pump(remote, lambda: len(came) > 100, "the first messages")
        last = time.monotonic() + LIVE_BEFORE_S
        pump(remote, lambda: time.monotonic() > last, "")
        nodes.kill("gateway-1")
        killed = time.monotonic()
        pump(remote, lambda: time.monotonic() > killed + LIVE_AFTER_S, "")
    finally:
        stop.set()
        writer.join()
    nodes.restart("gateway-1")
    pump(remote, lambda: len(came) >= len(confirmed), f"{len(confirmed)} confirmed messages")
    times = sorted(at for at in came.values() if at > killed - LIVE_BEFORE_S)
    gap = max(later - earlier for earlier, later in pairwise(times))
    lost, twice = len(set(confirmed) - came.keys()), copies.total() - len(copies)
    return {"gap_s": gap, "lost": lost, "confirmed": len(confirmed), "twice": twice}


def _write(channel: Any, confirmed: list[int], stop: threading.Event) -> None:
    number = 0
    while not stop.wait(LIVE_PAUSE_S):
        channel.basic_publish(REQUESTS, "work", str(number).encode(), pika.BasicProperties(delivery_mode=2))
        confirmed.append(number)
        number += 1


def _takeover_rows(run: Run) -> list[Row]:
    gap_s, lost = run["gap_s"], run["lost"]
    what = "a gateway is killed, the next takes over: longest time without a message"
    return [
        Row(what, "s", {"weft": gap_s}, "< 2 s", gap_s < 2),
        Row(f"  lost of {run['confirmed']:,.0f} confirmed", "", {"weft": lost}, "0", lost == 0),
        Row("  that came twice", "", {"weft": run["twice"]}),
    ]
