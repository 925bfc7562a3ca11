"""Queues longer than memory should hold: what lies on disk costs little, and behaves as if it were in memory.

Owns backlogs of tens of thousands of messages, transient and persistent, and every way to read one. A queue is filled
far beyond the window that a queue keeps in memory; then it is read, limited, purged, put back into. It must never
rely on how large that window is, only that it is smaller than these backlogs. Rules: docs/guides/durability.md, "Long
queues".
"""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Described, Terminus, symbol

from interop.proton10 import Client10
from interop.support import depth, receive, wait_depth

from .living import LivingNode, get_all

COUNT, SHORT = 60_000, 12_000
BODY_BYTES = 1_024
GROWTH_BYTES_MAX = 64 << 20
READ_TIMEOUT_S = 20


def body(number: int) -> bytes:
    return (b"%06d" % number).ljust(BODY_BYTES, b".")


def number_of(found: bytes) -> int:
    return int(bytes(found[:6]))


def fill(channel: BlockingChannel, queue: str, numbers: range, *, size_bytes: int = BODY_BYTES, mode: int = 2) -> None:
    """Publish so many messages with a number each, and wait until they are in the queue."""
    before = depth(channel, queue)
    for number in numbers:
        letter = (b"%06d" % number).ljust(size_bytes, b".")
        channel.basic_publish("", queue, letter, pika.BasicProperties(delivery_mode=mode))
    wait_depth(channel, queue, before + len(numbers))


def consume(channel: BlockingChannel, queue: str, count: int, *, auto_ack: bool) -> list[int]:
    """Consume so many messages; without `auto_ack` they are acknowledged as they come."""
    found: list[int] = []
    channel.basic_qos(prefetch_count=500)
    for method, _, letter in channel.consume(queue, auto_ack=auto_ack, inactivity_timeout=READ_TIMEOUT_S):
        assert method is not None, f"nothing came after {len(found)} of {count}"
        found.append(number_of(letter))
        if not auto_ack and (len(found) % 250 == 0 or len(found) == count):
            channel.basic_ack(method.delivery_tag, multiple=True)
        if len(found) == count:
            break
    channel.cancel()
    return found


def receive10(client: Client10, link: Any, count: int, *, settle: bool = True) -> list[int]:
    """Receive so many messages on a link with credit."""
    found: list[int] = []
    while len(found) < count:
        if link.credit < 100:
            link.flow(400)
        delivery, message = client.receive(link)
        found.append(number_of(message.body))
        if settle:
            delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    client.step(0)
    return found


def copying(link: Any) -> None:
    link.source.distribution_mode = Terminus.DIST_MODE_COPY


