"""Streams over the deaths of a node: offsets mean the same for ever, and nothing confirmed is missing.

Owns the load and the last look. Publishers with confirms write to a stream and readers follow it while the node is
killed and started on the same folder; at the end the stream is read from its first offset and compared with what
publishers were told and with what readers saw. WEFT_CRASH_ROUNDS and WEFT_CRASH_SEED as in `test_crash`. Rule:
docs/guides/streams.md, "After a crash".
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pika
import pytest
from proton import Delivery

from interop.proton10 import data
from interop.support import depth

from .ledger import Ledger, Letter
from .living import LivingNode, publish_stored
from .test_crash import IN_FLIGHT, LIFE_S, SEED
from .test_crash import ROUNDS as CRASH_ROUNDS

ROUNDS = max(CRASH_ROUNDS // 2, 1)
STREAM = "log"
NAME = "x-stream-consumer-name"


def declare(node: LivingNode, **arguments: Any) -> None:
    channel = node.channel()
    named = {key.replace("_", "-"): value for key, value in arguments.items()} | {"x-queue-type": "stream"}
    channel.queue_declare(STREAM, durable=True, arguments=named)
    channel.connection.close()


def read_all(node: LivingNode, count: int | None = None) -> list[tuple[int, bytes]]:
    """(offset, body) of everything that is in the stream, or of its first so many."""
    channel = node.channel()
    channel.basic_qos(prefetch_count=1000)
    left = depth(channel, STREAM) if count is None else count
    found = []
    for method, properties, body in channel.consume(STREAM, arguments={"x-stream-offset": "first"}) if left else ():
        channel.basic_ack(method.delivery_tag)
        found.append((int(properties.headers["x-stream-offset"]), body))
        if len(found) == left:
            break
    channel.connection.close()
    return found


class Seen:
    """What readers saw: a body at an offset is there for good."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bodies: dict[int, bytes] = {}
        self.mistakes: list[str] = []

    def saw(self, offset: int, body: bytes) -> None:
        with self._lock:
            if self.bodies.setdefault(offset, body) != body:
                self.mistakes.append(f"offset {offset} was {self.bodies[offset]!r} and is {body!r}")


def publish_pika(node: LivingNode, ledger: Ledger, name: str, properties: pika.BasicProperties) -> None:
    channel = node.channel(confirms=True)
    while True:
        letter = ledger.send(name, (STREAM,))
        channel.basic_publish("", STREAM, letter.encode(), properties)
        ledger.confirm(letter, (STREAM,))


def publish_proton(node: LivingNode, ledger: Ledger, name: str) -> None:
    client = node.client10()
    link = client.sender(f"/queues/{STREAM}")
    flying: dict[Delivery, Letter] = {}

    def collect() -> bool:
        for delivery in [delivery for delivery in flying if delivery.settled]:
            assert delivery.remote_state == Delivery.ACCEPTED
            ledger.confirm(flying.pop(delivery), (STREAM,))
            delivery.settle()
        return len(flying) < IN_FLIGHT

    while True:
        client.wait(collect)
        letter = ledger.send(name, (STREAM,))
        flying[client.start_send(link, data(letter.encode(), durable=True))] = letter


