"""Dead letters: why a message died, where it goes, what is written on it.

Owns dead-lettering for every reason (rejected, expired, maxlen, delivery_limit) and the `x-death` record. pika is the
client and RabbitMQ the reference. The dead-letter queue is bound before anything can die, so waiting for its first
message is waiting for the death itself. Rules: RabbitMQ's page on dead letter exchanges.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .support import Delivery, publish, receive, take_all, wait_depth

Name = Callable[..., str]


@dataclass
class Graveyard:
    """A fanout exchange for the dead, and the queue behind it."""

    channel: BlockingChannel
    name: Name
    exchange: str
    queue: str

    def source(self, key: str | None = None, **arguments: Any) -> str:
        """A queue whose dead go here."""
        named = {each.replace("_", "-"): value for each, value in arguments.items()}
        named["x-dead-letter-exchange"] = self.exchange
        if key is not None:
            named["x-dead-letter-routing-key"] = key
        return str(self.channel.queue_declare(self.name("source"), exclusive=True, arguments=named).method.queue)

    def dig(self, count: int = 1) -> list[Delivery]:
        return receive(self.channel, self.queue, count)


@pytest.fixture
def graveyard(channel: BlockingChannel, name: Name) -> Graveyard:
    exchange = name("dlx")
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    queue = channel.queue_declare(name("dead"), exclusive=True).method.queue
    channel.queue_bind(queue, exchange)
    return Graveyard(channel, name, exchange, queue)


def kill(channel: BlockingChannel, queue: str, verb: str = "reject") -> None:
    delivery = receive(channel, queue, 1, auto_ack=False)[0]
    getattr(channel, f"basic_{verb}")(delivery.method.delivery_tag, requeue=False)


@pytest.mark.parametrize("verb", ["reject", "nack"])
def test_rejected_message_dies_with_a_record(channel: BlockingChannel, graveyard: Graveyard, verb: str) -> None:
    source = graveyard.source()
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    publish(channel, source, b"dead", headers={"kept": "yes"}, message_id="m", priority=3)
    kill(channel, source, verb)
    dead = graveyard.dig()[0]
    assert (dead.body, dead.properties.message_id, dead.properties.priority) == (b"dead", "m", 3)
    assert (dead.method.exchange, dead.method.routing_key) == (graveyard.exchange, source)
    headers = dict(dead.properties.headers)
    (death,) = headers.pop("x-death")
    assert before <= death.pop("time") <= datetime.datetime.now(datetime.UTC)
    assert death == {"queue": source, "reason": "rejected", "count": 1, "exchange": "", "routing-keys": [source]}
    assert headers == {
        "kept": "yes", "x-first-death-queue": source, "x-first-death-reason": "rejected", "x-first-death-exchange": "",
    } | {key: value for key, value in headers.items() if key.startswith("x-last-death-")}  # fmt: skip


def test_acknowledged_and_purged_messages_do_not_die(channel: BlockingChannel, graveyard: Graveyard) -> None:
    source = graveyard.source()
    publish(channel, source, b"acked", b"purged", b"rejected last")
    channel.basic_ack(receive(channel, source, 1, auto_ack=False)[0].method.delivery_tag)
    held = receive(channel, source, 2, auto_ack=False)
    channel.basic_nack(held[0].method.delivery_tag, requeue=True)
    wait_depth(channel, source, 1)
    channel.queue_purge(source)
    channel.basic_reject(held[1].method.delivery_tag, requeue=False)
    assert [each.body for each in graveyard.dig()] == [b"rejected last"]
    assert take_all(channel, graveyard.queue) == []


def test_expired_messages_die_in_order_and_lose_their_limit(channel: BlockingChannel, graveyard: Graveyard) -> None:
    source = graveyard.source()
    publish(channel, source, b"1", b"2", expiration="50")
    dead = graveyard.dig(2)
    assert [each.body for each in dead] == [b"1", b"2"]
    for each in dead:
        (death,) = each.properties.headers["x-death"]
        assert (death["reason"], death["original-expiration"], each.properties.expiration) == ("expired", "50", None)


def test_queue_limit_leaves_no_original_expiration(channel: BlockingChannel, graveyard: Graveyard) -> None:
    source = graveyard.source(x_message_ttl=50)
    publish(channel, source, b"x")
    (death,) = graveyard.dig()[0].properties.headers["x-death"]
    assert death["reason"] == "expired"
    assert "original-expiration" not in death


def test_overflowing_head_dies(channel: BlockingChannel, graveyard: Graveyard) -> None:
    source = graveyard.source(x_max_length=2)
    publish(channel, source, b"1", b"2", b"3")
    dead = graveyard.dig()[0]
    assert dead.body == b"1"
    assert dead.properties.headers["x-death"][0]["reason"] == "maxlen"
    assert take_all(channel, source) == [b"2", b"3"]


def test_what_becomes_the_head_after_its_time_dies_of_that(channel: BlockingChannel, graveyard: Graveyard) -> None:
    source = graveyard.source(x_max_length=2)
    publish(channel, source, b"head")
    publish(channel, source, b"timed", expiration="1")
    # This one is the head of its queue, and dies in time: then the other's time is over as well.
    publish(channel, graveyard.source(), b"clock", expiration="20")
    assert graveyard.dig()[0].body == b"clock"
    publish(channel, source, b"1", b"2")
    dead = graveyard.dig(2)
    reasons = [(each.body, each.properties.headers["x-death"][0]["reason"]) for each in dead]
    assert reasons == [(b"head", "maxlen"), (b"timed", "expired")]
    assert take_all(channel, source) == [b"1", b"2"]


def test_dead_letter_key_replaces_the_routing_key(channel: BlockingChannel, graveyard: Graveyard) -> None:
    source = graveyard.source(key="graves.new")
    channel.queue_bind(source, "amq.topic", f"{source}.#")
    channel.basic_publish("amq.topic", f"{source}.a", b"x", pika.BasicProperties(headers={"CC": ["copy"]}))
    kill(channel, source)
    dead = graveyard.dig()[0]
    assert dead.method.routing_key == "graves.new"
    (death,) = dead.properties.headers["x-death"]
    assert death["exchange"] == "amq.topic"
    assert death["routing-keys"] == [f"{source}.a", "copy"]
    assert "CC" not in dead.properties.headers  # a key of its own is the only key


def test_without_a_key_all_keys_are_used_again(channel: BlockingChannel, name: Name) -> None:
    exchange = name("dlx")
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    first, second = (channel.queue_declare(name(), exclusive=True).method.queue for _ in range(2))
    source = channel.queue_declare(name(), exclusive=True, arguments={"x-dead-letter-exchange": exchange}).method.queue
    channel.queue_bind(first, exchange, source)
    channel.queue_bind(second, exchange, "copy")
    publish(channel, source, b"x", headers={"CC": ["copy"]})
    kill(channel, source)
    assert receive(channel, first, 1)[0].body == receive(channel, second, 1)[0].body == b"x"


def test_default_exchange_as_dead_letter_exchange(channel: BlockingChannel, name: Name) -> None:
    dead = channel.queue_declare(name("dead"), exclusive=True).method.queue
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    source = channel.queue_declare(name("source"), exclusive=True, arguments=arguments).method.queue
    publish(channel, source, b"x")
    kill(channel, source)
    assert receive(channel, dead, 1)[0].body == b"x"


def test_missing_dead_letter_exchange_loses_quietly(channel: BlockingChannel, name: Name) -> None:
    arguments = {"x-dead-letter-exchange": name("never-declared")}
    source = channel.queue_declare(name("source"), exclusive=True, arguments=arguments).method.queue
    publish(channel, source, b"x", b"y")
    kill(channel, source)
    assert take_all(channel, source) == [b"y"]
    assert channel.is_open


def test_dying_again_in_the_same_way_counts(channel: BlockingChannel, graveyard: Graveyard) -> None:
    source = graveyard.source()
    publish(channel, source, b"x")
    for count in (1, 2, 3):
        kill(channel, source)
        dead = graveyard.dig()[0]
        (death,) = dead.properties.headers["x-death"]
        assert death["count"] == count
        channel.basic_publish("", source, dead.body, dead.properties)


def test_other_deaths_are_added_in_front(channel: BlockingChannel, graveyard: Graveyard) -> None:
    second = graveyard.source()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second, "x-message-ttl": 30}
    first = channel.queue_declare(graveyard.name("first"), exclusive=True, arguments=arguments).method.queue
    publish(channel, first, b"x")
    kill(channel, second)
    headers = graveyard.dig()[0].properties.headers
    assert [(each["queue"], each["reason"]) for each in headers["x-death"]] == [
        (second, "rejected"),
        (first, "expired"),
    ]
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (first, "expired")


def test_cycle_without_rejection_is_broken(channel: BlockingChannel, graveyard: Graveyard, name: Name) -> None:
    first = graveyard.source(
        x_message_ttl=20
    )  # its dead are seen in the graveyard, and come back to it through the second queue
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": first, "x-message-ttl": 20}
    second = channel.queue_declare(name("second"), exclusive=True, arguments=back).method.queue
    channel.queue_bind(second, graveyard.exchange)
    for body in (b"round", b"and round"):
        publish(channel, first, body)
        dead = graveyard.dig()[0]
        assert (dead.body, len(dead.properties.headers["x-death"])) == (body, 1)
        wait_depth(channel, second, 0)
    assert take_all(channel, first) == take_all(channel, graveyard.queue) == []


def test_cycle_with_rejection_goes_on(channel: BlockingChannel, name: Name) -> None:
    waiting, working = name("waiting"), name("working")
    retry = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": working, "x-message-ttl": 20}
    channel.queue_declare(waiting, exclusive=True, arguments=retry)
    channel.queue_declare(
        working, exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": waiting}
    )
    publish(channel, working, b"job")
    for attempt in range(4):
        delivery = receive(channel, working, 1, auto_ack=False)[0]
        deaths = (delivery.properties.headers or {}).get("x-death", [])
        assert [each["count"] for each in deaths] == ([attempt, attempt] if attempt else [])
        channel.basic_reject(delivery.method.delivery_tag, requeue=False)


def test_delivery_limit_ends_redelivery(channel: BlockingChannel, graveyard: Graveyard, name: Name) -> None:
    queue = name("limited")
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2, "x-dead-letter-exchange": graveyard.exchange}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.confirm_delivery()
    publish(channel, queue, b"poison", delivery_mode=2)
    counts = []
    for _ in range(3):
        delivery = receive(channel, queue, 1, auto_ack=False)[0]
        counts.append((delivery.properties.headers or {}).get("x-delivery-count"))
        channel.basic_reject(delivery.method.delivery_tag, requeue=True)
    dead = graveyard.dig()[0]
    assert dead.properties.headers["x-death"][0]["reason"] == "delivery_limit"
    assert counts[0] in (None, 0)
    assert counts[1:] == [1, 2]
    channel.queue_delete(queue)