def selecting(words: str) -> Any:
    def prepare(link: Any) -> None:
        value = Described(symbol("apache.org:selector-filter:string"), words)
        link.source.filter.put_dict({symbol("selector"): value})

    return prepare


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_a_long_queue_costs_little_memory_and_drains_in_order(node: LivingNode, mode: int) -> None:
    channel = node.channel()
    for queue in ("taken", "acked"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "amq.fanout", "")
    before = node.memory_bytes
    for number in range(COUNT):
        channel.basic_publish("amq.fanout", "", body(number), pika.BasicProperties(delivery_mode=mode))
    wait_depth(channel, "taken", COUNT)
    assert depth(channel, "acked") == COUNT
    assert node.memory_bytes - before < GROWTH_BYTES_MAX
    client = node.client10()
    assert client.empty(client.receiver("acked", credit=10, prepare=selecting("n = 1")))
    assert node.memory_bytes - before < GROWTH_BYTES_MAX, "what a selector passes over stays on disk"
    # The first part by basic.get, beyond the window, the rest by a consumer that does not acknowledge.
    assert [number_of(each.body) for each in receive(channel, "taken", SHORT)] == list(range(SHORT))
    assert consume(channel, "taken", COUNT - SHORT, auto_ack=True) == list(range(SHORT, COUNT))
    assert node.memory_bytes - before < GROWTH_BYTES_MAX
    assert consume(channel, "acked", COUNT, auto_ack=False) == list(range(COUNT))
    assert node.memory_bytes - before < GROWTH_BYTES_MAX
    assert depth(channel, "taken") == depth(channel, "acked") == 0


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_1_0_receivers_browse_select_and_take_what_is_on_disk(node: LivingNode, mode: int) -> None:
    channel, client = node.channel(), node.client10()
    channel.queue_declare("q", durable=True)
    for number in range(SHORT):
        properties = pika.BasicProperties(delivery_mode=mode, headers={"n": number})
        channel.basic_publish("", "q", body(number), properties)
    wait_depth(channel, "q", SHORT)
    chosen = [number for number in range(SHORT) if number % 1_000 == 7]
    words = " OR ".join(f"n = {number}" for number in chosen)
    selector = client.receiver("q", credit=2 * len(chosen), prepare=selecting(words))
    assert [number_of(client.receive(selector)[1].body) for _ in chosen] == chosen
    assert client.empty(selector)
    client.close_link(selector)  # nothing was settled: all of them go back to their places
    wait_depth(channel, "q", SHORT)
    browser = client.receiver("q", prepare=copying)
    assert receive10(client, browser, SHORT, settle=False) == list(range(SHORT))
    assert client.empty(browser)
    client.close_link(browser)
    assert depth(channel, "q") == SHORT
    receiver = client.receiver("q")
    assert receive10(client, receiver, SHORT) == list(range(SHORT))
    assert client.empty(receiver)


def numbered(node: LivingNode, count: int) -> BlockingChannel:
    """A queue of messages that selectors can tell apart, most of them on disk."""
    channel = node.channel()
    channel.queue_declare("q", durable=True)
    for number in range(count):
        channel.basic_publish("", "q", body(number), pika.BasicProperties(delivery_mode=2, headers={"n": number}))
    wait_depth(channel, "q", count)
    return channel


def test_what_selectors_take_from_disk_is_taken_once_and_missed_by_nobody(node: LivingNode) -> None:
    channel, client = numbered(node, SHORT), node.client10()
    words = selecting("n >= 11000 AND n < 11100")
    links = [client.receiver("q", credit=30, prepare=words) for _ in range(2)]
    client.wait(lambda: all(link.queued == 30 for link in links), READ_TIMEOUT_S)
    taken = [client.receive(link) for link in links for _ in range(30)]
    assert sorted(number_of(message.body) for _, message in taken) == list(range(11_000, 11_060))
    accepted = {number_of(message.body) for _, message in taken[::2]}
    for delivery, _ in taken[::2]:
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    for delivery, _ in taken[1::2]:
        delivery.update(Delivery.RELEASED)
        delivery.settle()
    client.step(0)
    wait_depth(channel, "q", SHORT - 30)
    for link in links:
        client.close_link(link)
    assert consume(channel, "q", SHORT - 30, auto_ack=True) == [n for n in range(SHORT) if n not in accepted]


def test_a_purge_leaves_what_a_selector_has_taken_from_disk(node: LivingNode) -> None:
    channel, client = numbered(node, SHORT), node.client10()
    link = client.receiver("q", credit=3, prepare=selecting("n = 10500 OR n = 11500"))
    assert [number_of(client.receive(link)[1].body) for _ in range(2)] == [10_500, 11_500]
    assert channel.queue_purge("q").method.message_count == SHORT - 2
    channel.confirm_delivery()
    channel.basic_publish("", "q", body(SHORT), pika.BasicProperties(delivery_mode=2))
    node.restart(kill=True)
    channel = node.channel()
    assert [number_of(each.body) for each in get_all(channel, "q")] == [10_500, 11_500, SHORT]


def test_a_drain_is_answered_after_what_is_on_disk(node: LivingNode) -> None:
    channel = node.channel()
    channel.queue_declare("q", durable=True)
    fill(channel, "q", range(SHORT), size_bytes=10)
    node.restart(kill=False)
    client = node.client10()
    receiver = client.receiver("q")
    receiver.drain(SHORT + 10)
    client.wait(lambda: receiver.queued == SHORT, READ_TIMEOUT_S)
    client.wait(lambda: receiver.credit == receiver.queued, READ_TIMEOUT_S)


