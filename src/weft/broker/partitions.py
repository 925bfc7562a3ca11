"""Streams in parts: one name, N streams, and an exchange of the same name to publish with a key.

Owns what a declaration with `x-partitions` makes and what its deletion takes along.
A stream that is to be made, or to go, comes in with the tables; edits, or a refusal, go out.
It must not choose a part for a message: the kernel does, by the hash of its key.
Rule: docs/guides/streams.md, "Streams in parts"; part i of `log` is the stream `log-i`, which can be read by itself.
"""

from __future__ import annotations

from weft.broker.access import Caller
from weft.broker.streams import PARTITION, PARTITION_OF, PARTITIONS, part_names
from weft.broker.tables import Edit, Put, Tables
from weft.model.errors import Refused
from weft.model.names import NAME_BYTES_MAX
from weft.store import Binding, Exchange, Queue


def put_stream(tables: Tables, caller: Caller, queue: Queue) -> list[Edit]:
    """Make a queue; one with parts gets them, and its exchange."""
    names = part_names(queue.name, queue.arguments)
    if not names:
        return [Put(queue, queue.durable)]
    shared = {name: value for name, value in queue.arguments.items() if name != PARTITIONS}
    edits: list[Edit] = []
    for number, name in enumerate(names):
        caller.require("configure", "queue", name)
        if name in tables.queues or len(name.encode()) > NAME_BYTES_MAX:
            raise Refused(f"PRECONDITION_FAILED - {queue} needs the name '{name}' for a part of it", 406)
        arguments = {**shared, PARTITION_OF: queue.name, PARTITION: number}
        edits.append(Put(Queue(queue.vhost, name, durable=True, arguments=arguments), durable=True))
    caller.require("configure", "exchange", queue.name)
    if queue.name in tables.exchanges:
        raise Refused(f"PRECONDITION_FAILED - {queue} needs its name for an exchange, and there is one already", 406)
    exchange = Exchange(queue.vhost, queue.name, "fanout", durable=True, arguments={PARTITION_OF: queue.name})
    binding = Binding(queue.vhost, queue.name, "queue", queue.name)
    return [*edits, *(Put(record, durable=True) for record in (queue, exchange, binding))]


def drop_stream(tables: Tables, queue: Queue) -> list[Edit]:
    """Delete a queue; its parts and its exchange go along. A part by itself cannot go."""
    whole = queue.arguments.get(PARTITION_OF)
    if isinstance(whole, str) and whole in tables.queues:
        raise Refused(f"PRECONDITION_FAILED - {queue} is a part of '{whole}': delete that", 406)
    edits = tables.drop_queue(queue)
    for name in part_names(queue.name, queue.arguments):
        if name in tables.queues:
            edits += tables.drop_queue(tables.queues[name])
    exchange = tables.exchanges.get(queue.name)
    if exchange is not None and exchange.arguments.get(PARTITION_OF) == queue.name:
        edits += tables.drop_exchange(exchange)
    return edits
