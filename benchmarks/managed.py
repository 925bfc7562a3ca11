"""What management costs: statistics, events, and pages of many objects.

Owns the measures of `$management` and its HTTP API: the same load with and without statistics, with and without
somebody who listens, and messages at a steady rate while pages of thousands of queues and connections are asked for,
beside RabbitMQ. Brokers and programs come in through `Bench`, rows go out. It must not be read as a benchmark of HTTP:
one client asks, one request after another. Targets: README.md of this folder.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import statistics as figures
import subprocess
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import Bench, BenchError, Row, Run, Runs, medians
from brokers import Broker

import peers

ROOT = Path(__file__).resolve().parent.parent
LOAD = {"size": 100, "fast": 1}
QUEUES_BUSY = 1_000
QUEUES, QUEUES_QUICK = 50_000, 5_000
CONNECTIONS, CONNECTIONS_QUICK = 5_000, 500
PAGE_MS_MAX = 200
SIZES = (100, 1_024)
ROUNDS, ROUND_S = 16, 1
"""Of fresh nodes with and without statistics: where the system puts a process in memory is worth some percent. So many
processes tell more than many runs of a few."""
RATE = 1_000
PAUSE_S = 0.01
"""Between two requests, so that neither core is full and the machine's own scheduling is not what is measured."""
HEADERS = {"Authorization": "Basic " + b64encode(b"guest:guest").decode(), "Content-Type": "application/json"}
FIRST_QUEUES = "/api/queues?page=1&page_size=100"
BESIDE = "a program beside the broker computes for as long as the slowest page takes, p99 of their age"
"""What two cores that broker and clients share cost by themselves."""
PAGES = {
    "first 100 of {queues:,} queues": FIRST_QUEUES,
    "  by messages": FIRST_QUEUES + "&sort=messages&sort_reverse=true",
    "  by regular expression": FIRST_QUEUES + "&name=queue-.*4%24&use_regex=true",
    "first 100 of {connections:,} connections": "/api/connections?page=1&page_size=100",
    "first 100 of {connections:,} channels": "/api/channels?page=1&page_size=100",
    "overview of all of them": "/api/overview",
    "metrics of all of them": "/metrics",
}


def _added(what: str, pairs: Runs, target: float) -> Row:
    """How much CPU per message `with` takes beyond `without`."""
    cpu = medians(pairs, "broker_cpu_us")
    cost = (cpu["with"] / cpu["without"] - 1) * 100
    return Row(what, "%", {"weft": cost}, f"≤ {target:g} %", cost <= target)


def _warm(bench: Bench, runners: dict[str, Callable[[], Run]]) -> Runs:
    """Turns, after one run of each that does not count: a node's first is some percent cheaper than all later ones."""
    for runner in runners.values():
        runner()
    return bench.turns(runners)


# statistics


