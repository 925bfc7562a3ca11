"""What a node keeps over its end, in peace or by force: definitions, durable messages, and what belongs to them.

Owns one test per thing that must be there again, or must not. A node is filled, ended, started on the same folder,
and asked. It must never look into the folder: only what clients see counts. Rules: docs/guides/durability.md.
"""

from __future__ import annotations

import time

import pika
import pytest

from interop.proton10 import data
from interop.support import WAIT_S, depth, receive, wait_depth

from .living import PERSISTENT, LivingNode, get_all, publish_stored

LIFE_MS = 2_000
ENDS = pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


@ENDS
def test_durable_queues_bindings_and_messages_are_there_again_in_order(node: LivingNode, kill: bool) -> None:
    channel = node.channel(confirms=True)
    channel.exchange_declare("orders", "topic", durable=True)
    channel.queue_declare("kept", durable=True)
    channel.queue_bind("kept", "orders", "eu.#")
    channel.queue_declare("gone", durable=False)
    for body in numbered(20):
        channel.basic_publish("orders", "eu.x", body, pika.BasicProperties(delivery_mode=2, headers={"n": body}))
    channel.basic_publish("", "gone", b"transient queue", PERSISTENT)
    node.restart(kill=kill)
    channel = node.channel(confirms=True)
    found = receive(channel, "kept", 20)
    assert [each.body for each in found] == numbered(20)
    assert all(each.method.routing_key == "eu.x" and each.method.exchange == "orders" for each in found)
    assert [each.properties.headers["n"] for each in found] == numbered(20)
    assert depth(channel, "kept") == 0
    channel.basic_publish("orders", "eu.y", b"bound still", PERSISTENT)
    assert receive(channel, "kept", 1)[0].body == b"bound still"
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        channel.queue_declare("gone", passive=True)


@ENDS
def test_a_message_for_several_queues_is_in_each(node: LivingNode, kill: bool) -> None:
    channel = node.channel(confirms=True)
    for queue in ("a", "b", "c"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "amq.fanout", "")
    channel.basic_publish("amq.fanout", "", b"for all", PERSISTENT)
    receive(channel, "b", 1)
    channel.basic_publish("amq.fanout", "", b"more", PERSISTENT)
    node.restart(kill=kill)
    channel = node.channel()
    # What was taken last may come back after a crash, but not what was taken before a later confirm.
    assert [[each.body for each in get_all(channel, queue)] for queue in ("a", "b", "c")] == [
        [b"for all", b"more"],
        [b"more"],
        [b"for all", b"more"],
    ]


@ENDS
def test_transient_messages_are_gone_and_leave_no_gap(node: LivingNode, kill: bool) -> None:
    channel = node.channel(confirms=True)
    channel.queue_declare("mixed", durable=True)
    for number, body in enumerate(numbered(40)):
        channel.basic_publish("", "mixed", body, pika.BasicProperties(delivery_mode=2 if number % 2 else 1))
    node.restart(kill=kill)
    channel = node.channel()
    assert depth(channel, "mixed") == 20
    assert [each.body for each in get_all(channel, "mixed")] == numbered(40)[1::2]


def test_redelivered_says_that_it_may_have_been_delivered(node: LivingNode) -> None:
    channel = node.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"held", PERSISTENT)
    (held,) = receive(channel, "q", 1, auto_ack=False)
    assert not held.method.redelivered
    node.restart(kill=True)
    channel = node.channel(confirms=True)
    channel.basic_publish("", "q", b"new", PERSISTENT)
    old, new = receive(channel, "q", 2)
    assert (old.body, old.method.redelivered) == (b"held", True)
    assert (new.body, new.method.redelivered) == (b"new", False)


def fail_all(node: LivingNode, queue: str, count: int) -> set[int]:
    """Take everything in a queue and give it back as failed; the delivery counts that were seen."""
    channel = node.channel(confirms=True)
    taken = receive(channel, queue, count, auto_ack=False)
    channel.basic_nack(taken[-1].method.delivery_tag, multiple=True, requeue=True)
    # Confirmed, so that what happened before is on disk as well.
    channel.basic_publish("", "mark", b"", PERSISTENT)
    return {(each.properties.headers or {}).get("x-delivery-count", 0) for each in taken}


