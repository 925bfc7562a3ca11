"""queue.declare and queue.delete, decided as RabbitMQ decides them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from unit.broker.desk import OTHER_CONN, Desk, delete_queue, queue
from weft.model.changes import Accept, DeclareQueue, DeleteQueue, Refuse, Stream
from weft.model.events import ConnectionClosed, QueueDeclare, QueueUnused, TopologyRequested

LOCKED = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'"


def test_a_new_queue(desk: Desk) -> None:
    assert desk.ask(queue("q")) == [DeclareQueue("/", "q"), Accept(5, name="q")]


def test_declaring_again_counts(desk: Desk) -> None:
    desk.ask(queue("q", durable=True, x_max_length=5))
    desk.stats["q"] = (3, 9, 2)
    expected = [Accept(5, name="q", messages=3, consumers=2)]
    assert desk.ask(queue("q", durable=True, x_max_length=5)) == expected
    assert desk.ask(queue("q", durable=True, x_max_length=5, x_whatever=1)) == expected
    assert desk.ask(queue("q", passive=True)) == expected


def test_passive_on_missing(desk: Desk) -> None:
    assert desk.fail(queue("q", passive=True)) == (404, "NOT_FOUND - no queue 'q' in vhost '/'")
    assert desk.fail(queue("amq.x", passive=True)) == (404, "NOT_FOUND - no queue 'amq.x' in vhost '/'")


def test_server_named(desk: Desk) -> None:
    names = {desk.succeed(queue("", exclusive=True)).name for _ in range(100)}
    assert len(names) == 100
    assert all(re.fullmatch(r"amq\.gen-[\w-]{22}", name) for name in names)
    assert names == desk.kernel.queue_names()


def test_reserved_names(desk: Desk) -> None:
    text = "ACCESS_REFUSED - queue name 'amq.foo' contains reserved prefix 'amq.*'"
    assert desk.fail(queue("amq.foo")) == (403, text)
    assert desk.fail(queue("amq.gen-foo"))[0] == 403, "whoever gives a name may not give one that looks like the node's"
    assert desk.fail(queue("é" * 128))[0] == 406


def test_line_ends_are_removed(desk: Desk) -> None:
    assert desk.succeed(queue("a\r\nb\n")).name == "ab"


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ({}, {"durable": True}, "'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'"),
        ({"auto_delete": True}, {}, "'auto_delete' for queue 'q' in vhost '/': received 'false' but current is 'true'"),
        (
            {"x_message_ttl": 1000},
            {"x_message_ttl": 5},
            "'x-message-ttl' for queue 'q' in vhost '/': received '5' but current is '1000'",
        ),
        (
            {"x_message_ttl": 1000},
            {},
            "'x-message-ttl' for queue 'q' in vhost '/': received none but current is"
            " the value '1000' of type 'signedint'",
        ),
        (
            {},
            {"x_max_length": 2**40},
            "'x-max-length' for queue 'q' in vhost '/': received the value '1099511627776' of type 'long'"
            " but current is none",
        ),
        (
            {"durable": True},
            {"durable": True, "x_queue_type": "quorum"},
            "'x-queue-type' for queue 'q' in vhost '/': received 'quorum' but current is 'classic'",
        ),
        (
            {"x_max_length": 1},
            {"x_max_length": True},
            "'x-max-length' for queue 'q' in vhost '/': received 'true' but current is '1'",
        ),
    ],
)
def test_redeclaring_differently(desk: Desk, first: Any, second: Any, text: str) -> None:
    desk.succeed(queue("q", **first))
    assert desk.fail(queue("q", **second)) == (406, f"PRECONDITION_FAILED - inequivalent arg {text}")


def test_classic_is_the_default_type(desk: Desk) -> None:
    desk.succeed(queue("q", x_queue_type="classic"))
    desk.succeed(queue("q"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"x_message_ttl": -1}, "'x-message-ttl'"),
        ({"x_message_ttl": "x"}, "expected integer, got longstr"),
        ({"x_message_ttl": True}, "expected integer, got bool"),
        ({"x_message_ttl": 1.5}, "expected integer, got double"),
        ({"x_message_ttl": None}, "expected integer, got void"),
        ({"x_message_ttl": [1]}, "expected integer, got array"),
        ({"x_message_ttl": {}}, "expected integer, got table"),
        ({"x_message_ttl": b""}, "expected integer, got binary"),
        ({"x_message_ttl": datetime(2024, 1, 1, tzinfo=UTC)}, "expected integer, got timestamp"),
        ({"x_message_ttl": 2**40}, "got 1099511627776"),
        ({"x_expires": 0}, "'x-expires'"),
        ({"x_max_length": -1}, "'x-max-length'"),
        ({"x_max_length_bytes": 2**63}, "'x-max-length-bytes'"),
        ({"x_overflow": "explode"}, "expected one of drop-head, reject-publish, reject-publish-dlx"),
        ({"x_overflow": [1]}, "expected one of"),
        ({"x_ack": "never"}, "expected one of node, end-to-end"),
        ({"x_dead_letter_exchange": 1}, "expected text, got signedint"),
        ({"x_dead_letter_routing_key": "k"}, "no dead letter exchange"),
        ({"x_max_priority": 256}, "'x-max-priority'"),
        ({"x_single_active_consumer": 1}, "expected bool, got signedint"),
        ({"x_delivery_limit": -2}, "'x-delivery-limit'"),
        ({"x_delivery_limit": 2**32}, "'x-delivery-limit'"),
        ({"x_queue_type": "zz"}, "unsupported queue type 'zz'"),
        ({"x_queue_type": 5}, "expected text, got signedint"),
        ({"x_queue_type": "quorum", "durable": True, "x_max_priority": 3}, "not for queue type quorum"),
        ({"x_partitions": 2**63 - 1}, "invalid arg 'x-partitions' for queue 'q' in vhost '/': only for queue type st"),
        ({"x_queue_type": "quorum", "durable": True, "x_partitions": 3}, "only for queue type stream"),
        ({"x_partition_of": "other"}, "only for queue type stream"),
    ],
)
def test_arguments_that_make_no_sense(desk: Desk, arguments: Any, complaint: str) -> None:
    code, text = desk.fail(queue("q", **arguments))
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - invalid arg 'x-")
    assert "for queue 'q' in vhost '/': " in text
    assert complaint in text


def test_a_virtual_host_gives_its_type_to_queues_that_name_none(desk: Desk) -> None:
    desk.ask(queue("old", durable=True))
    desk.access.default_queue_type = "quorum"
    for name, flags in (
        ("new", {"durable": True}),
        ("fleeting", {}),
        ("unused", {"durable": True, "auto_delete": True}),
    ):
        desk.succeed(queue(name, **flags))
    desk.succeed(queue("named", durable=True, x_queue_type="classic"))
    types = {one.name: one.arguments.get("x-queue-type") for one in desk.topology.queues("/")}
    assert types == {"old": None, "new": "quorum", "fleeting": None, "unused": None, "named": "classic"}
    for name in ("old", "new", "named"):
        desk.succeed(queue(name, durable=True))  # the one that is there is meant
    assert desk.fail(queue("new", durable=True, x_queue_type="classic"))[0] == 406


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        ({}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
    ],
)
def test_quorum_queues_are_durable_and_shared(desk: Desk, flags: Any, wrong: str) -> None:
    code, text = desk.fail(queue("q", x_queue_type="quorum", **flags))
    assert (code, text) == (
        406,
        f"PRECONDITION_FAILED - invalid property '{wrong}' for queue 'q' in vhost '/' of type quorum",
    )


def test_a_stream_is_a_queue_that_keeps(desk: Desk) -> None:
    arguments = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1000, "x-max-length": 10}
    more = {"x-stream-max-segment-size-bytes": 500}
    (row, _) = desk.ask(QueueDeclare("s", False, True, False, False, arguments | more))
    assert isinstance(row, DeclareQueue)
    assert row.stream == Stream(age_ms_max=7 * 86_400_000, bytes_max=1000, count_max=10)
    assert row.durable
    assert row.length_max is None
    assert row.length_bytes_max is None
    assert desk.fail(QueueDeclare("s", False, True, False, False, arguments | {"x-max-age": "8D"}))[0] == 406


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-age", "7"),
        ("x-max-age", "0s"),
        ("x-max-age", 7),
        ("x-stream-max-segment-size-bytes", -1),
        ("x-stream-filter-size-bytes", 8),
        ("x-message-ttl", 1000),
        ("x-dead-letter-exchange", "amq.direct"),
        ("x-max-priority", 3),
        ("x-ack", "end-to-end"),
    ],
)
def test_what_a_stream_cannot_have_is_refused(desk: Desk, name: str, value: object) -> None:
    code, text = desk.fail(QueueDeclare("s", False, True, False, False, {"x-queue-type": "stream", name: value}))
    assert code == 406
    assert text.startswith(f"PRECONDITION_FAILED - invalid arg '{name}' for queue 's' in vhost '/': ")


@pytest.mark.parametrize("wrong", ["non-durable", "exclusive", "auto-delete"])
def test_a_stream_outlives_everything(desk: Desk, wrong: str) -> None:
    is_left = wrong == "auto-delete"
    operation = queue("s", durable=is_left, exclusive=wrong == "exclusive", auto_delete=is_left, x_queue_type="stream")
    code, text = desk.fail(operation)
    assert (code, text) == (
        406,
        f"PRECONDITION_FAILED - invalid property '{wrong}' for queue 's' in vhost '/' of type stream",
    )


@pytest.mark.parametrize(
    ("arguments", "row"),
    [
        ({"x_message_ttl": 0}, {"message_ttl_ms": 0}),
        ({"x_expires": 1}, {"expires_ms": 1}),
        ({"x_max_length": 0, "x_max_length_bytes": 9}, {"length_max": 0, "length_bytes_max": 9}),
        ({"x_overflow": "reject-publish-dlx"}, {"overflow": "reject-publish-dlx"}),
        (
            {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "k"},
            {"dead_letter_exchange": "", "dead_letter_key": "k"},
        ),
        ({"x_max_priority": 10}, {"priority_max": 10}),
        ({"x_single_active_consumer": True}, {"single_active": True}),
        ({"x_delivery_limit": 3}, {"delivery_limit": 3}),
        ({"x_delivery_limit": -1}, {}),
        ({"durable": True, "x_queue_type": "quorum"}, {"durable": True, "delivery_limit": 20}),
        ({"durable": True, "x_queue_type": "quorum", "x_delivery_limit": -1}, {"durable": True}),
        ({"durable": True, "x_queue_type": "quorum", "x_delivery_limit": 7}, {"durable": True, "delivery_limit": 7}),
        ({"x_queue_mode": "lazy", "x_queue_version": 2, "x_anything": [1], "foo": None}, {}),
        ({"auto_delete": True}, {"auto_delete": True}),
        ({"exclusive": True}, {"owner": 7}),
        ({"exclusive": True, "durable": True}, {"owner": 7}),
    ],
)
def test_what_the_kernel_is_told(desk: Desk, arguments: Any, row: Any) -> None:
    assert desk.ask(queue("q", **arguments))[0] == DeclareQueue("/", "q", **row)


def test_redeclaring_an_expiring_queue_is_use(desk: Desk) -> None:
    desk.ask(queue("q", x_expires=1000))
    row = DeclareQueue("/", "q", expires_ms=1000)
    assert desk.ask(queue("q", x_expires=1000)) == [row, Accept(5, name="q")]
    assert desk.ask(queue("q", passive=True)) == [row, Accept(5, name="q")]


# exclusive queues


def test_an_exclusive_queue_is_locked_for_others(desk: Desk) -> None:
    desk.succeed(queue("q", exclusive=True))
    for operation in (queue("q", exclusive=True), queue("q", passive=True), queue("q"), delete_queue("q")):
        code, text = desk.fail(operation, OTHER_CONN)
        assert code == 405
        assert text.startswith(LOCKED)
    desk.succeed(queue("q", exclusive=True))
    desk.succeed(queue("q", exclusive=True, durable=True))
    desk.succeed(queue("q", passive=True))
    desk.succeed(delete_queue("q"))


def test_exclusive_or_not_must_be_the_same(desk: Desk) -> None:
    desk.succeed(queue("q"))
    assert desk.fail(queue("q", exclusive=True))[0] == 405
    desk.succeed(queue("e", exclusive=True))
    assert desk.fail(queue("e"))[0] == 405


def test_exclusive_queues_die_with_their_connection(desk: Desk) -> None:
    desk.succeed(queue("q1", exclusive=True))
    desk.succeed(queue("q2", exclusive=True))
    desk.succeed(queue("gone", exclusive=True))
    desk.succeed(delete_queue("gone"))
    desk.succeed(queue("stays"))
    desk.succeed(queue("other", exclusive=True), OTHER_CONN)
    assert desk.tell(ConnectionClosed(7, 1, "bye")) == [DeleteQueue("/", "q1"), DeleteQueue("/", "q2")]
    assert desk.kernel.queue_names() == {"stays", "other"}
    assert desk.tell(ConnectionClosed(7, 1, "bye")) == []


# deletion


def test_deleting(desk: Desk) -> None:
    desk.ask(queue("q"))
    desk.stats["q"] = (4, 0, 0)
    assert desk.ask(delete_queue("q")) == [DeleteQueue("/", "q"), Accept(5, name="q", messages=4)]
    assert desk.ask(delete_queue("q")) == [Accept(5)]


def test_deleting_with_conditions(desk: Desk) -> None:
    desk.ask(queue("q"))
    desk.stats["q"] = (1, 0, 1)
    assert desk.fail(delete_queue("q", if_empty=True)) == (
        406,
        "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty",
    )
    assert desk.fail(delete_queue("q", if_unused=True)) == (406, "PRECONDITION_FAILED - queue 'q' in vhost '/' in use")
    desk.stats["q"] = (0, 5, 0)
    desk.succeed(delete_queue("q", if_unused=True, if_empty=True))


@pytest.mark.parametrize("cause", ["auto-delete", "expired"])
def test_an_unused_queue_goes(desk: Desk, cause: Any) -> None:
    desk.ask(queue("q", auto_delete=True))
    desk.stats["q"] = (9, 0, 0)
    assert desk.tell(QueueUnused("/", "q", cause)) == [DeleteQueue("/", "q")]
    assert desk.tell(QueueUnused("/", "q", cause)) == []
    assert desk.tell(QueueUnused("nowhere", "q", cause)) == []


def test_an_unused_queue_stays_if_someone_came_back(desk: Desk) -> None:
    desk.ask(queue("q", auto_delete=True))
    desk.stats["q"] = (0, 0, 1)
    assert desk.tell(QueueUnused("/", "q", "auto-delete")) == []


# direct reply-to


def test_the_reply_queue_is_always_there(desk: Desk) -> None:
    expected = [Accept(5, name="amq.rabbitmq.reply-to", consumers=1)]
    assert desk.ask(queue("amq.rabbitmq.reply-to", passive=True)) == expected
    assert desk.ask(queue("amq.rabbitmq.reply-to")) == expected


def test_one_end_of_it_is_there_while_its_peer_is(desk: Desk) -> None:
    name = "amq.rabbitmq.reply-to.g1h2"
    assert desk.fail(queue(name, passive=True))[0] == 404
    desk.stats[name] = (0, 0, 1)
    assert desk.succeed(queue(name, passive=True)).consumers == 1


# permissions


@pytest.mark.parametrize("operation", [queue("q"), delete_queue("q")])
def test_configure_is_needed(desk: Desk, operation: Any) -> None:
    desk.access.refused = {("configure", "queue", "q")}
    assert desk.fail(operation) == (403, "ACCESS_REFUSED - configure access to queue 'q'")


def test_passive_needs_no_permission(desk: Desk) -> None:
    desk.ask(queue("q"))
    desk.access.refused = {(operation, "queue", "*") for operation in ("configure", "read", "write")}
    desk.succeed(queue("q", passive=True))


@pytest.mark.parametrize("refused", [("read", "queue", "q"), ("write", "exchange", "dead")])
def test_dead_lettering_needs_both_ends(desk: Desk, refused: tuple[str, str, str]) -> None:
    desk.access.refused = {refused}
    assert desk.fail(queue("q", x_dead_letter_exchange="dead"))[0] == 403
    desk.succeed(queue("other"))


def test_a_gone_principal_is_refused(desk: Desk) -> None:
    assert desk.tell(TopologyRequested(5, 7, 99, queue("q"))) == [Refuse(5, 403, "ACCESS_REFUSED - gone")]


def test_a_full_virtual_host_takes_no_queue(desk: Desk) -> None:
    desk.succeed(queue("a"))
    desk.access.queue_count_max = 2
    desk.succeed(queue("b"))
    code, text = desk.fail(queue("c"))
    assert (code, "queue limit in vhost '/' (2) is reached" in text) == (406, True)
    desk.succeed(queue("a"))
    desk.succeed(delete_queue("a"))
    desk.succeed(queue("c"))