def statistics(bench: Bench, quick: bool) -> list[Row]:
    """The usual kernel beside one that counts nothing (cargo feature `without-statistics`), and that beside itself."""
    added: dict[tuple[str, int], list[float]] = {(side, size): [] for size in SIZES for side in ("with", "again")}
    once = replace(bench, repetitions=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = {**os.environ, "PYTHONPATH": str(_bare(bench, folder))}
        for number in range(2 if quick else ROUNDS):
            for key, cost in _round(once, folder / str(number), bare, number).items():
                added[key].append(cost)
    bench.runs = once.runs
    counted = _counted(bench) if shutil.which("valgrind") else {}
    rows = []
    for size in SIZES:
        what = f"what statistics add to CPU per message of {size:,} B"
        rows += [
            _middle(what, added["with", size], 3),
            _middle("  a node without them beside another", added["again", size]),
        ]
        if size in counted:
            rows.append(Row("  to the instructions of the kernel, counted", "%", {"weft": counted[size]}))
    return rows


def _counted(bench: Bench) -> dict[int, float]:
    """Percent that statistics add to the kernel's instructions for a message: the same in every run, by size."""
    each: dict[bool, dict[int, float]] = {}
    for bare in (True, False):
        program = _build("weft-sim", bare=bare, bench=bench) / "load"
        each[bare] = {size: _instructions(program, size) for size in SIZES}
    return {size: (each[False][size] / each[True][size] - 1) * 100 for size in SIZES}


def _instructions(program: Path, size: int) -> float:
    """For one message more: what a longer run of the engine has beyond a shorter one."""
    counts = []
    for calls in (100, 300):
        command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", str(program)]
        done = subprocess.run([*command, str(size), str(calls)], capture_output=True, text=True, check=False)
        found = re.search(r"I +refs: +([\d,]+)", done.stderr)
        if found is None:
            raise BenchError(f"{' '.join(command)}: {done.stderr[-500:]}")
        counts.append((int(found[1].replace(",", "")), int(done.stdout)))
    (few, messages_few), (many, messages_many) = counts
    return (many - few) / (messages_many - messages_few)


def _round(bench: Bench, folder: Path, bare: dict[str, str], number: int) -> dict[tuple[str, int], float]:
    """Of three fresh nodes, by size of messages: percent that the one with statistics takes beyond the mean of the two
    without, and one of these beyond the other.
    """
    sides = ["without", "with", "again"]
    sides = sides[number % 3 :] + sides[: number % 3]  # nobody is always the first
    nodes: dict[str, peers.Peer] = {}
    try:
        for side in sides:
            nodes[side] = peers.start_weft(folder / side, env=None if side == "with" else bare)
            _pressed(bench, nodes[side], SIZES[0])()  # the first does not count
        added: dict[tuple[str, int], float] = {}
        for size in SIZES:
            runs = bench.turns({side: _pressed(bench, peer, size) for side, peer in nodes.items()})
            cpu = medians(runs, "broker_cpu_us")
            added["with", size] = (2 * cpu["with"] / (cpu["without"] + cpu["again"]) - 1) * 100
            added["again", size] = (cpu["again"] / cpu["without"] - 1) * 100
        return added
    finally:
        for peer in nodes.values():
            peer.stop()


def _middle(what: str, costs: list[float], target: float | None = None) -> Row:
    """The median of the rounds, and between which values half of them lie."""
    low, cost, high = figures.quantiles(costs, n=4, method="inclusive")
    words = f"{what} ({len(costs)} rounds, half of them {low:.1f} to {high:.1f})"
    spread = {"weft": (min(costs), max(costs))}
    met = None if target is None else cost <= target
    return Row(words, "%", {"weft": cost}, "" if target is None else f"≤ {target:g} %", met, spread)


def _pressed(bench: Bench, peer: peers.Peer, size: int) -> Callable[[], Run]:
    return partial(bench.load, "load091", "thr", _broker(peer), {**LOAD, "size": size, "secs": ROUND_S})


def _bare(bench: Bench, folder: Path) -> Path:
    """A copy of the sources with a kernel that counts nothing; the usual kernel stays as it is."""
    built = _build("weft-python", bare=True, bench=bench)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(built / "lib_kernel.so", folder / "src" / "weft" / "_kernel.abi3.so")
    return folder / "src"


def _build(package: str, *, bare: bool, bench: Bench) -> Path:
    """The folder with what was built, without statistics if it is to be bare."""
    target = ROOT / "target" / ("without-statistics" if bare else "with-statistics")
    command = ["cargo", "build", "--release", "--quiet", "-p", package, "--target-dir", str(target)]
    features = ["--features", "weft-engine/without-statistics"] if bare else []
    bench.say(f"building {package} {'without' if bare else 'with'} statistics")
    built = subprocess.run([*command, *features], cwd=ROOT, capture_output=True, text=True, check=False)
    if built.returncode:
        raise BenchError(f"{package} cannot be built:\n{built.stderr[-2000:]}")
    return target / "release"


def _broker(peer: peers.Peer) -> Broker:
    return Broker(peer.name, peer.port, peer.pid, 0.0)


# events


def events(bench: Bench, quick: bool) -> list[Row]:
    """A thousand queues that are all busy, with statistics every second, heard and unheard in turns."""
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "weft.toml"
        config.write_text("[events]\nstatistics_s = 1\n")
        peer = peers.start_weft(Path(name) / "data", "--config", str(config))
        options = {**LOAD, "secs": bench.secs, "queues": QUEUES_BUSY}
        unheard = partial(bench.load, "load091", "thr", _broker(peer), options)

        def heard() -> Run:
            listener = _Listener(bench, peer)
            try:
                run = unheard()
            finally:
                count = listener.end()
            if count < QUEUES_BUSY:
                raise BenchError(f"only {count} events were heard")
            return {**run, "heard_per_s": count / bench.secs}

        try:
            runs = _warm(bench, {"without": unheard, "with": heard})
        finally:
            peer.stop()
    told = figures.median(run["heard_per_s"] for run in runs["with"])
    rate = medians(runs, "per_s")
    slower = (1 - rate["with"] / rate["without"]) * 100
    return [
        _added(f"what events and statistics of {QUEUES_BUSY:,} busy queues add to CPU per message", runs, 2),
        Row("  and take from the rate", "%", {"weft": slower}, "≤ 2 %", slower <= 2),
        Row("  events heard meanwhile", "/s", {"weft": told}),
    ]


class _Listener:
    """Takes every event, as a process that costs little; the number it took is known in the end."""

    def __init__(self, bench: Bench, peer: peers.Peer) -> None:
        command = [str(bench.programs / "load091"), "listen", *_broker(peer).options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "listening\n":
            raise BenchError(f"{' '.join(command)} failed")

    def end(self) -> int:
        text, _ = self._process.communicate()
        return int(json.loads(text)["received"])


# pages


def pages(bench: Bench, quick: bool) -> list[Row]:
    """Pages over HTTP while messages flow at a steady rate; their age counts from when each was due."""
    queues, connections = (QUEUES_QUICK, CONNECTIONS_QUICK) if quick else (QUEUES, CONNECTIONS)
    found: dict[str, dict[str, Run]] = {}
    for name in bench.peers("rabbitmq"):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            port = peers.free_port()
            peer = _start(name, Path(folder), port)
            try:
                found[name] = _asked(bench, peer, port, queues, connections)
            finally:
                peer.stop()
    rows = []
    for what in found["weft"]:
        words = what.format(queues=queues, connections=connections)
        asked = {name: of_one[what] for name, of_one in found.items() if what in of_one}
        answers, ages = ({name: run[key] for name, run in asked.items()} for key in ("answer_ms", "p99_ms"))
        if what in PAGES:
            target = f"< {PAGE_MS_MAX} ms" if not what.startswith(" ") else ""
            met = answers["weft"] < PAGE_MS_MAX if target else None
            rows.append(Row(words, "ms", answers, target, met))
            words = "  messages meanwhile, p99 of their age"
        rows.append(Row(words, "ms", ages))
    return rows


def _start(name: str, folder: Path, port: int) -> peers.Peer:
    """A broker with its HTTP API on this port."""
    if name == "weft":
        config = folder / "weft.toml"
        config.write_text(f'[http]\naddress = "{peers.HOST}:{port}"\n')
        return peers.start_weft(folder / "data", "--config", str(config))
    advanced = f'[{{rabbitmq_management,[{{listener,[{{port,{port}}},{{ip,"{peers.HOST}"}}]}}]}}].'
    return peers.start_rabbitmq(folder, ("rabbitmq_management",), advanced)


def _asked(bench: Bench, peer: peers.Peer, port: int, queues: int, connections: int) -> dict[str, Run]:
    """Every page of one broker: what its answer takes, and how old messages get meanwhile."""
    bench.say(f"{peer.name}: {queues} queues, {connections} connections")
    _declare(port, queues)
    idle = [_connect(peer.port) for _ in range(connections)]
    found = {"messages at a steady rate, nobody asks, p99 of their age": _meanwhile(bench, peer, None)}
    for what, path in PAGES.items():
        if path == "/metrics" and peer.name != "weft":
            continue  # by a plug-in of its own, on another port
        bench.say(f"{peer.name}: {path}")
        _ask(port, "GET", path)
        found[what] = _meanwhile(bench, peer, partial(_ask, port, "GET", path))
    longest_ms = max(run["answer_ms"] for run in found.values())
    found[BESIDE] = _meanwhile(bench, peer, partial(_compute, longest_ms))
    for one in idle:
        one.close()
    return found


def _meanwhile(bench: Bench, peer: peers.Peer, ask: Callable[[], float] | None) -> Run:
    options = [f"port={peer.port}", f"rate={RATE}", f"secs={bench.secs}", "size=100"]
    command = [str(bench.programs / "load091"), "paced", *options]
    beside = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    times = []
    while ask is not None and beside.poll() is None:
        times.append(ask())
        time.sleep(PAUSE_S)
    text, _ = beside.communicate()
    if beside.returncode:
        raise BenchError(f"{' '.join(command)} failed")
    return {"answer_ms": figures.median(times) if times else 0.0, "p99_ms": json.loads(text)["p99_us"] / 1000}


def _compute(for_ms: float) -> float:
    """What a page costs the machine, and the node nothing."""
    end = time.perf_counter() + for_ms / 1000
    while time.perf_counter() < end:
        pass
    return for_ms


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> float:
    """Milliseconds of one request."""
    connection = http.client.HTTPConnection(peers.HOST, port, timeout=3600)
    begin = time.perf_counter()
    connection.request(method, path, body, HEADERS)
    answer = connection.getresponse()
    data = answer.read()
    took = time.perf_counter() - begin
    connection.close()
    if answer.status >= 300:
        raise BenchError(f"{method} {path}: {answer.status} {data[:200]!r}")
    return took * 1000


def _declare(port: int, count: int) -> None:
    names = [f"queue-{number:05}" for number in range(count)]
    for start in range(0, count, 5_000):
        rows = [
            {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
            for name in names[start : start + 5_000]
        ]
        _ask(port, "POST", "/api/definitions", json.dumps({"queues": rows}).encode())


def _connect(port: int) -> socket.socket:
    """An open connection with one channel, as bytes: no library, so that thousands cost nothing here."""
    one = socket.create_connection((peers.HOST, port))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.sendall(b"AMQP\0\0\x09\x01")
    _frame(one)
    start_ok = b"\0\x0a\0\x0b" + _long(b"") + b"\x05PLAIN" + _long(b"\0guest\0guest") + b"\x05en_US"
    _send(one, 0, start_ok)
    tune = _frame(one)
    _send(one, 0, b"\0\x0a\0\x1f" + tune[4:10] + b"\0\0")
    _send(one, 0, b"\0\x0a\0\x28\x01/\0\0")
    _frame(one)
    _send(one, 1, b"\0\x14\0\x0a\0")
    _frame(one)
    return one


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _send(one: socket.socket, channel: int, method: bytes) -> None:
    one.sendall(b"\x01" + channel.to_bytes(2, "big") + _long(method) + b"\xce")


def _frame(one: socket.socket) -> bytes:
    """The payload of the next frame."""
    head = one.recv(7, socket.MSG_WAITALL)
    return one.recv(int.from_bytes(head[3:], "big") + 1, socket.MSG_WAITALL)[:-1]
