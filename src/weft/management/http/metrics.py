"""The node's figures in Prometheus' text format.

Owns `/metrics` (sums, the same size however many queues there are) and `/metrics/per-object` (the busiest queues, at
most `OBJECTS_MAX`, and the types of messages that the kernel keeps apart). The
kernel's counters come in, text goes out.
It must never have a label whose values peers choose, but in `/metrics/per-object`, where they are bounded.
Rule: names as RabbitMQ's exporter gives them, weft's own beside them (docs/reference/metrics.md).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator

from weft._kernel import Scan
from weft.management.classes.tables import looked, tallied
from weft.management.manager import Manager
from weft.management.peers import Peers
from weft.management.query import each
from weft.management.turns import Turns

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OBJECTS_MAX = 1_000
FILES = "/proc/self/fd"

_GAUGES = {
    "connections": ("rabbitmq_connections", "Open connections"),
    "consumers": ("rabbitmq_consumers", "Consumers and receiving links"),
    "queues": ("rabbitmq_queues", "Queues"),
    "exchanges": ("rabbitmq_exchanges", "Exchanges"),
    "ready": ("rabbitmq_queue_messages_ready", "Messages that wait"),
    "unsettled": ("rabbitmq_queue_messages_unacked", "Messages delivered and not settled"),
    "memory_bytes": ("rabbitmq_process_resident_memory_bytes", "Memory that messages take"),
    "memory_bytes_max": ("rabbitmq_resident_memory_limit_bytes", "Memory that messages may take"),
    "delayed": ("weft_messages_delayed", "Messages that wait for their time"),
    "unsynced": ("weft_messages_unsynced", "Messages that are lost if the machine fails now"),
}
_COUNTERS = {
    "connections_opened": ("rabbitmq_connections_opened_total", "Connections ever opened"),
    "published": ("rabbitmq_global_messages_received_total", "Messages taken from publishers"),
    "delivered": ("rabbitmq_global_messages_delivered_total", "Deliveries to consumers"),
    "settled": ("rabbitmq_global_messages_acknowledged_total", "Deliveries accepted"),
    "redelivered": ("rabbitmq_global_messages_redelivered_total", "Deliveries of messages delivered before"),
    "unroutable": ("rabbitmq_global_messages_unroutable_dropped_total", "Messages that no queue took"),
    "dead_lettered": ("rabbitmq_global_messages_dead_lettered_total", "Messages sent on to a dead-letter exchange"),
    "expired": ("weft_messages_expired_total", "Messages whose time ran out in a queue"),
    "returned": ("weft_messages_returned_total", "Deliveries that came back"),
    "duplicate": ("weft_messages_duplicate_total", "Messages that a barrier held back"),
}
_QUEUE = {
    "ready": ("rabbitmq_detailed_queue_messages_ready", "gauge", "Messages that wait"),
    "unsettled": ("rabbitmq_detailed_queue_messages_unacked", "gauge", "Messages delivered and not settled"),
    "consumers": ("rabbitmq_detailed_queue_consumers", "gauge", "Consumers"),
    "ready_bytes": ("rabbitmq_detailed_queue_messages_ready_bytes", "gauge", "Bytes of messages that wait"),
    "published": ("rabbitmq_detailed_queue_messages_published_total", "counter", "Messages the queue took"),
    "delivered": ("rabbitmq_detailed_queue_messages_delivered_total", "counter", "Deliveries from the queue"),
    "settled": ("rabbitmq_detailed_queue_messages_acked_total", "counter", "Deliveries accepted"),
    "time_in_queue_p99_us": ("weft_queue_time_p99_seconds", "gauge", "99 of 100 messages waited less"),
    "settle_p99_us": ("weft_queue_settle_p99_seconds", "gauge", "99 of 100 settlements took less"),
    "oldest_ms": ("weft_queue_oldest_seconds", "gauge", "Age of the first message"),
}
_SCALES = {"_us": 1e-6, "_ms": 1e-3}


async def node_text(manager: Manager, peers: Peers) -> str:
    """`/metrics`."""
    engine = manager.host.engine
    stats = (await tallied(engine)).stats(engine)
    return "".join(await each(_node(manager, peers, stats), str))


async def queues_text(manager: Manager) -> str:
    """`/metrics/per-object`: the queues with the most messages."""
    engine, columns = manager.host.engine, ["vhost", "name", *_QUEUE]
    scan = Scan("queues", sort="ready", descending=True, count=OBJECTS_MAX)
    await looked(engine, scan)
    rows = [
        row for found in await each(scan.choose(), lambda one: engine.rows("queues", [one], columns)) for row in found
    ]
    lines: list[str] = []
    turns = Turns()
    for column, (name, kind, doc) in _QUEUE.items():
        scale = next((scale for end, scale in _SCALES.items() if column.endswith(end)), 1)
        samples = [(row["vhost"], row["name"], row.get(column)) for row in rows]
        told = (
            (f'{{vhost="{_escape(vhost)}",queue="{_escape(queue)}"}}', value * scale)
            for vhost, queue, value in samples
            if value is not None
        )
        lines += _family(name, kind, doc, told)
        await turns.give_way()
    by_type = (
        (f'{{type="{_escape(name)}",quantile="{share}"}}', us / 1e6)
        for name, _, row in engine.types()
        for share, us in _shares(row)
    )
    lines += _family("weft_time_in_queue_by_type_seconds", "gauge", "Time in queue by type of message, lately", by_type)
    return "".join(lines)


def _node(manager: Manager, peers: Peers, stats: dict[str, int]) -> Iterator[str]:
    host = manager.host
    version = f'{{rabbitmq_node="{host.name}",rabbitmq_version="{host.version}"}}'
    yield from _family("rabbitmq_build_info", "gauge", "The node and its version", [(version, 1)])
    identity = f'{{rabbitmq_node="{host.name}",rabbitmq_cluster="{host.name}"}}'
    yield from _family("rabbitmq_identity_info", "gauge", "The node", [(identity, 1)])
    for key, (name, doc) in _GAUGES.items():
        yield from _family(name, "gauge", doc, [("", stats.get(key, 0))])
    messages = stats["ready"] + stats["unsettled"]
    yield from _family("rabbitmq_queue_messages", "gauge", "Messages in queues", [("", messages)])
    for key, (name, doc) in _COUNTERS.items():
        yield from _family(name, "counter", doc, [("", stats.get(key, 0))])
    left_s = host.certificate_s()
    if left_s is not None:
        name, doc = "weft_certificate_expires_in_seconds", "Until the first certificate of a listener expires"
        yield from _family(name, "gauge", doc, [("", left_s)])
    yield from _process()
    alarms = [
        (f'{{alarm="{name}"}}', int(name in peers.alarms)) for name in ("memory_alarm", "disk_alarm", "read_alarm")
    ]
    yield from _family("weft_alarm", "gauge", "Is an alarm on?", alarms)
    yield from _latencies(manager)


def _process() -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = usage.ru_utime + usage.ru_stime
    yield from _family("process_cpu_seconds_total", "counter", "CPU time of the process", [("", round(cpu_s, 3))])
    yield from _family("rabbitmq_process_open_fds", "gauge", "Open files and sockets", [("", open_files())])


def open_files() -> int:
    """Open files and sockets of this process; 0 where the system does not tell."""
    try:
        # The size of the folder, as Linux 6.2 and later have it: to list it takes microseconds for each.
        return os.stat(FILES).st_size or len(os.listdir(FILES))
    except OSError:
        return 0


def _latencies(manager: Manager) -> Iterator[str]:
    rows = manager.host.engine.latencies()
    for name, doc in (
        ("time_in_queue", "Time messages wait in queues"),
        ("settle", "From delivery to settlement"),
        ("confirm", "From publish to confirm"),
    ):
        found = [quantiles for kind, _, _, quantiles in rows if kind == name]
        samples = [(f'{{quantile="{share}"}}', us / 1e6) for row in found for share, us in _shares(row)]
        yield from _family(f"weft_{name}_seconds", "gauge", f"{doc}, lately", samples)
    sized = [(bound, quantiles) for kind, bound, _, quantiles in rows if kind == "size"]
    samples = [
        (f'{{bytes_max="{"+Inf" if bound is None else bound}",quantile="{share}"}}', us / 1e6)
        for bound, row in sized
        for share, us in _shares(row)
    ]
    yield from _family("weft_time_in_queue_by_size_seconds", "gauge", "Time in queue by size of message", samples)


def _shares(quantiles: tuple[int, int, int, int]) -> Iterable[tuple[str, int]]:
    return zip(("0.5", "0.9", "0.99", "1"), quantiles, strict=True)


def _family(name: str, kind: str, doc: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {doc}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        yield f"{name}{labels} {value:g}\n" if isinstance(value, float) else f"{name}{labels} {value}\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
