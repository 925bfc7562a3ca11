"""A node is killed again and again under load; nothing that was confirmed may be lost.

Owns the load, the killing and the last look. Publishers with confirms and consumers with acknowledgements, of both
protocols, work while a node is killed at a random instant and started on the same folder; at the end every queue is
emptied and the ledger judges. WEFT_CRASH_ROUNDS sets how often it dies, WEFT_CRASH_SEED when; both are printed. Rule:
docs/guides/durability.md, "After a crash".
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from proton import Delivery

from interop.proton10 import data
from interop.support import depth

from .ledger import Arrivals, Ledger, Letter
from .living import PERSISTENT, LivingNode

ROUNDS = int(os.environ.get("WEFT_CRASH_ROUNDS", "7"))
SEED = int(os.environ.get("WEFT_CRASH_SEED", str(random.SystemRandom().randrange(1 << 32))))
LIFE_S = (0.05, 2.0)
IN_FLIGHT = 50
FENCE_EVERY = 20
FENCE = "fence"


def publish_pika(node: LivingNode, ledger: Ledger, name: str) -> None:
    """One message after the other, each to two queues, each confirmed before the next."""
    channel = node.channel(confirms=True)
    while True:
        letter = ledger.send(name, ("worked", "kept"))
        channel.basic_publish("amq.fanout", "", letter.encode(), PERSISTENT)
        ledger.confirm(letter, ("worked", "kept"))


def publish_proton(node: LivingNode, ledger: Ledger, name: str) -> None:
    """Many messages on their way at once; outcomes as they come."""
    client = node.client10()
    link = client.sender("linked")
    flying: dict[Delivery, Letter] = {}

    def collect() -> bool:
        for delivery in [delivery for delivery in flying if delivery.settled]:
            assert delivery.remote_state == Delivery.ACCEPTED
            ledger.confirm(flying.pop(delivery), ("linked",))
            delivery.settle()
        return len(flying) < IN_FLIGHT

    while True:
        client.wait(collect)
        letter = ledger.send(name, ("linked",))
        flying[client.start_send(link, data(letter.encode(), durable=True))] = letter


def consume_pika(node: LivingNode, arrivals: Arrivals) -> None:
    """Acknowledges what comes; then a confirmed message of its own tells that the acknowledgements are on disk."""
    channel = node.channel(confirms=True)
    channel.basic_qos(prefetch_count=2 * FENCE_EVERY)
    waiting: list[Letter] = []
    for method, _, body in channel.consume("worked"):
        letter = Letter.decode(body)
        arrivals.arrived(letter, method.redelivered)
        waiting.append(letter)
        channel.basic_ack(method.delivery_tag)
        if len(waiting) == FENCE_EVERY:
            channel.basic_publish("", FENCE, b"", PERSISTENT)
            arrivals.settled.update(waiting)
            waiting.clear()


def consume_proton(node: LivingNode, arrivals: Arrivals) -> None:
    client = node.client10()
    receiver, fence = client.receiver("linked", credit=2 * FENCE_EVERY), client.sender(FENCE)
    waiting: list[Letter] = []
    while True:
        delivery, message = client.receive(receiver)
        letter = Letter.decode(message.body)
        arrivals.arrived(letter, message.delivery_count > 0 or not message.first_acquirer)
        waiting.append(letter)
        client.settle(delivery, Delivery.ACCEPTED)
        if len(waiting) == FENCE_EVERY:
            assert client.send(fence, data(b"", durable=True)) == Delivery.ACCEPTED
            arrivals.settled.update(waiting)
            waiting.clear()
            receiver.flow(FENCE_EVERY)


def load(node: LivingNode, ledger: Ledger) -> dict[str, Callable[[], None]]:
    """The work that is done in every life of the node."""
    return {
        "pika-1": lambda: publish_pika(node, ledger, "pika-1"),
        "pika-2": lambda: publish_pika(node, ledger, "pika-2"),
        "proton": lambda: publish_proton(node, ledger, "proton"),
        "worked": lambda: consume_pika(node, ledger.arrivals["worked"]),
        "linked": lambda: consume_proton(node, ledger.arrivals["linked"]),
    }


def empty(node: LivingNode, queue: str, arrivals: Arrivals) -> None:
    """Take all that is left in a queue."""
    channel = node.channel()
    left = depth(channel, queue)
    for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=10) if left else ():
        if method is None:
            break
        arrivals.arrived(Letter.decode(body), method.redelivered)
        left -= 1
        if left == 0:
            break
    assert left == 0, f"{left} messages of {queue} are counted and do not come"
    channel.connection.close()


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_nothing_confirmed_is_lost_when_a_node_is_killed(node: LivingNode) -> None:
    print(f"WEFT_CRASH_SEED={SEED} WEFT_CRASH_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    ledger = Ledger("worked", "kept", "linked")
    channel = node.channel()
    for queue in (*ledger.sent, FENCE):
        channel.queue_declare(queue, durable=True)
    channel.queue_bind("worked", "amq.fanout", "")
    channel.queue_bind("kept", "amq.fanout", "")
    channel.connection.close()
    for _ in range(ROUNDS):
        node.kill_under(load(node, ledger), dice.uniform(*LIFE_S))
        node.start()
    for queue, arrivals in ledger.arrivals.items():
        empty(node, queue, arrivals)
    counts, mistakes = ledger.judge()
    print(" ".join(f"{name}={count}" for name, count in counts.items()))
    assert not mistakes, f"{len(mistakes)} mistakes with WEFT_CRASH_SEED={SEED}: {mistakes[:10]}"
    assert counts["received"] > 100 * ROUNDS, "there was hardly any load"