def follow(node: LivingNode, seen: Seen, start: str, name: str | None = None) -> None:
    """Reads on as long as the node lives; a reader with a name goes on where it was."""
    channel = node.channel()
    channel.basic_qos(prefetch_count=50)
    arguments = {"x-stream-offset": start} | ({NAME: name} if name else {})
    last = None
    for method, properties, body in channel.consume(STREAM, arguments=arguments):
        offset = int(properties.headers["x-stream-offset"])
        assert last in (None, offset - 1), f"{offset} after {last}"
        last = offset
        seen.saw(offset, body)
        channel.basic_ack(method.delivery_tag)


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_a_stream_keeps_what_it_confirmed_and_what_it_showed(node: LivingNode) -> None:
    print(f"WEFT_CRASH_SEED={SEED} WEFT_CRASH_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    ledger, seen, named = Ledger(STREAM), Seen(), Seen()
    declare(node)
    transient, persistent = pika.BasicProperties(), pika.BasicProperties(delivery_mode=2)
    jobs: dict[str, Callable[[], None]] = {
        "pika": lambda: publish_pika(node, ledger, "pika", persistent),
        "transient": lambda: publish_pika(node, ledger, "transient", transient),
        "proton": lambda: publish_proton(node, ledger, "proton"),
        "tail": lambda: follow(node, seen, "next"),
        "named": lambda: follow(node, named, "first", "one"),
    }
    for _ in range(ROUNDS):
        node.kill_under(jobs, dice.uniform(*LIFE_S))
        node.start()
    found = read_all(node)
    assert [offset for offset, _ in found] == list(range(len(found))), "offsets without a gap"
    for _, body in found:
        ledger.arrivals[STREAM].arrived(Letter.decode(body), redelivered=False)
    _, mistakes = ledger.judge()
    there = dict(found)
    for reader in (seen, named):
        mistakes += reader.mistakes
        mistakes += [f"{at} was {body!r}" for at, body in reader.bodies.items() if there.get(at) != body]
    missed = set(range(max(named.bodies, default=0))) - set(named.bodies)
    mistakes += [f"the named reader never saw {offset}" for offset in sorted(missed)]
    assert not mistakes, f"{len(mistakes)} mistakes with WEFT_CRASH_SEED={SEED}: {mistakes[:10]}"
    assert len(found) > 50 * ROUNDS, "there was hardly any load"
    assert len(seen.bodies) > ROUNDS, "the reader at the end hardly saw anything"


@pytest.mark.parametrize("kill", [True, False])
def test_retention_and_names_outlive_a_restart(node: LivingNode, kill: bool) -> None:
    declare(node, x_max_length=160)
    publish_stored(node, STREAM, [b"%d" % number for number in range(1000)])
    before = read_all(node)
    channel = node.channel()
    channel.basic_qos(prefetch_count=20)
    first = before[0][0]
    arguments = {"x-stream-offset": "first", NAME: "one"}
    for taken, (method, _, _) in enumerate(channel.consume(STREAM, arguments=arguments), 1):
        channel.basic_ack(method.delivery_tag)
        if taken == 10:
            break
    # A confirmed message of its own tells that the acknowledgements are on disk.
    publish_stored(node, STREAM, [b"fence"])
    node.restart(kill=kill)
    after = read_all(node)
    assert after[-1] == (1000, b"fence")
    assert after[:-1] == before[-len(after) + 1 :]
    channel = node.channel()
    channel.basic_qos(prefetch_count=1)
    _, properties, _ = next(iter(channel.consume(STREAM, arguments=arguments)))
    assert properties.headers["x-stream-offset"] == max(first + 10, after[0][0])
    publish_stored(node, STREAM, [b"%d" % number for number in range(1001, 2000)])
    assert 140 <= len(read_all(node)) <= 170
    node.restart(kill=kill)
    publish_stored(node, STREAM, [b"last"])
    assert read_all(node)[-2:] == [(1999, b"1999"), (2000, b"last")]


def test_a_stream_in_parts_outlives_a_crash(node: LivingNode) -> None:
    declare(node, x_partitions=3)
    publish_stored(node, STREAM, [b"%d" % number for number in range(60)])
    node.restart(kill=True)
    publish_stored(node, STREAM, [b"%d" % number for number in range(60, 90)])
    channel = node.channel()
    channel.basic_qos(prefetch_count=100)
    parts: dict[int, list[int]] = {}
    bodies = []
    for _, properties, body in channel.consume(STREAM, arguments={"x-stream-offset": "first"}):
        parts.setdefault(properties.headers["x-stream-partition"], []).append(properties.headers["x-stream-offset"])
        bodies.append(int(body))
        if len(bodies) == 90:
            break
    assert sorted(bodies) == list(range(90))
    assert sorted(parts) == [0, 1, 2]
    assert all(offsets == list(range(len(offsets))) for offsets in parts.values())
