"""May this queue be declared, or deleted? The rules.

Owns the decisions on queue.declare and queue.delete, and who may use an exclusive queue.
A request, the tables and the caller come in; an outcome or a refusal goes out, and nothing changes on the way.
It must not know events or the store.
Rules: AMQP 0-9-1 section 1.7.2 as RabbitMQ applies it, order of checks included.
"""

from __future__ import annotations

from dataclasses import replace

from weft.broker.access import Caller
from weft.broker.arguments import (
    DEAD_LETTER_EXCHANGE,
    QUEUE_ARGUMENTS,
    QUEUE_TYPE,
    check_queue,
    require_equal,
    require_equal_arguments,
)
from weft.broker.barriers import BARRIER_ARGUMENTS
from weft.broker.names import REPLY_TO, check_new_name, is_reply_to, make_name
from weft.broker.outcome import Counts, Outcome
from weft.broker.partitions import drop_stream, put_stream
from weft.broker.streams import MAX_AGE, PARTITIONS
from weft.broker.tables import Tables
from weft.broker.taps import check_tap
from weft.model.errors import Refused
from weft.model.events import QueueDeclare, QueueDelete
from weft.model.names import clean_name
from weft.store import Queue

_COMPARED = (QUEUE_TYPE, *QUEUE_ARGUMENTS, MAX_AGE, PARTITIONS, *BARRIER_ARGUMENTS)
_UNCOUNTED = (0, 0, 0)
CLASSIC = "classic"


def declare_queue(tables: Tables, caller: Caller, request: QueueDeclare, counts: Counts) -> Outcome:
    """queue.declare."""
    name = clean_name(request.name)
    if is_reply_to(name):
        return _declare_reply_to(tables, name, counts)
    if request.passive:
        queue = tables.queue(name)
        check_exclusive(queue, caller.conn)
        return _found(tables, queue, counts)
    if name:
        check_new_name("queue", name, restored=caller.principal is None)
    else:
        name = make_name()
    caller.require("configure", "queue", name)
    wanted = _wanted(tables.vhost, name, caller.conn, request)
    existing = tables.queues.get(name)
    if QUEUE_TYPE not in wanted.arguments:
        wanted = _typed(wanted, existing, caller.access.queue_type(tables.vhost))
    if existing is None:
        _check_new(caller, wanted)
        check_tap(tables, caller, wanted)
        return Outcome(put_stream(tables, caller, wanted), name=name)
    _check_same(existing, wanted)
    return _found(tables, existing, counts)


def delete_queue(tables: Tables, caller: Caller, request: QueueDelete, counts: Counts) -> Outcome:
    """queue.delete; a queue that is not there is deleted already."""
    name = clean_name(request.name)
    caller.require("configure", "queue", name)
    queue = tables.queues.get(name)
    if queue is None:
        return Outcome()
    check_exclusive(queue, caller.conn)
    ready, _, consumers = counts(tables.vhost, name) or _UNCOUNTED
    if request.if_unused and consumers:
        raise Refused(f"PRECONDITION_FAILED - {queue} in use", 406)
    if request.if_empty and ready:
        raise Refused(f"PRECONDITION_FAILED - {queue} not empty", 406)
    return Outcome(drop_stream(tables, queue), name=name, messages=ready)


def check_exclusive(queue: Queue, conn: int | None) -> None:
    """Refused(405) if the queue belongs to another connection."""
    if queue.exclusive and queue.holder != conn:
        raise _locked(queue)


def _declare_reply_to(tables: Tables, name: str, counts: Counts) -> Outcome:
    """The pseudo-queue is always there; one end of it is while its peer is, which a server may want to know."""
    if name != REPLY_TO and counts(tables.vhost, name) is None:
        tables.queue(name)
    return Outcome(name=name, consumers=1)


def _wanted(vhost: str, name: str, conn: int | None, request: QueueDeclare) -> Queue:
    """What the peer asks for. A queue that dies with its connection cannot outlive the node, whatever it says."""
    return Queue(
        vhost,
        name,
        durable=request.durable and not request.exclusive,
        auto_delete=request.auto_delete,
        holder=conn if request.exclusive else None,
        exclusive=request.exclusive,
        arguments=request.arguments,
    )


def _typed(wanted: Queue, existing: Queue | None, default: str | None) -> Queue:
    """What is wanted, with the type that its virtual host gives to queues without one, if it may have that type. A
    queue that was there before its virtual host got another default is still the one that is meant.
    """
    if default is None or default == CLASSIC or not wanted.durable or wanted.auto_delete:
        return wanted
    if existing is not None:
        default = str(existing.arguments.get(QUEUE_TYPE, CLASSIC))
    return replace(wanted, arguments=wanted.arguments | {QUEUE_TYPE: default})


def _check_new(caller: Caller, queue: Queue) -> None:
    check_queue(queue)
    dead_letters = queue.arguments.get(DEAD_LETTER_EXCHANGE)
    if isinstance(dead_letters, str):
        caller.require("read", "queue", queue.name)
        caller.require("write", "exchange", dead_letters)


def _check_same(existing: Queue, wanted: Queue) -> None:
    if _owner(existing) != _owner(wanted):
        raise _locked(existing)
    require_equal("durable", existing, wanted.durable, existing.durable)
    require_equal("auto_delete", existing, wanted.auto_delete, existing.auto_delete)
    classic = {QUEUE_TYPE: CLASSIC}
    require_equal_arguments(existing, _COMPARED, classic | wanted.arguments, classic | existing.arguments)


def _owner(queue: Queue) -> int | None:
    return queue.holder if queue.exclusive else None


def _found(tables: Tables, queue: Queue, counts: Counts) -> Outcome:
    ready, _, consumers = counts(queue.vhost, queue.name) or _UNCOUNTED
    # Declaring counts as use, so the kernel starts the idle time of an expiring queue anew.
    row = tables.queue_row(queue)
    return Outcome(
        changes=[row] if row.expires_ms is not None else [], name=queue.name, messages=ready, consumers=consumers
    )


def _locked(queue: Queue) -> Refused:
    return Refused(
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked {queue}: it belongs to another connection,"
        " or was not declared exclusive",
        405,
    )
