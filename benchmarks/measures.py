"""What is measured, and what it must reach.

Owns the list of measures: each runs loads through `Bench` and returns rows with a target and a verdict. Brokers and
programs come in, rows go out; nothing is printed here. A measure must treat every broker alike: same program, same
options, same order. Targets are those the project set itself at the start (README.md of this folder repeats them); a
row without one is there for comparison.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from answers import answers
from bench import RUN_TIMEOUT_S, Bench, BenchError, Row, Run, Runs, all_of, at_most, medians, row
from clients import clients
from conversations import conversations
from instances import instances
from kept import backlog, streams
from managed import events, pages, statistics
from network import network
from timers import timers

import peers

SIZES = (1, 100, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
TRIPS = 3000
TRIPS_FOR_P99 = 5000
IDLE_CONNECTIONS = 5000
SETTLE_S = 1.0


@dataclass(frozen=True)
class Measure:
    name: str
    run: Callable[[Bench, bool], list[Row]]
    quick: bool
    help: str


def cpu(bench: Bench, quick: bool) -> list[Row]:
    old, new = _throughput(bench, {"fast": 1}, relay_batch=65536)
    old_cpu, new_cpu = medians(old, "broker_cpu_us"), medians(new, "broker_cpu_us")
    met_old = all_of(at_most(old_cpu, 1 / 8, "rabbitmq"), old_cpu["weft"] < 3)
    met_new = new_cpu["weft"] <= 1.3 * old_cpu["weft"]
    target_old, target_new = "≤ 1/8 of RabbitMQ, < 3 µs", f"≤ 1.3 × weft's 0-9-1 ({1.3 * old_cpu['weft']:.2f})"
    return [
        row("CPU per 1 KiB message, AMQP 0-9-1, no acks", "µs", old, "broker_cpu_us", target=target_old, met=met_old),
        row("  messages per second meanwhile", "/s", old, "per_s"),
        row("CPU per 1 KiB message, AMQP 1.0, settled", "µs", new, "broker_cpu_us", target=target_new, met=met_new),
        row("  messages per second meanwhile", "/s", new, "per_s"),
    ]


def cpu_library(bench: Bench, quick: bool) -> list[Row]:
    old, new = _throughput(bench, {}, relay_batch=0)
    met = at_most(medians(new, "broker_cpu_us"), 1 / 4, "proton")
    return [
        row("the same, each message a write of librabbitmq", "µs", old, "broker_cpu_us"),
        row("  messages per second meanwhile", "/s", old, "per_s"),
        row(
            "the same, sent by Proton's client", "µs", new, "broker_cpu_us", target="≤ 1/4 of Proton's broker", met=met
        ),
        row("  messages per second meanwhile", "/s", new, "per_s"),
    ]


def _throughput(bench: Bench, options: dict[str, int], *, relay_batch: int) -> tuple[Runs, Runs]:
    """One publisher, one consumer: runs over AMQP 0-9-1 and a plain relay, and runs over AMQP 1.0, by broker."""
    common = {"size": 1024, "secs": bench.secs}
    runners: dict[str, Callable[[], Run]] = {}
    for program, names in (("load091", bench.peers("rabbitmq")), ("load10", bench.peers("rabbitmq", "proton"))):
        for name in names:
            broker = bench.pool.shared(name)
            runners[f"{program} {name}"] = partial(bench.load, program, "thr", broker, {**common, **options})
    runners["load091 relay"] = partial(bench.load, "relay", "thr", None, {**common, "batch": relay_batch})
    runs = bench.turns(runners)

    def of(program: str) -> Runs:
        return {name.split()[1]: of_one for name, of_one in runs.items() if name.startswith(program)}

    return of("load091"), of("load10")


def round_trips(bench: Bench, quick: bool) -> list[Row]:
    rows = []
    for size in (1024,) if quick else SIZES:
        trips = partial(bench.load, mode="rtt", options={"size": size, "count": TRIPS}, one_core=True)
        runners = {
            name: partial(trips, "load091", broker=bench.pool.shared(name, one_core=True))
            for name in bench.peers("rabbitmq")
        }
        runs = bench.turns({**runners, "relay": partial(trips, "relay", broker=None)})
        p50, p99 = medians(runs, "p50_us"), medians(runs, "p99_us")
        for name, value in p50.items():
            bench.round_trips.setdefault(name, {})[size] = value, p99[name]
        if size == 1024:
            what = "round trip of 1 KiB through two queues, all on one core, p50"
            rows.append(row(what, "µs", runs, "p50_us", target="≤ 0.6 × RabbitMQ", met=at_most(p50, 0.6, "rabbitmq")))
            rows.append(row("  the slowest hundredth, p99", "µs", runs, "p99_us"))
    return rows


def round_trips_new(bench: Bench, quick: bool) -> list[Row]:
    def trips(name: str) -> Callable[[], Run]:
        broker = bench.pool.shared(name, one_core=True)
        return partial(bench.load, "load10", "rtt", broker, {"size": 1024, "count": TRIPS}, one_core=True)

    runs = bench.turns({name: trips(name) for name in bench.peers("rabbitmq", "proton")})
    return [row("the same over AMQP 1.0, settled, p50", "µs", runs, "p50_us")]


def churn(bench: Bench, quick: bool) -> list[Row]:
    options = {"secs": bench.secs, "workers": 4}
    runners = {
        name: partial(bench.load, "load091", "churn", bench.pool.shared(name), options)
        for name in bench.peers("rabbitmq")
    }
    # The most that the client can make of this machine: who is at it cannot be told from a faster broker.
    runners["bare"] = partial(bench.load, "load091", "churn", None, {**options, "bare": 1})
    runs = bench.turns(runners)
    rate = medians(runs, "conns_per_s")
    met = rate["weft"] >= 8 * rate["rabbitmq"] if "rabbitmq" in rate else None
    what = "connect, open, publish one, close; 4 workers"
    return [
        row(what, "/s", runs, "conns_per_s", target="≥ 8 × RabbitMQ", met=met),
        row("  CPU of the broker for each", "µs", runs, "broker_cpu_us"),
    ]


def connections(bench: Bench, quick: bool) -> list[Row]:
    def run(name: str) -> Run:
        with bench.pool.fresh(name, one_core=True) as broker:
            options = {"conns": IDLE_CONNECTIONS, "trips": TRIPS_FOR_P99, "secs": 60}
            result = bench.load("load091", "conns", broker, options, one_core=True)
        return {**result, "p99_percent": (result["during_p99_us"] / result["before_p99_us"] - 1) * 100}

    runs = bench.turns({name: partial(run, name) for name in bench.peers("rabbitmq")})
    memory, change = medians(runs, "kb_per_conn"), medians(runs, "p99_percent")["weft"]
    met = at_most(memory, 1 / 5, "rabbitmq")
    what = f"memory per idle connection, {IDLE_CONNECTIONS:,} open"
    p99 = "  change of the round trip's p99 with them open"
    return [
        row(what, "kB", runs, "kb_per_conn", target="≤ 1/5 of RabbitMQ", met=met),
        row(p99, "%", runs, "p99_percent", target="within ±20 %", met=abs(change) <= 20),
    ]


def idle(bench: Bench, quick: bool) -> list[Row]:
    def run(name: str) -> Run:
        with bench.pool.fresh(name) as broker:
            bench.say(f"starting {name}")
            time.sleep(SETTLE_S)
            return {"ready_s": broker.ready_s, "resident_mb": broker.resident_mb()}

    runs = bench.turns({name: partial(run, name) for name in bench.peers("rabbitmq")})
    memory, ready = medians(runs, "resident_mb")["weft"], medians(runs, "ready_s")["weft"]
    return [
        row("memory of an idle node", "MB", runs, "resident_mb", target="≤ 60 MB", met=memory <= 60),
        row("from start to ready", "s", runs, "ready_s", target="< 1 s", met=ready < 1),
    ]


def one_core(bench: Bench, quick: bool) -> list[Row]:
    def run(name: str) -> Callable[[], Run]:
        broker = bench.pool.shared(name, one_core=True)
        return partial(bench.load, "load091", "paced", broker, {"rate": 5000, "secs": bench.secs}, one_core=True)

    runs = bench.turns({name: run(name) for name in bench.peers("rabbitmq")})
    rate, p50 = medians(runs, "per_s")["weft"], medians(runs, "p50_us")["weft"]
    what = "one core, 5,000 messages of 1 KiB per second: age on arrival, p50"
    return [row(what, "µs", runs, "p50_us", target="≤ 1,000 µs, none late", met=p50 <= 1000 and rate >= 4990)]


def reliable(bench: Bench, quick: bool) -> list[Row]:
    """Durable messages, each confirmed once it is on disk: weft syncs, RabbitMQ's classic queue does as it does."""

    def run(program: str, name: str) -> Callable[[], Run]:
        return partial(bench.load, program, "reliable", bench.pool.shared(name), {"size": 1024, "secs": bench.secs})

    names = bench.peers("rabbitmq")
    old, new = (bench.turns({name: run(program, name) for name in names}) for program in ("load091", "load10"))
    met = at_most(medians(old, "broker_cpu_us"), 1 / 8, "rabbitmq")
    return [
        row("CPU per durable message, 0-9-1", "µs", old, "broker_cpu_us", target="≤ 1/8 of RabbitMQ's", met=met),
        row("  such messages per second", "/s", old, "per_s"),
        row("CPU per durable message, 1.0", "µs", new, "broker_cpu_us"),
    ]