@ENDS
def test_a_poison_message_reaches_its_limit_over_restarts(node: LivingNode, kill: bool) -> None:
    channel = node.channel()
    channel.queue_declare("dead", durable=True)
    channel.queue_declare("mark", durable=True)
    arguments = {"x-delivery-limit": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("poison", durable=True, arguments=arguments)
    publish_stored(node, "poison", numbered(150))  # more than one record of counts
    assert fail_all(node, "poison", 150) == {0}
    node.restart(kill=kill)
    assert "recovered 151 messages in 2 queues" in node.said
    assert fail_all(node, "poison", 150) == {1}
    assert fail_all(node, "poison", 150) == {2}
    assert len(receive(node.channel(), "poison", 50)) == 50
    publish_stored(node, "poison", [b"new"])
    node.restart(kill=kill)
    assert fail_all(node, "poison", 101) == {0, 3}
    channel = node.channel()
    wait_depth(channel, "dead", 100)
    assert [each.body for each in get_all(channel, "poison")] == [b"new"]
    dead = get_all(channel, "dead")
    assert [each.body for each in dead] == numbered(150)[50:]
    assert dead[0].properties.headers["x-death"][0]["reason"] == "delivery_limit"


@ENDS
@pytest.mark.parametrize("way", ["get", "consume"])
def test_priorities_hold_over_all_that_was_kept(node: LivingNode, kill: bool, way: str) -> None:
    count = 3_000  # more than is read from disk at once
    node.channel().queue_declare("p", durable=True, arguments={"x-max-priority": 3})
    publish_stored(node, "p", [b"low-%d" % number for number in range(count)], priority=0)
    publish_stored(node, "p", [b"high-%d" % number for number in range(10)], priority=3)
    node.restart(kill=kill)
    channel = node.channel()
    publish_stored(node, "p", [b"high-10"], priority=3)
    expected = [b"high-%d" % number for number in range(11)] + [b"low-%d" % number for number in range(count)]
    assert depth(channel, "p") == len(expected)
    if way == "get":
        assert [each.body for each in receive(channel, "p", 12)] == expected[:12]
        return
    found = []
    for method, _, body in channel.consume("p", auto_ack=True, inactivity_timeout=WAIT_S):
        assert method is not None, f"{len(found)} of {len(expected)} messages came"
        found.append(body)
        if len(found) == len(expected):
            break
    assert found == expected


@ENDS
def test_the_record_of_deaths_is_kept(node: LivingNode, kill: bool) -> None:
    channel = node.channel(confirms=True)
    channel.queue_declare("dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("source", durable=True, arguments=arguments)
    channel.basic_publish("", "source", b"x", PERSISTENT)
    (taken,) = receive(channel, "source", 1, auto_ack=False)
    channel.basic_reject(taken.method.delivery_tag, requeue=False)
    wait_depth(channel, "dead", 1)
    channel.basic_publish("", "dead", b"later", PERSISTENT)
    node.restart(kill=kill)
    channel = node.channel()
    dead, later = receive(channel, "dead", 2)
    (death,) = dead.properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("source", "rejected", 1)
    assert (death["exchange"], death["routing-keys"]) == ("", ["source"])
    assert later.body == b"later"
    assert depth(channel, "source") == 0


@ENDS
@pytest.mark.parametrize("whose", ["message", "queue"])
def test_time_to_live_goes_on_while_the_node_is_down(node: LivingNode, kill: bool, whose: str) -> None:
    channel = node.channel(confirms=True)
    channel.queue_declare("dead", durable=True)
    arguments: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    if whose == "queue":
        arguments["x-message-ttl"] = LIFE_MS
    channel.queue_declare("short", durable=True, arguments=arguments)
    expiration = str(LIFE_MS) if whose == "message" else None
    channel.basic_publish("", "short", b"x", pika.BasicProperties(delivery_mode=2, expiration=expiration))
    began = time.monotonic()
    node.kill() if kill else node.stop()
    time.sleep(max(0.0, began + LIFE_MS / 1000 - time.monotonic()))  # its time passes while nobody is there
    node.start()
    began = time.monotonic()
    channel = node.channel()
    # Nobody asks for it: the clock alone must send it on.
    wait_depth(channel, "dead", 1)
    assert time.monotonic() - began < LIFE_MS / 1000, "its time began anew"
    assert depth(channel, "short") == 0
    assert receive(channel, "dead", 1)[0].properties.headers["x-death"][0]["reason"] == "expired"


@ENDS
def test_purged_deleted_and_made_anew(node: LivingNode, kill: bool) -> None:
    channel = node.channel(confirms=True)
    for queue in ("purged", "deleted", "anew"):
        channel.queue_declare(queue, durable=True)
        publish_stored(node, queue, numbered(100))
    assert channel.queue_purge("purged").method.message_count == 100
    channel.queue_delete("deleted")
    channel.queue_delete("anew")
    channel.queue_declare("anew", durable=True)
    channel.basic_publish("", "purged", b"after", PERSISTENT)
    channel.basic_publish("", "anew", b"after", PERSISTENT)
    node.restart(kill=kill)
    channel = node.channel()
    assert [each.body for each in get_all(channel, "purged")] == [b"after"]
    assert [each.body for each in get_all(channel, "anew")] == [b"after"]
    assert channel.queue_declare("deleted", durable=True).method.message_count == 0
    assert channel.basic_get("deleted") == (None, None, None)


def test_messages_of_1_0_are_kept_as_they_were(node: LivingNode) -> None:
    node.channel().queue_declare("q", durable=True)
    client = node.client10()
    sender = client.sender("q")
    message = data(b"body", durable=True, subject="s", correlation_id="c", priority=7)
    message.properties = {"colour": "blue", "size": 3}
    client.send(sender, message)
    client.send(sender, data(b"transient", durable=False))
    node.restart(kill=True)
    client = node.client10()
    receiver = client.receiver("q", credit=10)
    _, back = client.receive(receiver)
    assert (back.body, back.subject, back.correlation_id, back.priority, back.durable) == (b"body", "s", "c", 7, True)
    assert back.properties == message.properties
    assert client.empty(receiver)


def test_many_restarts_in_peace_lose_nothing(node: LivingNode) -> None:
    node.channel().queue_declare("q", durable=True)
    expected: list[bytes] = []
    for life in range(4):
        bodies = [b"%d-%d" % (life, number) for number in range(50)]
        publish_stored(node, "q", bodies)
        expected += bodies
        taken = receive(node.channel(), "q", 10)
        assert [each.body for each in taken] == expected[:10]
        del expected[:10]
        node.restart(kill=False)
    assert [each.body for each in get_all(node.channel(), "q")] == expected


def test_the_node_says_what_it_found(node: LivingNode) -> None:
    assert "recovered" not in node.said
    for queue in ("one", "two"):
        node.channel().queue_declare(queue, durable=True)
        publish_stored(node, queue, numbered(3))
    node.restart(kill=True)
    assert "recovered 6 messages in 2 queues" in node.said
