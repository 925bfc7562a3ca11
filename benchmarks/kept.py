"""What is kept: streams, taps, and messages that wait.

Owns the measures of messages that stay at the node for a while: on disk, in a stream, or in a long queue. Brokers and
programs come in through `Bench`, rows go out. It must never judge a rate alone: each stands beside the rate of
transient messages through a queue of the same node, taken just before. Targets: README.md of this folder.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from bench import Bench, Row, Run, Runs, medians, row
from brokers import Broker

import peers

SIZE = 1024
QUEUE = "waiting"
GROWTH_MB_MAX = 32
GROWTH_MB_MAX_MANY = 64
"""For more than `MANY` messages."""
MANY = 1_000_000
RESTART_S_MAX = 2.0
RECORD = SIZE + 128
"""A message of a stream on disk, with what the journal writes around it."""
STORED = 500_000
"""Messages that the floor under storing is taken with."""
TRIPS = 5_000
"""Round trips with and without a tap."""
STEADY_PER_S = 50_000
"""Messages of a flow that leaves the machine some room, with and without a tap."""
TAKEOVER_S_MAX = 2.0


def streams(bench: Bench, quick: bool) -> list[Row]:
    """Appending to a stream, and reading it back, beside transient messages through a queue of the same node."""
    count = 200_000 if quick else 1_000_000
    options = {"count": count, "size": SIZE, "fast": 1, "prefetch": 10_000, "ack_every": 1000}

    def run() -> Run:
        with bench.pool.fresh("weft") as broker:
            flow = bench.load("load091", "thr", broker, options)
            kept = bench.load("load091", "stream", broker, {**options, "readers": 3})
            return {**kept, "queue_per_s": flow["per_s"], "queue_cpu_us": flow["broker_cpu_us"]}

    # The most that a reader can see here: who is at it cannot be told from a faster broker.
    bare = partial(bench.load, "load091", "stream", None, {**options, "readers": 3, "bare": 1})
    with tempfile.TemporaryDirectory(prefix="bench-fetch-") as folder:
        # What was appended went past the page cache: readers get it from the disk, at the disk's pace.
        disk: dict[str, int | str] = {"count": count, "size": RECORD, "dir": folder}
        both = bench.turns({"weft": run, "bare": bare, "disk": partial(bench.load, "load091", "fetch", None, disk)})
    fetched = {"bare": [{"first_read_per_s": one["per_s"]} for one in both.pop("disk")]}
    runs = {"weft": both["weft"]}
    keys = ("queue_per_s", "appended_per_s", "first_read_per_s", "later_read_per_s")
    queue, appended, first, later = (medians(runs, key)["weft"] for key in keys)
    target, target_read = "≥ 80 % of the queue's rate", "≥ 2 × 80 % of the queue's rate"
    return [
        row("transient messages through a queue", "/s", runs, "queue_per_s"),
        row("  CPU per message", "µs", runs, "queue_cpu_us"),
        row("appended to a stream", "/s", runs, "appended_per_s", target=target, met=appended >= 0.8 * queue),
        row("  CPU per message", "µs", runs, "append_cpu_us"),
        row("read back, alone, the first: from the disk, beside reading as many bytes", "/s", {**runs, **fetched},
            "first_read_per_s", target=target_read, met=first >= 1.6 * queue),
        row("read back, alone, each of the others", "/s", both, "later_read_per_s", target=target_read,
            met=later >= 1.6 * queue),
        row("  CPU per message", "µs", both, "read_cpu_us"),
        row("  CPU per message of the reader", "µs", both, "reader_cpu_us"),
        *_taps(bench),
        *_tapped_steadily(bench),
        _tapped_trips(bench),
    ]  # fmt: skip


def _taps(bench: Bench) -> list[Row]:
    """The same flow with and without a tap on its queue: durable and confirmed, and transient."""

    def run(mode: str, tap: int) -> Run:
        fast = {"fast": 1} if mode == "thr" else {}
        broker = bench.pool.shared("weft")
        return bench.load("load091", mode, broker, {"secs": bench.secs, "size": SIZE, "tap": tap, **fast})

    runners = {f"{mode} {tap}": partial(run, mode, tap) for mode in ("reliable", "thr") for tap in (0, 1)}
    with tempfile.TemporaryDirectory(prefix="bench-store-") as folder:
        # The least that it takes to store a message: copy it once and write it.
        options: dict[str, int | str] = {"count": STORED, "size": SIZE, "dir": folder}
        runs = bench.turns({**runners, "floor": partial(bench.load, "load091", "store", None, options)})
    rows = []
    target = "< 5 %"
    for mode, what in (("reliable", "durable and confirmed"), ("thr", "transient: only the copy is stored")):
        pairs = list(zip(runs[f"{mode} 1"], runs[f"{mode} 0"], strict=True))
        # Each beside its neighbour in time: the disk drifts by more than what is looked for.
        cost = (statistics.median(one["broker_cpu_us"] / other["broker_cpu_us"] for one, other in pairs) - 1) * 100
        slower = (1 - statistics.median(one["per_s"] / other["per_s"] for one, other in pairs)) * 100
        rows += [
            Row(f"what a tap adds to CPU per message, {what}", "%", {"weft": cost}, target, cost < 5),
            Row("  and takes from the rate", "%", {"weft": slower}, target, slower < 5),
        ]
    stored: Runs = {"bare": runs.pop("floor")}
    cpu = medians(runs, "broker_cpu_us")
    floor = row("  CPU that it adds, beside copying and writing as many bytes", "µs", stored, "client_cpu_us")
    floor.figures["weft"] = cpu["thr 1"] - cpu["thr 0"]
    return [
        *rows,
        floor,
        row("    of that, copying them into memory that a disk has just read", "µs", stored, "copy_us"),
        row("    the same copies into other memory", "µs", stored, "copy_alone_us"),
    ]


def _tapped_steadily(bench: Bench) -> list[Row]:
    """What a tap does to transient messages that come at a steady rate."""

    def run(tap: int) -> Run:
        options = {"secs": bench.secs, "size": SIZE, "rate": STEADY_PER_S, "tap": tap}
        return bench.load("load091", "paced", bench.pool.shared("weft"), options)

    runs = bench.turns({str(tap): partial(run, tap) for tap in (0, 1)})
    rate, age = medians(runs, "per_s"), medians(runs, "p50_us")
    slower, later = (1 - rate["1"] / rate["0"]) * 100, (age["1"] / age["0"] - 1) * 100
    what = f"what a tap takes from the rate of {STEADY_PER_S:,} transient messages a second"
    return [
        Row(what, "%", {"weft": slower}, "< 5 %", slower < 5),
        Row("  and adds to their age, p50", "%", {"weft": later}),
    ]


def _tapped_trips(bench: Bench) -> Row:
    """What a tap adds to a round trip."""

    def run(tap: int) -> Run:
        broker = bench.pool.shared("weft", one_core=True)
        return bench.load("load091", "rtt", broker, {"count": TRIPS, "size": SIZE, "tap": tap}, one_core=True)

    trips = medians(bench.turns({str(tap): partial(run, tap) for tap in (0, 1)}), "p50_us")
    later = (trips["1"] / trips["0"] - 1) * 100
    return Row("what a tap adds to a round trip, p50", "%", {"weft": later}, "< 5 %", later < 5)


def backlog(bench: Bench, quick: bool) -> list[Row]:
    """Messages that wait: beside RabbitMQ, and many."""

    def beside(name: str) -> Run:
        with bench.pool.fresh(name) as broker:
            return bench.load("load091", "backlog", broker, {"count": 200_000, "size": SIZE, "fast": 1})

    runs = bench.turns({name: partial(beside, name) for name in bench.peers("rabbitmq")})
    return [
        row("memory per waiting message of 1 KiB, 200,000 waiting", "B", runs, "bytes_per_message"),
        row("  drained per second afterwards", "/s", runs, "drain_per_s"),
        *_many(bench, 100_000 if quick else bench.waiting),
    ]


def _many(bench: Bench, count: int) -> list[Row]:
    options = {"count": count, "size": SIZE, "fast": 1}

    def waiting() -> Run:
        with bench.pool.fresh("weft") as broker:
            flow = bench.load("load091", "thr", broker, {**options, "count": min(count, MANY)})
            kept = bench.load("load091", "backlog", broker, options)
            return {**kept, "queue_per_s": flow["per_s"], "growth_mb": kept["growth_kb"] / 1000}

    waits = bench.turns({"weft": waiting})
    restarts = bench.turns({"weft": partial(_restart, bench, options)})
    takeovers = bench.turns({"weft": partial(_take_over, bench, options)})
    takeover_s = medians(takeovers, "serving_s")["weft"]
    growth, drained, live = (medians(waits, key)["weft"] for key in ("growth_mb", "drain_per_s", "queue_per_s"))
    restart_s = medians(restarts, "serving_s")["weft"]
    limit = GROWTH_MB_MAX if count <= MANY else GROWTH_MB_MAX_MANY
    wrong = medians(waits, "out_of_order")["weft"] + medians(restarts, "out_of_order")["weft"]
    return [
        row(f"memory growth with {count:,} × 1 KiB waiting", "MB", waits, "growth_mb", target=f"≤ {limit} MB",
            met=growth <= limit),
        row("  drained per second", "/s", waits, "drain_per_s", target="≥ 70 % of the live rate",
            met=drained >= 0.7 * live),
        row("  transient messages through a queue meanwhile", "/s", waits, "queue_per_s"),
        row(f"killed with {count:,} durable ones waiting: first message after the start", "s", restarts, "serving_s",
            target=f"< {RESTART_S_MAX:.0f} s", met=restart_s < RESTART_S_MAX),
        row("  drained per second", "/s", restarts, "per_s"),
        Row("  messages out of order", "", {"weft": wrong}, "0", wrong == 0),
        row("killed while another node stands by: first message from that one", "s", takeovers, "serving_s",
            target=f"< {TAKEOVER_S_MAX:.0f} s", met=takeover_s < TAKEOVER_S_MAX),
    ]  # fmt: skip


def _restart(bench: Bench, options: dict[str, int]) -> Run:
    """Kill a node with messages that wait, start it again, and take them."""
    with tempfile.TemporaryDirectory(prefix="bench-restart-", ignore_cleanup_errors=True) as folder:
        peer = peers.start_weft(Path(folder))
        try:
            broker = Broker("weft", peer.port, peer.pid, 0.0)
            bench.load("load091", "backlog", broker, {**options, "queue": QUEUE, "durable": 1, "leave": 1})
            peer.kill()
            started_s = time.monotonic()
            peer = peers.start_weft(Path(folder))
            ready_s = time.monotonic() - started_s
            broker = Broker("weft", peer.port, peer.pid, ready_s)
            drained = bench.load("load091", "drain", broker, {"queue": QUEUE, "size": SIZE, "fast": 1, "durable": 1})
            return {**drained, "serving_s": ready_s + drained["first_ms"] / 1000}
        finally:
            peer.stop()


def _take_over(bench: Bench, options: dict[str, int]) -> Run:
    """Kill a node with messages that wait while another one stands by, and take the first message from that one."""
    with tempfile.TemporaryDirectory(prefix="bench-standby-", ignore_cleanup_errors=True) as folder:
        first = peers.start_weft(Path(folder))
        started = [first]
        try:
            broker = Broker("weft", first.port, first.pid, 0.0)
            bench.load("load091", "backlog", broker, {**options, "queue": QUEUE, "durable": 1, "leave": 1})
            second = peers.start_standby(Path(folder))
            started.append(second)
            first.kill()
            killed_s = time.monotonic()
            second.wait_listening()
            ready_s = time.monotonic() - killed_s
            broker = Broker("weft", second.port, second.pid, ready_s)
            drained = bench.load("load091", "drain", broker, {"queue": QUEUE, "size": SIZE, "fast": 1, "durable": 1})
            return {**drained, "serving_s": ready_s + drained["first_ms"] / 1000}
        finally:
            for peer in started:
                peer.kill()