def columns(bench: Bench, quick: bool) -> list[Row]:
    """A stream's messages as Arrow, beside the same rows in Parquet, on one core."""
    command = [sys.executable, str(Path(__file__).with_name("columns.py")), "--rows", "100000" if quick else "1000000"]
    bench.say("columns: " + " ".join(command[1:]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    if done.returncode:
        raise BenchError(f"columns.py: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    whole, narrow = found["all"], found["narrow"]
    return [
        Row("rows of 1 KiB as Arrow, all columns", "/s", {"weft": whole, "parquet": found["parquet_all"]},
            "≥ 1,000,000 /s", whole >= 1e6),
        Row("  time, key and size only", "/s", {"weft": narrow, "parquet": found["parquet_narrow"]},
            "≥ 5,000,000 /s", narrow >= 5e6),
        Row("rows of Arrow encoded as messages", "/s", {"weft": found["encode"]}),
    ]  # fmt: skip


def hop(bench: Bench, quick: bool) -> list[Row]:
    """Messages moved from one node to another, beside RabbitMQ's shovel and its federation."""
    options = ["--count", "50000", "--runs", "1"] if quick else ["--runs", str(bench.repetitions)]
    found: dict[str, dict[str, float]] = program(bench, "hop.py", *options)

    def figures(key: str, other: str = "shovel") -> dict[str, float]:
        ways = {"weft": "weft", "rabbitmq": other}
        return {name: found[way][key] for name, way in ways.items() if way in found}

    def rows(own: str, hop: str, what: str) -> list[Row]:
        mine, added = figures(own), figures(hop)
        ratio = added["weft"] / mine["weft"]
        met = all_of(ratio <= 1.5, at_most(added, 1 / 6, "rabbitmq"))
        target = f"≤ 1.5 × one node (here {ratio:.2f} ×), ≤ 1/6 of shovel"
        return [
            Row(f"CPU of one node per 1 KiB message, acknowledged{what}", "µs", mine),
            Row("  CPU that a hop adds, both nodes; RabbitMQ by its shovel", "µs", added, target, met),
        ]

    federated = figures("hop", "federation")
    met = at_most(federated, 1 / 6, "rabbitmq")
    return [
        *rows("own", "hop", ""),
        Row("  the same; RabbitMQ by its federation", "µs", federated, "≤ 1/6 of federation", met),
        Row("  CPU of one node while another does the same beside it", "µs", {"weft": found["weft"]["crowded"]}),
        *rows("waiting_own", "waiting_hop", ", in queues that fill up"),
    ]


READ_BESIDE = ("parquet", "kafka", "tuples", "free")
"""What reads the same rows into Spark beside weft's source; `free` is a source whose rows cost nothing."""


def spark(bench: Bench, quick: bool) -> list[Row]:
    """Streams in Spark, in processes of their own; the other figures are Spark's own files, Python tuples and Kafka."""
    runs = str(bench.repetitions)
    rows = ["--messages", "200000", "--runs", "1"] if quick else ["--runs", runs]
    found = program(bench, "spark_streams.py", *rows)
    live = program(bench, "spark_pipeline.py", *(["--starts", "1", "--probes", "20"] if quick else ["--starts", runs]))
    if "kafka" not in found:
        bench.say(f"spark: no Kafka beside it: {found['no_kafka']}")
    read = {"weft": found["full"]} | {name: found[name] for name in READ_BESIDE if name in found}
    costs = {name: found[f"{'full' if name == 'weft' else name}_cpu_us"] for name in read}
    full, narrow = found["full"], found["narrow"]
    met = full >= found["parquet"] and full >= 3 * found["tuples"] and full > found.get("kafka", 0)
    streamed, starts, steady = (
        {"weft": found[weft], "parquet": found[parquet], "free": found[free]}
        for weft, parquet, free in (
            ("stream", "stream_parquet", "stream_free"),
            ("start_weft_s", "start_parquet_s", "start_free_s"),
            ("steady_weft", "steady_parquet", "steady_free"),
        )
    )
    first, at_once, each_second = (live[name] for name in ("first_rows_s", "trigger_0_s", "trigger_1_s"))
    return [
        Row("Spark: rows of 1 KiB from a stream into noop", "/s", read, "≥ Parquet, ≥ 3 × tuples, > Kafka", met),
        Row("  CPU per row, JVM and workers", "µs", costs),
        Row("  beside the lake's own Parquet (zstd)", "/s", {"weft": full, "parquet": found["zstd"]}),
        Row("  bodies of noise", "/s", {"weft": found["noise"], "parquet": found["noise_parquet"]}),
        Row("  time, key and size only", "/s", {"weft": narrow}, "≥ 3 × all columns", narrow >= 3 * full),
        Row("  availableNow, windows with percentiles", "/s", streamed, "≥ Parquet files",
            streamed["weft"] >= streamed["parquet"]),
        Row("    of that the start of the query", "s", starts),
        Row("    and once it runs", "/s", steady),
        Row("  rows written as confirmed messages", "/s", {"weft": found["write"]}, "≥ 100,000",
            found["write"] >= 100_000),
        Row("weft pipeline run to its first batch", "s", {"weft": first}, "< 12 s", first < 12),
        Row("  message to result, trigger 0, p50", "s", {"weft": at_once}, "< 0.7 s", at_once < 0.7),
        Row("  message to result, trigger 1 s, p50", "s", {"weft": each_second}, "< 1.5 s", each_second < 1.5),
    ]  # fmt: skip


def program(bench: Bench, name: str, *options: str) -> dict[str, Any]:
    """Run a program of this folder that needs the tests' peers; the figures it prints last."""
    command = [sys.executable, str(Path(__file__).with_name(name)), *options]
    bench.say(" ".join(command[1:]))
    paths = [str(Path(peers.__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, env=env)
    if ran.returncode:
        raise BenchError(f"{name} failed:\n{ran.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return figures


MEASURES = (
    Measure("cpu", cpu, True, "CPU per message, both protocols, clients that cost nothing"),
    Measure("cpu-library", cpu_library, False, "the same with the usual client libraries"),
    Measure("rtt", round_trips, True, "round trips of ten sizes on one core"),
    Measure("rtt-1.0", round_trips_new, False, "round trips over AMQP 1.0"),
    Measure("churn", churn, True, "connections per second"),
    Measure("connections", connections, False, "memory of idle connections, and their effect on round trips"),
    Measure("idle", idle, True, "memory and start of an idle node"),
    Measure("one-core", one_core, False, "a steady 5,000 messages per second on one core"),
    Measure("reliable", reliable, False, "marked durable, confirmed, acknowledged"),
    Measure("backlog", backlog, False, "messages that wait, also over a restart"),
    Measure("streams", streams, False, "appending to a stream, reading it back, and taps"),
    Measure("columns", columns, False, "messages of a stream as Arrow, beside Parquet"),
    Measure("clients", clients, False, "weft's client library beside others, on the same node"),
    Measure("instances", instances, False, "a service of three instances, two of them killed"),
    Measure("answers", answers, False, "how soon a publisher is answered, by its node or by its consumer"),
    Measure("timers", timers, False, "how late a delayed message is while a million others wait"),
    Measure("tls", conversations, False, "short conversations over mutual TLS: sessions taken up again, a pool"),
    Measure("hop", hop, False, "messages moved by a queue route, beside RabbitMQ's shovel and federation"),
    Measure("network", network, False, "round trips over two nodes, balance, bindings, and a gateway that dies"),
    Measure("statistics", statistics, False, "what statistics cost a message; builds a kernel without them"),
    Measure("events", events, False, "what events of a thousand busy queues cost a message"),
    Measure("pages", pages, False, "pages of many queues and connections, and messages meanwhile, beside RabbitMQ"),
    Measure("spark", spark, False, "streams in Spark, beside its own files"),
)
