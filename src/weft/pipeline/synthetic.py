"""Invented streams with a known truth: what the jobs are tested, shown and measured on.

Owns generators of messages, of copies over lossy paths, of account events with fraud among them and of queue samples.
Sizes and a seed come in; Arrow tables in the schema of a stream and the truth about them go out.
It must never be used on real data, and the same seed must always give the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weft.spark.schema import STREAM, arrow_schema

START_US = 1_800_000_000_000_000
"""Some moment; all generators begin there."""

SCHEMA = arrow_schema(STREAM)


def rows(stream: str, count: int, **columns: object) -> pa.Table:
    """A table of a stream with these columns, offsets from 0, and null or plain values elsewhere."""
    plain: dict[str, object] = {
        "stream": [stream] * count,
        "shard": np.zeros(count, np.int32),
        "offset": np.arange(count, dtype=np.int64),
        "enqueue_time": START_US + np.arange(count, dtype=np.int64) * 1_000,
        "durable": np.ones(count, bool),
        "redelivered": np.zeros(count, bool),
        "headers": [[]] * count,
        "trace": [[]] * count,
    } | columns
    if "body" in columns and "body_bytes" not in columns:
        plain["body_bytes"] = [len(body) for body in columns["body"]]  # type: ignore[attr-defined]
    arrays = [pa.array(plain[field.name], field.type) if field.name in plain else pa.nulls(count, field.type)
              for field in SCHEMA]  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def traffic(count: int = 20_000, *, seed: int = 1, per_s: int = 1_000, body_bytes: int = 256) -> pa.Table:
    """Plain traffic: a few nodes, tiers, addresses and types, of uneven weight, latencies with a long tail."""
    random = np.random.default_rng(seed)
    times = START_US + (np.arange(count, dtype=np.int64) * 1_000_000) // per_s
    latencies = (random.lognormal(7.0, 0.8, count)).astype(np.int64)
    keys = np.array(["payment.made", "payment.refused", "login", "balance.asked"])
    nodes = np.array(["edge-1", "edge-2", "core-1"])
    senders = np.array([f"service-{number}" for number in range(8)])
    node = nodes[random.choice(3, count, p=[0.5, 0.3, 0.2])]
    sizes = random.integers(1, 2 * body_bytes, count)
    return rows(
        "traffic",
        count,
        enqueue_time=times,
        creation_time=times - latencies,
        origin=node,
        exchange=["bank"] * count,
        routing_key=keys[random.choice(4, count, p=[0.55, 0.05, 0.25, 0.15])],
        type=np.where(random.random(count) < 0.8, "event", "command"),
        app_id=senders[np.minimum(random.geometric(0.35, count) - 1, 7)],
        headers=[[("tier", name.partition("-")[0])] for name in node],
        trace=[[name, "core-1"] if name != "core-1" else [name] for name in node],
        body=[b"x" * int(size) for size in sizes],
    )


def copies(count: int, paths: Mapping[Sequence[str], float], *, seed: int = 1, doubled: float = 0.0) -> pa.Table:
    """Numbered messages of one sender, a copy over each path, some lost on the way and some doubled."""
    random = np.random.default_rng(seed)
    sequence: list[int] = []
    traces: list[list[str]] = []
    for path, loss in paths.items():
        arrived = np.flatnonzero(random.random(count) >= loss)
        again = arrived[random.random(len(arrived)) < doubled]
        numbers = np.sort(np.concatenate([arrived, again]))
        sequence += numbers.tolist()
        traces += [list(path)] * len(numbers)
    return rows(
        "copies",
        len(sequence),
        app_id=["sender"] * len(sequence),
        message_id=[f"sender-{number}" for number in sequence],
        headers=[[("sequence", str(number))] for number in sequence],
        trace=traces,
    )


@dataclass(frozen=True)
class Accounts:
    """Account events, and which accounts are in the hands of somebody else."""

    events: pa.Table
    fraud: dict[str, str]
    """The kind of fraud by account."""


FRAUD = ("velocity", "takeover", "testing", "travel", "spike")
COUNTRIES = ("SE", "DE", "US", "IE")
Happening = tuple[float, str, str, float, str]
"""Second, account, kind, amount, country."""


@dataclass(frozen=True)
class _Person:
    account: str
    home: str
    usual: float


def accounts(count: int = 400, *, frauds: int = 40, seed: int = 1, minutes: int = 120) -> Accounts:
    """Ordinary accounts, some of them busy or abroad, and frauds of five kinds spread evenly among the rest."""
    random = np.random.default_rng(seed)
    events: list[Happening] = []
    fraud: dict[str, str] = {}
    for number in range(count):
        person = _Person(f"a{number:05}", COUNTRIES[number % 4], float(random.lognormal(3.5, 0.5)))
        travels = random.random() < 0.1
        events += _ordinary(random, person, minutes * 60, travels=travels)
        at = float(random.uniform(0.5, 0.95)) * minutes * 60
        if number < frauds:
            fraud[person.account] = kind = FRAUD[number % len(FRAUD)]
            events += _fraud(random, kind, person, at)
        elif not travels and random.random() < 0.1:
            events += _shopping(random, person, at)
    events.sort()
    bodies = [
        json.dumps({"account": account, "kind": kind, "amount": round(amount, 2), "country": country}).encode()
        for _, account, kind, amount, country in events
    ]
    times = [START_US + int(at * 1e6) for at, *_ in events]
    table = rows("accounts", len(events), enqueue_time=times, creation_time=times, body=bodies,
                 exchange=["bank"] * len(events), routing_key=["account.changed"] * len(events))  # fmt: skip
    return Accounts(table, fraud)


def _ordinary(random: np.random.Generator, person: _Person, seconds: int, *, travels: bool) -> list[Happening]:
    """Hours of nothing special, but for a flight in the middle of them."""
    events: list[Happening] = []
    for _ in range(int(random.poisson(12)) + 10):
        at = float(random.uniform(0, seconds))
        kind = str(random.choice(["payment", "login", "login-failed"], p=[0.6, 0.35, 0.05]))
        amount = float(random.lognormal(np.log(person.usual), 0.4)) if kind == "payment" else 0.0
        if travels and 0.3 < at / seconds < 0.6:
            continue
        events.append((at, person.account, kind, amount, "FR" if travels and at / seconds > 0.6 else person.home))
    return events


def _shopping(random: np.random.Generator, person: _Person, at: float) -> list[Happening]:
    """A busy but honest quarter of an hour: the rules must not mind."""
    moments = at + random.uniform(0, 900, int(random.integers(3, 8)))
    return [(float(moment), person.account, "payment", person.usual * float(random.uniform(0.3, 1.5)), person.home)
            for moment in moments]  # fmt: skip


def _fraud(random: np.random.Generator, kind: str, person: _Person, at: float) -> list[Happening]:
    """What a thief does, in the two minutes from `at` on."""
    moments = [float(moment) for moment in at + np.sort(random.uniform(0, 120, 16))]

    def event(moment: float, kind: str, factor: float = 0.0, country: str = person.home) -> Happening:
        return moment, person.account, kind, factor * person.usual, country

    if kind == "velocity":
        return [event(moment, "payment", 1.0) for moment in moments]
    if kind == "takeover":
        tries = [event(moment, "login-failed") for moment in moments[:8]]
        return [*tries, event(moments[9], "login"), event(moments[10], "payment", 2.0)]
    if kind == "testing":
        tests = [(moment, person.account, "payment", 0.5, person.home) for moment in moments[:6]]
        return [*tests, event(moments[8], "payment", 3.0)]
    if kind == "travel":
        return [event(moments[0], "payment", 1.0), event(moments[1], "payment", 1.0, "XK")]
    return [event(moments[0], "payment", 40.0)]


def queue_samples(seconds: int = 600, *, seed: int = 1, growth_per_s: float = 0.1, every_s: int = 5) -> pa.Table:
    """Counters of two queues: `calm` has a steady load, that of `rising` grows until it overtakes its workers."""
    random = np.random.default_rng(seed)
    table: dict[str, list[object]] = {
        name: [] for name in ("time", "node", "queue", "depth", "arrived", "departed", "consumers")
    }
    for queue, base, growth, consumers in (("calm", 50.0, 0.0, 2), ("rising", 50.0, growth_per_s, 2)):
        arrived = departed = depth = 0.0
        for at in range(0, seconds, every_s):
            come = max(0.0, (base + growth * at) * every_s + random.normal(0, 3))
            gone = min(depth + come, consumers * 50.0 * every_s)
            arrived, departed, depth = arrived + come, departed + gone, depth + come - gone
            for name, value in zip(table, (START_US + at * 1_000_000, "core-1", queue, int(depth), int(arrived),
                                           int(departed), consumers), strict=True):  # fmt: skip
                table[name].append(value)
    types = {"time": pa.timestamp("us", "UTC"), "depth": pa.int64(), "arrived": pa.int64(), "departed": pa.int64(),
             "consumers": pa.int32()}  # fmt: skip
    return pa.table({name: pa.array(values, types.get(name, pa.string())) for name, values in table.items()})
