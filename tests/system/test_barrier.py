"""The barrier over the deaths of a node: what was taken once is taken once.

Owns publishers that send again whatever was not confirmed when the node died, as publishers must, through barriers on
an exchange and on a queue, in both protocols; and the plain cases of one restart. Every message has to be there exactly
once. WEFT_CRASH_ROUNDS and WEFT_CRASH_SEED as in test_crash.py. Rules: docs/guides/idempotency.md, "After a crash".
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable

import pika
import pytest
from proton import Delivery

from interop.proton10 import data
from interop.support import depth

from .living import PERSISTENT, LivingNode, get_all

ROUNDS = int(os.environ.get("WEFT_CRASH_ROUNDS", "5"))
SEED = int(os.environ.get("WEFT_CRASH_SEED", str(random.SystemRandom().randrange(1 << 32))))
LIFE_S = (0.05, 1.0)
IN_FLIGHT = 40
AGAIN = 5
"""A publisher sends one message in so many twice, dead node or not."""
BY_ID = {"x-barrier": "message-id"}


def identified(ident: str) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=2, message_id=ident)


class Publisher:
    """Numbers messages, and knows which the node has answered for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made = 0
        self.waiting: dict[str, None] = {}
        self.confirmed: set[str] = set()

    def next(self) -> list[str]:
        """What to send next: at first all that a death left unanswered."""
        self.made += 1
        made = f"{self.name}:{self.made}"
        self.waiting[made] = None
        return [made, made] if self.made % AGAIN == 0 else [made]

    def confirm(self, ident: str) -> None:
        self.waiting.pop(ident, None)
        self.confirmed.add(ident)


def publish_pika(node: LivingNode, publisher: Publisher, exchange: str, key: str) -> None:
    channel = node.channel(confirms=True)
    unanswered = list(publisher.waiting)
    while True:
        for ident in unanswered or publisher.next():
            channel.basic_publish(exchange, key, ident.encode().ljust(200, b"."), identified(ident))
            publisher.confirm(ident)
        unanswered = []


def publish_proton(node: LivingNode, publisher: Publisher, queue: str) -> None:
    client = node.client10()
    link = client.sender(queue)
    flying: dict[Delivery, str] = {}

    def collect() -> bool:
        for delivery in [delivery for delivery in flying if delivery.settled]:
            assert delivery.remote_state == Delivery.ACCEPTED
            publisher.confirm(flying.pop(delivery))
            delivery.settle()
        return len(flying) < IN_FLIGHT

    unanswered = list(publisher.waiting)
    while True:
        for ident in unanswered or publisher.next():
            client.wait(collect)
            message = data(ident.encode().ljust(200, b"."), durable=True, id=ident)
            flying[client.start_send(link, message)] = ident
        unanswered = []


def load(node: LivingNode, publishers: dict[str, Publisher]) -> dict[str, Callable[[], None]]:
    return {
        "exchange": lambda: publish_pika(node, publishers["exchange"], "guarded", "key"),
        "queue": lambda: publish_pika(node, publishers["queue"], "", "queue"),
        "linked": lambda: publish_proton(node, publishers["linked"], "linked"),
    }


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_what_is_sent_again_after_a_crash_is_there_once(node: LivingNode) -> None:
    print(f"WEFT_CRASH_SEED={SEED} WEFT_CRASH_ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    publishers = {name: Publisher(name) for name in ("exchange", "queue", "linked")}
    channel = node.channel()
    channel.exchange_declare("guarded", "direct", durable=True, arguments=BY_ID)
    channel.queue_declare("exchange", durable=True)
    channel.queue_bind("exchange", "guarded", "key")
    channel.queue_declare("queue", durable=True, arguments=BY_ID)
    channel.queue_declare("linked", durable=True, arguments=BY_ID)
    channel.connection.close()
    for _ in range(ROUNDS):
        node.kill_under(load(node, publishers), dice.uniform(*LIFE_S))
        node.start()
    channel = node.channel()
    for queue, publisher in publishers.items():
        times = Counter(bytes(each.body).rstrip(b".").decode() for each in get_all(channel, queue))
        doubles = [ident for ident, count in times.items() if count > 1]
        lost = publisher.confirmed - set(times)
        print(f"{queue}: confirmed={len(publisher.confirmed)} lost={len(lost)} doubles={len(doubles)}")
        assert (len(lost), len(doubles)) == (0, 0), f"with WEFT_CRASH_SEED={SEED}"
        assert len(times) > 10 * ROUNDS, "there was hardly any load"


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stopped"])
def test_a_duplicate_after_a_restart_is_still_a_duplicate(node: LivingNode, kill: bool) -> None:
    channel = node.channel(confirms=True)
    channel.exchange_declare("guarded", "fanout", durable=True, arguments=BY_ID)
    channel.queue_declare("plain", durable=True)
    channel.queue_bind("plain", "guarded")
    channel.queue_declare("queue", durable=True, arguments={"x-barrier": "body"})
    for _ in range(2):
        channel.basic_publish("guarded", "", b"x", identified("m"))
        channel.basic_publish("", "queue", b"body", PERSISTENT)
        channel.basic_publish("", "queue", b"transient")
    assert [bytes(each.body) for each in get_all(channel, "queue")] == [b"body", b"transient"]
    # Confirmed after the acknowledgements: so they are on disk too.
    channel.queue_declare("fence", durable=True)
    channel.basic_publish("", "fence", b"", PERSISTENT)
    node.restart(kill=kill)
    channel = node.channel(confirms=True)
    for _ in range(2):
        channel.basic_publish("guarded", "", b"y", identified("m"))
        channel.basic_publish("", "queue", b"body", PERSISTENT)
        channel.basic_publish("", "queue", b"transient")
    assert [bytes(each.body) for each in get_all(channel, "plain")] == [b"x"]
    # Ids are as durable as what they guard: a transient message is gone, and may come again.
    assert [bytes(each.body) for each in get_all(channel, "queue")] == [b"transient"]


def test_a_new_queue_of_the_same_name_knows_nothing(node: LivingNode) -> None:
    channel = node.channel(confirms=True)
    for _ in range(2):
        channel.queue_declare("queue", durable=True, arguments=BY_ID)
        channel.exchange_declare("guarded", "fanout", durable=True, arguments=BY_ID)
        channel.queue_bind("queue", "guarded")
        channel.basic_publish("guarded", "", b"x", identified("m"))
        assert depth(channel, "queue") == 1
        node.restart(kill=True)
        channel = node.channel(confirms=True)
        channel.queue_delete("queue")
        channel.exchange_delete("guarded")
