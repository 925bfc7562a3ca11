"""Arguments of declarations: which are known, what they may be, and what they become in the kernel.

Owns one table of queue arguments (`QUEUE_ARGUMENTS`) from which validation, comparison and the kernel's row are made.
Arguments of strangers come in; a refusal in RabbitMQ's words or a row of the kernel's tables goes out.
It must not know what exists. Arguments that are not known here are kept and ignored, as RabbitMQ does.
Rule: RabbitMQ's queue documentation; `quorum` queues are durable, shared and give up on a message after 20 failed
deliveries; what is particular to streams is in `streams`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, cast

from weft.broker import streams
from weft.broker.barriers import DEDUPLICATION, barrier_of, complain
from weft.model.changes import DeclareExchange, DeclareQueue
from weft.model.errors import Refused
from weft.model.events import Table
from weft.store import Exchange, Queue

MILLISECONDS_MAX = 315_360_000_000
"""Ten years: RabbitMQ's bound for times to live."""
COUNT_MAX = 2**63 - 1
PRIORITY_MAX = 255
DELIVERIES_MAX = 2**32 - 1
QUORUM_DELIVERY_LIMIT = 20
"""RabbitMQ's default since 4.0."""

QUEUE_TYPE = "x-queue-type"
DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
DEAD_LETTER_KEY = "x-dead-letter-routing-key"
ALTERNATE_EXCHANGE = "alternate-exchange"
DELAYED_EXCHANGE = "x-delayed-message"
DELAYED_TYPE = "x-delayed-type"
EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers")
ALL_EXCHANGE_TYPES = frozenset({*EXCHANGE_TYPES, DELAYED_EXCHANGE, DEDUPLICATION})
OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
DURABILITIES = ("sync", "write", "memory")
ACKS = ("node", "end-to-end")
UNLIMITED = -1

Complaint = str | None
Checker = Callable[[object], Complaint]


def type_name(value: object) -> str:
    """The AMQP 0-9-1 type of a value, as RabbitMQ names it."""
    match value:
        case bool():
            return "bool"
        case int():
            return "signedint" if -(2**31) <= value < 2**31 else "long"
        case float():
            return "double"
        case str():
            return "longstr"
        case bytes():
            return "binary"
        case datetime():
            return "timestamp"
        case list():
            return "array"
        case dict():
            return "table"
        case _:
            return "void"


def _integer(low: int, high: int) -> Checker:
    def check(value: object) -> Complaint:
        if not isinstance(value, int) or isinstance(value, bool):
            return f"expected integer, got {type_name(value)}"
        return None if low <= value <= high else f"expected {low} to {high}, got {value}"

    return check


def _text(value: object) -> Complaint:
    return None if isinstance(value, str) else f"expected text, got {type_name(value)}"


def _boolean(value: object) -> Complaint:
    return None if isinstance(value, bool) else f"expected bool, got {type_name(value)}"


def _overflow(value: object) -> Complaint:
    return None if value in OVERFLOWS else f"expected one of {', '.join(OVERFLOWS)}"


def _durability(value: object) -> Complaint:
    return None if value in DURABILITIES else f"expected one of {', '.join(DURABILITIES)}"


def _ack(value: object) -> Complaint:
    return None if value in ACKS else f"expected one of {', '.join(ACKS)}"


@dataclass(frozen=True, slots=True)
class _Argument:
    check: Checker
    field: str
    """Of `DeclareQueue`."""


