"""What the broker answers when a client breaks a rule: which code, for which method, closing what.

Owns the two error tables of AMQP 0-9-1: soft errors close a channel and leave the connection, hard errors close the
connection. Each row is a request and the reply code with the class and method it must name. The rows were taken from
the specification (section 1.2, reply codes) and checked on RabbitMQ. No library is in between, since libraries refuse
to break rules.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from pika import frame, spec

from .raw091 import RawConnection, method_payload, raw_frame

S = spec
EMPTY = spec.BasicProperties()
Send = Callable[[RawConnection], Any]


def declare(peer: RawConnection) -> None:
    peer.call(1, S.Queue.Declare(queue="", exclusive=True))
    peer.expect(S.Queue.DeclareOk)


def call(*methods: Any) -> Send:
    return lambda peer: [peer.call(1, method) for method in methods]


def bound(*methods: Any) -> Send:
    return lambda peer: (declare(peer), [peer.call(1, method) for method in methods])


def publish(properties: spec.BasicProperties = EMPTY, **options: Any) -> Send:
    options = {"exchange": "", "routing_key": "wire-errors.none", **options}
    return lambda peer: peer.publish(1, S.Basic.Publish(**options), b"x", properties)


def declare_with(**arguments: Any) -> Send:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    return call(S.Queue.Declare(queue="wire-errors.bad", arguments=named))


SOFT: list[tuple[str, Send, int, int, int, str]] = [
    ("consume-missing", call(S.Basic.Consume(queue="nope")), 404, 60, 20, "no queue 'nope' in vhost '/'"),
    ("get-missing", call(S.Basic.Get(queue="nope")), 404, 60, 70, "no queue 'nope' in vhost '/'"),
    ("purge-missing", call(S.Queue.Purge(queue="nope")), 404, 50, 30, "no queue 'nope' in vhost '/'"),
    ("bind-missing-queue", call(S.Queue.Bind(queue="nope", exchange="amq.direct")), 404, 50, 20, "no queue 'nope'"),
    ("bind-missing-exchange", bound(S.Queue.Bind(queue="", exchange="nope")), 404, 50, 20, "no exchange 'nope'"),
    ("passive-queue", call(S.Queue.Declare(queue="nope", passive=True)), 404, 50, 10, "no queue 'nope' in vhost '/'"),
    ("passive-exchange", call(S.Exchange.Declare(exchange="nope", passive=True)), 404, 40, 10, "no exchange 'nope'"),
    ("publish-missing", publish(exchange="nope"), 404, 60, 40, "no exchange 'nope' in vhost '/'"),
    ("e2e-missing", call(S.Exchange.Bind(destination="nope", source="amq.direct")), 404, 40, 30, "no exchange 'nope'"),
    ("get-unnamed", call(S.Basic.Get(queue="")), 404, 60, 70, "no previously declared queue"),
    ("consume-unnamed", call(S.Basic.Consume(queue="")), 404, 60, 20, "no previously declared queue"),
    ("reserved-queue", call(S.Queue.Declare(queue="amq.mine")), 403, 50, 10, "reserved prefix 'amq.*'"),
    ("reserved-exchange", call(S.Exchange.Declare(exchange="amq.mine")), 403, 40, 10, "reserved prefix 'amq.*'"),
    ("delete-system", call(S.Exchange.Delete(exchange="amq.direct")), 403, 40, 20, "amq.direct"),
    ("delete-default", call(S.Exchange.Delete(exchange="")), 403, 40, 20, "default exchange"),
    ("declare-default", call(S.Exchange.Declare(exchange="")), 403, 40, 10, "default exchange"),
    ("bind-default", bound(S.Queue.Bind(queue="", exchange="", routing_key="x")), 403, 50, 20, "default exchange"),
    ("unbind-default", bound(S.Queue.Unbind(queue="", exchange="", routing_key="x")), 403, 50, 50, "default"),
    ("e2e-default", call(S.Exchange.Bind(destination="", source="amq.direct")), 403, 40, 30, "default exchange"),
    ("exchange-type", call(S.Exchange.Declare(exchange="amq.direct", type="fanout")), 406, 40, 10, "inequivalent arg"),
    ("ack-unknown", call(S.Basic.Ack(delivery_tag=42)), 406, 60, 80, "unknown delivery tag 42"),
    ("nack-unknown", call(S.Basic.Nack(delivery_tag=42)), 406, 60, 120, "unknown delivery tag 42"),
    ("reject-unknown", call(S.Basic.Reject(delivery_tag=42)), 406, 60, 90, "unknown delivery tag 42"),
    ("ack-zero", call(S.Basic.Ack(delivery_tag=0)), 406, 60, 80, "unknown delivery tag 0"),
    ("commit-outside", call(S.Tx.Commit()), 406, 90, 20, "channel is not transactional"),
    ("rollback-outside", call(S.Tx.Rollback()), 406, 90, 30, "channel is not transactional"),
    ("expiration", publish(S.BasicProperties(expiration="soon")), 406, 60, 40, "invalid expiration 'soon'"),
    ("user-id", publish(S.BasicProperties(user_id="mallory")), 406, 60, 40, "user_id property set to 'mallory'"),
    ("cc-not-a-list", publish(S.BasicProperties(headers={"CC": "one"})), 406, 60, 40, "CC"),
    ("reply-to-acked", call(S.Basic.Consume(queue="amq.rabbitmq.reply-to")), 406, 60, 20, "reply consumer"),
    ("reply-to-unread", publish(S.BasicProperties(reply_to="amq.rabbitmq.reply-to")), 406, 60, 40, "reply consumer"),
    ("ttl-negative", declare_with(x_message_ttl=-1), 406, 50, 10, "invalid arg 'x-message-ttl'"),
    ("ttl-text", declare_with(x_message_ttl="1"), 406, 50, 10, "invalid arg 'x-message-ttl'"),
    ("expires-zero", declare_with(x_expires=0), 406, 50, 10, "invalid arg 'x-expires'"),
    ("max-length-negative", declare_with(x_max_length=-1), 406, 50, 10, "invalid arg 'x-max-length'"),
    ("overflow-unknown", declare_with(x_overflow="burst"), 406, 50, 10, "invalid arg 'x-overflow'"),
    ("priority-too-high", declare_with(x_max_priority=256), 406, 50, 10, "invalid arg 'x-max-priority'"),
    ("queue-type-unknown", declare_with(x_queue_type="tape"), 406, 50, 10, "invalid arg 'x-queue-type'"),
    ("dead-key-alone", declare_with(x_dead_letter_routing_key="k"), 406, 50, 10, "invalid arg"),
    (
        "x-match-unknown",
        bound(S.Queue.Bind(queue="", exchange="amq.headers", arguments={"x-match": "some"})),
        406, 50, 20, "x-match",
    ),
    (
        "consumer-priority-text",
        bound(S.Basic.Consume(queue="", arguments={"x-priority": "high"})),
        406, 60, 20, "invalid arg 'x-priority'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("send", "code", "class_id", "method_id", "text"), [pytest.param(*row[1:], id=row[0]) for row in SOFT]
)
def test_soft_error_closes_the_channel_only(
    raw: RawConnection, send: Send, code: int, class_id: int, method_id: int, text: str
) -> None:
    send(raw)
    close = raw.closed_channel(1)
    assert (close.reply_code, close.class_id, close.method_id) == (code, class_id, method_id), close
    assert text in close.reply_text
    raw.open_channel(1)  # the connection lives, and even the number can be used again


@pytest.mark.parametrize(
    ("first", "second", "class_id"),
    [(S.Tx.Select(), S.Confirm.Select(), 85), (S.Confirm.Select(), S.Tx.Select(), 90)],
    ids=["confirm-after-tx", "tx-after-confirm"],
)
def test_a_channel_cannot_be_transactional_and_confirming(
    raw: RawConnection, first: Any, second: Any, class_id: int
) -> None:
    raw.call(1, first)
    assert raw.read().method.synchronous is False
    raw.call(1, second)
    close = raw.closed_channel(1)
    assert (close.reply_code, close.class_id, close.method_id) == (406, class_id, 10)


def publish_then(*frames: bytes) -> Send:
    start = S.Basic.Publish(exchange="", routing_key="wire-errors.none")
    return lambda peer: (peer.call(1, start), [peer.send(data) for data in frames])


HARD: list[tuple[str, Send, int, int, int]] = [
    ("channel-not-open", lambda peer: peer.call(7, S.Basic.Qos()), 504, 60, 10),
    ("closing-what-is-not-open", lambda peer: peer.call(7, S.Channel.Close(200, "", 0, 0)), 504, 20, 40),
    ("channel-opened-twice", call(S.Channel.Open()), 504, 20, 10),
    ("channel-zero", lambda peer: peer.call(0, S.Channel.Open()), 504, 20, 10),
    ("basic-on-channel-zero", lambda peer: peer.call(0, S.Basic.Qos()), 504, 60, 10),
    ("start-ok-late", lambda peer: peer.login(), 504, 10, 11),
    ("tune-ok-late", lambda peer: peer.call(0, S.Connection.TuneOk()), 504, 10, 31),
    ("connection-method-on-channel", call(S.Connection.Open()), 503, 10, 40),
    ("reply-from-client", call(S.Queue.DeclareOk(queue="x", message_count=0, consumer_count=0)), 503, 50, 11),
    ("exchange-type-unknown", call(S.Exchange.Declare(exchange="wire-errors.x", type="odd")), 503, 40, 10),
    ("header-alone", lambda peer: peer.send(frame.Header(1, 0, EMPTY).marshal()), 505, 0, 0),
    ("body-alone", lambda peer: peer.send(frame.Body(1, b"x").marshal()), 505, 0, 0),
    ("method-for-header", publish_then(frame.Method(1, S.Basic.Qos()).marshal()), 505, 60, 40),
    ("header-of-other-class", publish_then(raw_frame(2, 1, struct.pack(">HHQH", 50, 0, 1, 0))), 505, 60, 40),
    ("heartbeat-on-channel", lambda peer: peer.send(raw_frame(8, 1, b"")), 505, 0, 0),
    ("frame-end", lambda peer: peer.send(raw_frame(1, 1, method_payload(60, 10, bytes(7)), b"\0")), 501, 0, 0),
    ("frame-type", lambda peer: peer.send(raw_frame(9, 1, b"abc")), 501, 0, 0),
    ("frame-too-large", lambda peer: peer.send(raw_frame(3, 1, bytes(131073))), 501, 0, 0),
    ("arguments-cut", lambda peer: peer.send(raw_frame(1, 1, method_payload(50, 10, b"\0\0\x20ab"))), 501, 50, 10),
    ("immediate", publish(immediate=True), 540, 60, 40),
    ("prefetch-size", call(S.Basic.Qos(prefetch_size=10)), 540, 60, 10),
    ("recover-in-place", call(S.Basic.Recover(requeue=False)), 540, 60, 110),
    (
        "consumer-tag-twice",
        lambda peer: (
            declare(peer),
            peer.call(1, S.Basic.Consume(queue="", consumer_tag="twice")),
            peer.expect(S.Basic.ConsumeOk),
            peer.call(1, S.Basic.Consume(queue="", consumer_tag="twice")),
        ),
        530, 60, 20,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("send", "code", "class_id", "method_id"), [pytest.param(*row[1:], id=row[0]) for row in HARD])
def test_hard_error_closes_the_connection(
    raw: RawConnection, send: Send, code: int, class_id: int, method_id: int
) -> None:
    send(raw)
    close = raw.closed_connection()
    assert (close.reply_code, close.class_id, close.method_id) == (code, class_id, method_id), close


@pytest.mark.parametrize(("class_id", "method_id"), [(99, 10), (60, 199), (10, 199)])
def test_unknown_methods_end_the_connection(raw: RawConnection, class_id: int, method_id: int) -> None:
    raw.send(raw_frame(1, 1, method_payload(class_id, method_id)))
    while (value := raw.read()) is not None:  # some brokers say why before they hang up, some do not
        assert value.method.reply_code in (501, 503, 540)
        raw.call(0, S.Connection.CloseOk())


@pytest.mark.weft_only
def test_a_body_longer_than_announced_is_refused(raw: RawConnection) -> None:
    raw.call(1, S.Basic.Publish(exchange="", routing_key="wire-errors.none"))
    raw.send(frame.Header(1, 1, EMPTY).marshal() + frame.Body(1, b"four").marshal())
    assert raw.closed_connection().reply_code in (501, 505)


TOLERATED: list[tuple[str, Any, type[Any]]] = [
    ("delete-missing-queue", S.Queue.Delete(queue="nope"), S.Queue.DeleteOk),
    ("delete-missing-exchange", S.Exchange.Delete(exchange="nope"), S.Exchange.DeleteOk),
    ("unbind-missing-queue", S.Queue.Unbind(queue="nope", exchange="amq.direct"), S.Queue.UnbindOk),
    ("cancel-unknown-consumer", S.Basic.Cancel(consumer_tag="nope"), S.Basic.CancelOk),
    ("access-request", S.Access.Request(realm="/data"), S.Access.RequestOk),
    ("flow-on", S.Channel.Flow(active=True), S.Channel.FlowOk),
]


@pytest.mark.parametrize(("method", "reply"), [pytest.param(*row[1:], id=row[0]) for row in TOLERATED])
def test_harmless_requests_are_answered(raw: RawConnection, method: Any, reply: type[Any]) -> None:
    raw.call(1, method)
    raw.expect(reply, 1)


def test_methods_on_a_channel_being_closed_are_ignored(raw: RawConnection) -> None:
    raw.call(1, S.Basic.Get(queue="nope"))
    raw.call(1, S.Basic.Get(queue="nope either"))  # sent before the client could know
    raw.closed_channel(1)
    raw.open_channel(1)


@pytest.mark.weft_only  # RabbitMQ refuses to stop with 540
def test_flow_stops_deliveries_and_resumes_them(raw: RawConnection) -> None:
    declare(raw)
    raw.call(1, S.Channel.Flow(active=False))
    assert raw.expect(S.Channel.FlowOk).active is False
    raw.call(1, S.Basic.Consume(queue="", no_ack=True))
    raw.expect(S.Basic.ConsumeOk)
    raw.call(1, S.Queue.Bind(queue="", exchange="amq.fanout"))
    raw.expect(S.Queue.BindOk)
    raw.publish(1, S.Basic.Publish(exchange="amq.fanout", routing_key=""), b"held", EMPTY)
    raw.call(1, S.Basic.Qos())
    raw.expect(S.Basic.QosOk)  # and no delivery before it
    raw.call(1, S.Channel.Flow(active=True))
    assert raw.expect(S.Channel.FlowOk).active is True
    raw.expect(S.Basic.Deliver)


def test_recover_without_requeue_is_honoured_or_refused(raw: RawConnection) -> None:
    raw.call(1, S.Basic.Recover(requeue=False))
    answer = raw.read().method
    if isinstance(answer, S.Connection.Close):
        assert (answer.reply_code, answer.class_id, answer.method_id) == (540, 60, 110)
    else:
        assert isinstance(answer, S.Basic.RecoverOk)
