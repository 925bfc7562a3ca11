"""The idempotency barrier as clients of both protocols see it.

Owns publishes that are repeated: to exchanges and queues, by message id, header and body, inside and outside of
transactions and windows. pika and Qpid Proton publish; what is in the queue afterwards is counted, and every duplicate
must have been confirmed. It must not know how ids are remembered. Rules: docs/guides/idempotency.md.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Delivery, Message, ulong

from .proton10 import Client10, data
from .support import channel_error, depth, publish, take_all, wait_depth

pytestmark = pytest.mark.weft_only
Name = Callable[..., str]
BY_ID = {"x-barrier": "message-id"}


def guarded_queue(channel: BlockingChannel, name: Name, **arguments: Any) -> str:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    return str(channel.queue_declare(name("queue"), exclusive=True, arguments=named or BY_ID).method.queue)


def guarded_exchange(channel: BlockingChannel, name: Name, kind: str = "direct", **arguments: Any) -> tuple[str, str]:
    """An exchange with a barrier and a queue behind it."""
    exchange, queue = name("exchange"), channel.queue_declare("", exclusive=True).method.queue
    named = {key.replace("_", "-"): value for key, value in arguments.items()} or BY_ID
    channel.exchange_declare(exchange, kind, auto_delete=True, arguments=named)
    channel.queue_bind(queue, exchange, "key")
    return exchange, queue


def send(channel: BlockingChannel, exchange: str, body: bytes, key: str = "key", **properties: Any) -> None:
    channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties), mandatory=True)


def test_a_queue_takes_a_message_id_once_and_confirms_it_every_time(channel: BlockingChannel, name: Name) -> None:
    queue = guarded_queue(channel, name)
    channel.confirm_delivery()
    for number in (1, 2, 1, 1, 3, 2):
        publish(channel, queue, b"%d" % number, message_id=f"m-{number}")
    assert take_all(channel, queue) == [b"1", b"2", b"3"]
    # What was consumed is still known.
    publish(channel, queue, b"again", message_id="m-1")
    assert take_all(channel, queue) == []


def test_an_exchange_lets_pass_once_and_a_duplicate_is_not_unroutable(channel: BlockingChannel, name: Name) -> None:
    exchange, queue = guarded_exchange(channel, name)
    channel.confirm_delivery()
    for body in (b"first", b"second", b"third"):
        send(channel, exchange, body, message_id="m")  # would raise UnroutableError if it were returned
    send(channel, exchange, b"other", message_id="n")
    assert take_all(channel, queue) == [b"first", b"other"]


def test_messages_without_the_key_pass_unless_their_body_speaks_for_them(channel: BlockingChannel, name: Name) -> None:
    passing, queue = guarded_queue(channel, name), name("body")
    channel.queue_declare(queue, exclusive=True, arguments=BY_ID | {"x-barrier-missing": "body"})
    for where in (passing, queue):
        publish(channel, where, b"a", b"a", b"b")
        publish(channel, where, b"a", b"c", message_id="m")
    wait_depth(channel, passing, 4)
    assert take_all(channel, passing) == [b"a", b"a", b"b", b"a"]
    assert take_all(channel, queue) == [b"a", b"b", b"a"]


def test_a_header_is_compared_by_value_and_type(channel: BlockingChannel, name: Name) -> None:
    queue = guarded_queue(channel, name, x_barrier="header:order")
    for value in ("5", 5, "5", 5, True, b"5", "", "", None):
        publish(channel, queue, repr(value).encode(), headers={"order": value})
    wait_depth(channel, queue, 5)
    assert take_all(channel, queue) == [b"'5'", b"5", b"True", b"''", b"None"]


def test_the_body_is_compared_whole_however_large(channel: BlockingChannel, name: Name) -> None:
    queue = guarded_queue(channel, name, x_barrier="body")
    large = bytes(range(256)) * 1_200  # more than two frames
    publish(channel, queue, large, large, large[:-1] + b"x", b"", b"")
    wait_depth(channel, queue, 3)
    assert take_all(channel, queue) == [large, large[:-1] + b"x", b""]


def test_both_protocols_share_an_identity(client10: Client10, channel: BlockingChannel, name: Name) -> None:
    queue = name("queue")
    channel.queue_declare(queue, auto_delete=False, arguments=BY_ID | {"x-expires": 60_000})
    sender, number = client10.sender(queue), uuid.uuid4()
    publish(channel, queue, b"text", message_id="m-1")
    publish(channel, queue, b"number", message_id="17")
    publish(channel, queue, b"uuid", message_id=str(number))
    wait_depth(channel, queue, 3)
    for ident in ("m-1", ulong(17), number, "m-2", "m-2"):
        assert client10.send(sender, data(b"from 1.0", id=ident)) == Delivery.ACCEPTED
    assert len(take_all(channel, queue)) == 4
    for properties in ({"k": "v"}, {"k": "v"}, {"k": "w"}):
        message = Message(body=b"x", properties=properties)
        assert client10.send(client10.sender(queue), message) == Delivery.ACCEPTED
    assert len(take_all(channel, queue)) == 3


def test_an_id_is_forgotten_after_its_window(channel: BlockingChannel, name: Name) -> None:
    queue = guarded_queue(channel, name, x_barrier="message-id", x_barrier_window=100)
    publish(channel, queue, b"1", b"2", message_id="m")
    time.sleep(0.3)  # the window itself
    publish(channel, queue, b"3", b"4", message_id="m")
    wait_depth(channel, queue, 2)
    assert take_all(channel, queue) == [b"1", b"3"]


def test_the_oldest_id_is_forgotten_first(channel: BlockingChannel, name: Name) -> None:
    queue = guarded_queue(channel, name, x_barrier="message-id", x_barrier_ids_max=2)
    for ident in ("a", "b", "a", "c", "a", "c"):
        publish(channel, queue, ident.encode(), message_id=ident)
    wait_depth(channel, queue, 4)
    assert take_all(channel, queue) == [b"a", b"b", b"c", b"a"]


def test_what_a_full_queue_refused_may_come_again(channel: BlockingChannel, name: Name) -> None:
    limited = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = guarded_queue(channel, name, **(BY_ID | limited))
    exchange = name("exchange")
    channel.exchange_declare(exchange, "fanout", auto_delete=True, arguments=BY_ID)
    channel.queue_bind(queue, exchange)
    channel.confirm_delivery()
    send(channel, exchange, b"1", message_id="m-1")
    for _ in range(2):
        with pytest.raises(pika.exceptions.NackError):
            send(channel, exchange, b"2", message_id="m-2")
    assert take_all(channel, queue) == [b"1"]
    send(channel, exchange, b"2", message_id="m-2")
    send(channel, exchange, b"2", message_id="m-2")
    assert take_all(channel, queue) == [b"2"]


def test_what_found_no_queue_may_come_again(channel: BlockingChannel, name: Name) -> None:
    exchange, queue = guarded_exchange(channel, name)
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        send(channel, exchange, b"x", "other key", message_id="m")
    channel.queue_bind(queue, exchange, "other key")
    send(channel, exchange, b"x", "other key", message_id="m")
    assert take_all(channel, queue) == [b"x"]


def test_a_transaction_counts_when_it_is_committed(channel: BlockingChannel, name: Name) -> None:
    exchange, queue = guarded_exchange(channel, name)
    channel.tx_select()
    send(channel, exchange, b"rolled back", message_id="m")
    channel.tx_rollback()
    for body in (b"1", b"2"):
        send(channel, exchange, body, message_id="m")
    channel.tx_commit()
    send(channel, exchange, b"3", message_id="m")
    channel.tx_commit()
    assert take_all(channel, queue) == [b"1"]


def test_a_dead_letter_comes_back_through_the_barrier(channel: BlockingChannel, name: Name) -> None:
    exchange, queue = guarded_exchange(channel, name)
    arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "key", "x-message-ttl": 1}
    waiting = channel.queue_declare("", exclusive=True, arguments=arguments | BY_ID).method.queue
    send(channel, exchange, b"x", message_id="m")
    publish(channel, waiting, b"x", message_id="m")
    wait_depth(channel, queue, 2)


def test_a_barrier_behind_an_exchange_cuts_off_its_own_branch(channel: BlockingChannel, name: Name) -> None:
    exchange, queue = guarded_exchange(channel, name)
    front, open_queue = name("front"), channel.queue_declare("", exclusive=True).method.queue
    channel.exchange_declare(front, "fanout", auto_delete=True)
    channel.exchange_bind(exchange, front)
    channel.queue_bind(open_queue, front)
    for body in (b"1", b"2"):
        send(channel, front, body, message_id="m")
    wait_depth(channel, open_queue, 2)
    assert take_all(channel, queue) == [b"1"]


def test_a_delayed_message_is_looked_at_when_it_is_published(channel: BlockingChannel, name: Name) -> None:
    exchange = name("delayed")
    arguments = BY_ID | {"x-delayed-type": "fanout"}
    channel.exchange_declare(exchange, "x-delayed-message", auto_delete=True, arguments=arguments)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, exchange)
    for body in (b"1", b"2"):
        send(channel, exchange, body, message_id="m", headers={"x-delay": 50})
    send(channel, exchange, b"3", message_id="n", headers={"x-delay": 60})
    wait_depth(channel, queue, 2)
    assert take_all(channel, queue) == [b"1", b"3"]


@pytest.mark.parametrize(
    "arguments", [{"x-message-deduplication": True}, {"x-message-deduplication": True, "x-deduplication-header": "own"}]
)
def test_the_words_of_the_plugin_on_a_queue(channel: BlockingChannel, name: Name, arguments: dict[str, Any]) -> None:
    queue = channel.queue_declare(name("queue"), exclusive=True, arguments=arguments).method.queue
    header = arguments.get("x-deduplication-header", "x-deduplication-header")
    for value in ("a", "b", "a"):
        publish(channel, queue, value.encode(), headers={header: value})
    wait_depth(channel, queue, 2)


def test_the_plugin_s_exchange_type_matches_as_fanout(channel: BlockingChannel, name: Name) -> None:
    exchange, queue = guarded_exchange(channel, name, "x-message-deduplication", x_cache_size=2, x_cache_ttl=60_000)
    for value in ("a", "b", "a", "c", "a"):
        send(channel, exchange, value.encode(), "whatever", headers={"x-deduplication-header": value})
    wait_depth(channel, queue, 4)


@pytest.mark.parametrize(
    ("name_", "value"),
    [
        ("x-barrier", "messageid"),
        ("x-barrier", "header:"),
        ("x-barrier", 1),
        ("x-barrier-window", 0),
        ("x-barrier-ids-max", True),
        ("x-barrier-missing", "drop"),
        ("x-message-deduplication", "yes"),
        ("x-deduplication-header", 3),
    ],
)
def test_what_makes_no_sense_is_refused(connection: Any, name: Name, name_: str, value: object) -> None:
    with channel_error(406, f"invalid arg '{name_}'"):
        connection.channel().queue_declare(name("queue"), exclusive=True, arguments=BY_ID | {name_: value})
    with channel_error(406, f"invalid arg '{name_}'"):
        connection.channel().exchange_declare(name("exchange"), arguments=BY_ID | {name_: value})


def test_a_barrier_cannot_be_declared_differently(connection: Any, channel: BlockingChannel, name: Name) -> None:
    queue = guarded_queue(channel, name)
    with channel_error(406, "inequivalent arg 'x-barrier'"):
        connection.channel().queue_declare(queue, exclusive=True)
    assert depth(channel, queue) == 0