QUEUE_ARGUMENTS = {
    "x-message-ttl": _Argument(_integer(0, MILLISECONDS_MAX), "message_ttl_ms"),
    "x-expires": _Argument(_integer(1, MILLISECONDS_MAX), "expires_ms"),
    "x-max-length": _Argument(_integer(0, COUNT_MAX), "length_max"),
    "x-max-length-bytes": _Argument(_integer(0, COUNT_MAX), "length_bytes_max"),
    "x-overflow": _Argument(_overflow, "overflow"),
    DEAD_LETTER_EXCHANGE: _Argument(_text, "dead_letter_exchange"),
    DEAD_LETTER_KEY: _Argument(_text, "dead_letter_key"),
    "x-max-priority": _Argument(_integer(0, PRIORITY_MAX), "priority_max"),
    "x-single-active-consumer": _Argument(_boolean, "single_active"),
    "x-durability": _Argument(_durability, "durability"),
    "x-ack": _Argument(_ack, "ack"),
    "x-delivery-limit": _Argument(_integer(UNLIMITED, DELIVERIES_MAX), "delivery_limit"),
}


def check_queue(queue: Queue) -> None:
    """Refuse a declaration that does not make sense."""
    for name, argument in QUEUE_ARGUMENTS.items():
        if name in queue.arguments and (complaint := argument.check(queue.arguments[name])):
            _refuse_argument(name, queue, complaint)
    if DEAD_LETTER_KEY in queue.arguments and DEAD_LETTER_EXCHANGE not in queue.arguments:
        _refuse_argument(DEAD_LETTER_KEY, queue, "routing key but no dead letter exchange")
    _check_barrier(queue)
    match queue.arguments.get(QUEUE_TYPE, "classic"):
        case "classic":
            _check_no_stream(queue)
        case "quorum":
            _check_no_stream(queue)
            _check_kept(queue, "quorum")
            if "x-max-priority" in queue.arguments:
                _refuse_argument("x-max-priority", queue, "not for queue type quorum")
        case streams.STREAM:
            _check_kept(queue, "stream")
            if wrong := streams.complaint(queue.arguments):
                _refuse_argument(wrong[0], queue, wrong[1])
        case str() as unknown:
            _refuse_argument(QUEUE_TYPE, queue, f"unsupported queue type '{unknown}'")
        case value:
            _refuse_argument(QUEUE_TYPE, queue, f"expected text, got {type_name(value)}")


def _check_no_stream(queue: Queue) -> None:
    for name in streams.ONLY_OF_STREAMS:
        if name in queue.arguments:
            _refuse_argument(name, queue, "only for queue type stream")


def _check_kept(queue: Queue, type_: str) -> None:
    """Queues of some types survive everything, so they cannot go with something."""
    wrong = {"non-durable": not queue.durable, "exclusive": queue.exclusive, "auto-delete": queue.auto_delete}
    for name, is_wrong in wrong.items():
        # An exclusive queue is never durable, and `exclusive` is the better word for it.
        if is_wrong and not (name == "non-durable" and queue.exclusive):
            raise Refused(f"PRECONDITION_FAILED - invalid property '{name}' for {queue} of type {type_}", 406)


def _check_barrier(where: Queue | Exchange) -> None:
    if complaint := complain(where.arguments):
        _refuse_argument(complaint[0], where, complaint[1])


def _refuse_argument(name: str, where: Queue | Exchange, complaint: str) -> NoReturn:
    raise Refused(f"PRECONDITION_FAILED - invalid arg '{name}' for {where}: {complaint}", 406)


def is_stream(queue: Queue) -> bool:
    """Is this queue a stream?"""
    return queue.arguments.get(QUEUE_TYPE) == streams.STREAM


def queue_row(queue: Queue) -> DeclareQueue:
    """What the kernel is told of a queue."""
    options = streams.options(queue.name, queue.arguments) if is_stream(queue) else _options(queue)
    return DeclareQueue(
        queue.vhost,
        queue.name,
        durable=queue.durable,
        auto_delete=queue.auto_delete,
        owner=queue.holder if queue.exclusive else None,
        number=queue.number,
        barrier=barrier_of(queue.arguments, queue.number if queue.durable else 0),
        delete_when_empty=queue.lifetime.endswith("-messages"),
        tap=cast("str | None", queue.arguments.get(streams.TAP)),
        **options,
    )