def test_transient_and_persistent_keep_their_order(node: LivingNode) -> None:
    channel = node.channel()
    channel.queue_declare("q", durable=True)
    for number in range(SHORT):
        mode = 1 if number % 3 else 2
        channel.basic_publish("", "q", body(number), pika.BasicProperties(delivery_mode=mode))
    wait_depth(channel, "q", SHORT)
    assert [number_of(each.body) for each in receive(channel, "q", SHORT // 2)] == list(range(SHORT // 2))
    fill(channel, "q", range(SHORT, SHORT + 100))
    node.restart(kill=False)
    channel = node.channel()
    kept = [number for number in range(SHORT // 2, SHORT) if number % 3 == 0]
    assert [number_of(each.body) for each in get_all(channel, "q")] == [*kept, *range(SHORT, SHORT + 100)]


@pytest.mark.parametrize("limit", [{"x-max-length": 10_000}, {"x-max-length-bytes": 10_000 * BODY_BYTES}], ids=str)
def test_a_limit_counts_what_is_on_disk(node: LivingNode, limit: dict[str, int]) -> None:
    channel = node.channel()
    channel.queue_declare("q", durable=True, arguments=limit)
    for number in range(SHORT):
        channel.basic_publish("", "q", body(number), pika.BasicProperties(delivery_mode=2))
    channel.queue_declare("mark")  # a round trip behind them
    wait_depth(channel, "q", 10_000)
    node.restart(kill=False)
    channel = node.channel()
    assert depth(channel, "q") == 10_000
    for number in range(SHORT, SHORT + 500):
        channel.basic_publish("", "q", body(number), pika.BasicProperties(delivery_mode=2))
    channel.queue_declare("mark")
    wait_depth(channel, "q", 10_000)
    first = SHORT + 500 - 10_000
    assert consume(channel, "q", 10_000, auto_ack=True) == list(range(first, SHORT + 500))


def test_reject_publish_counts_what_is_on_disk(node: LivingNode) -> None:
    channel = node.channel()
    arguments = {"x-max-length-bytes": 10_000 * BODY_BYTES, "x-overflow": "reject-publish"}
    channel.queue_declare("q", durable=True, arguments=arguments)
    for number in range(SHORT):
        channel.basic_publish("", "q", body(number), pika.BasicProperties(delivery_mode=2))
    wait_depth(channel, "q", 10_000)
    assert consume(channel, "q", 10_000, auto_ack=True) == list(range(10_000))


def test_what_is_put_back_takes_its_place_before_what_is_on_disk(node: LivingNode) -> None:
    channel = node.channel()
    channel.queue_declare("q", durable=True)
    fill(channel, "q", range(SHORT), size_bytes=10)
    taken = receive(channel, "q", 10_000, auto_ack=False)
    assert [number_of(each.body) for each in taken] == list(range(10_000))
    channel.basic_ack(taken[4].method.delivery_tag)
    channel.basic_nack(taken[-1].method.delivery_tag, multiple=True, requeue=True)
    wait_depth(channel, "q", SHORT - 1)
    expected = [number for number in range(SHORT) if number != 4]
    assert consume(channel, "q", SHORT - 1, auto_ack=True) == expected


def test_purging_takes_what_is_on_disk(node: LivingNode) -> None:
    channel = node.channel()
    channel.queue_declare("q", durable=True)
    fill(channel, "q", range(SHORT))
    assert channel.queue_purge("q").method.message_count == SHORT
    fill(channel, "q", range(SHORT, 2 * SHORT))
    assert [number_of(each.body) for each in receive(channel, "q", 10)] == list(range(SHORT, SHORT + 10))
    node.restart(kill=False)
    channel = node.channel()
    assert channel.queue_purge("q").method.message_count == SHORT - 10
    assert depth(channel, "q") == 0