def _options(queue: Queue) -> dict[str, Any]:
    """What only queues have that messages leave."""
    options = {
        argument.field: queue.arguments[name] for name, argument in QUEUE_ARGUMENTS.items() if name in queue.arguments
    }
    if queue.arguments.get(QUEUE_TYPE) == "quorum":
        options.setdefault("delivery_limit", QUORUM_DELIVERY_LIMIT)
    if options.get("delivery_limit") == UNLIMITED:
        del options["delivery_limit"]
    return options


def check_exchange(exchange: Exchange) -> None:
    """Refuse a declaration that does not make sense."""
    alternate = exchange.arguments.get(ALTERNATE_EXCHANGE, "")
    if not isinstance(alternate, str):
        found = type_name(alternate)
        text = f"PRECONDITION_FAILED - invalid type '{found}' for arg '{ALTERNATE_EXCHANGE}' in {exchange}"
        raise Refused(text, 406)
    if exchange.type == DELAYED_EXCHANGE and exchange.arguments.get(DELAYED_TYPE) not in EXCHANGE_TYPES:
        _refuse_argument(DELAYED_TYPE, exchange, f"expected one of {', '.join(EXCHANGE_TYPES)}")
    _check_barrier(exchange)


def check_exchange_type(type_: str) -> None:
    """Refuse an exchange type this node does not have; the peer should not have tried."""
    if not type_:
        raise Refused("COMMAND_INVALID - invalid exchange type ''", 503)
    if type_ not in ALL_EXCHANGE_TYPES:
        raise Refused(f"COMMAND_INVALID - unknown exchange type '{type_}'", 503)


def matching_type(exchange: Exchange) -> str:
    """How an exchange matches, whatever else it does."""
    if exchange.type == DEDUPLICATION:
        return "fanout"
    delayed = exchange.type == DELAYED_EXCHANGE
    return cast("str", exchange.arguments[DELAYED_TYPE]) if delayed else exchange.type


def exchange_row(exchange: Exchange) -> DeclareExchange:
    """What the kernel is told of an exchange."""
    return DeclareExchange(
        exchange.vhost,
        exchange.name,
        cast("Any", matching_type(exchange)),
        internal=exchange.internal,
        delayed=exchange.type == DELAYED_EXCHANGE,
        alternate=cast("str | None", exchange.arguments.get(ALTERNATE_EXCHANGE)),
        tap=cast("str | None", exchange.arguments.get(streams.TAP)),
        barrier=barrier_of(
            exchange.arguments,
            exchange.number if exchange.durable else 0,
            deduplicates=exchange.type == DEDUPLICATION,
        ),
    )


# comparing with what exists


def require_equal(name: str, where: Queue | Exchange, received: object, current: object) -> None:
    """Refuse a declaration whose property differs from the one in force."""
    if received != current:
        found, had = _plain(received), _plain(current)
        _refuse_inequivalent(name, where, f"received '{found}' but current is '{had}'")


def require_equal_arguments(where: Queue | Exchange, names: tuple[str, ...], received: Table, current: Table) -> None:
    """Refuse a declaration with one of these arguments different from the one in force."""
    for name in names:
        if name not in received and name not in current:
            continue
        if name not in current:
            text = f"received {_described(received[name])} but current is none"
        elif name not in received:
            text = f"received none but current is {_described(current[name])}"
        elif received[name] != current[name] or isinstance(received[name], bool) != isinstance(current[name], bool):
            text = f"received '{_plain(received[name])}' but current is '{_plain(current[name])}'"
        else:
            continue
        _refuse_inequivalent(name, where, text)


def _refuse_inequivalent(name: str, where: Queue | Exchange, text: str) -> NoReturn:
    raise Refused(f"PRECONDITION_FAILED - inequivalent arg '{name}' for {where}: {text}", 406)


def _plain(value: object) -> str:
    text = str(value)
    return text.lower() if isinstance(value, bool) else text


def _described(value: object) -> str:
    return f"the value '{_plain(value)}' of type '{type_name(value)}'"
