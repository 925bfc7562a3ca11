"""Streams: which arguments they have, and what they keep.

Owns the arguments of a stream's declaration and their meaning in the kernel.
A declared queue comes in; the first thing wrong with it, or what the kernel is told, goes out.
It must not refuse by itself, nor know what exists: `arguments` does the one, `queues` the other.
Rule: RabbitMQ's stream arguments; `x-max-length`, which RabbitMQ does not have for streams, keeps that many messages.
"""

from __future__ import annotations

import re
from typing import Any, cast

from weft.model.changes import Stream
from weft.model.events import Table

STREAM = "stream"
TAP = "x-tap"
PARTITIONS = "x-partitions"
PARTITION_OF = "x-partition-of"
PARTITION = "x-partition"
"""The last two are given to the parts by the node itself."""
ONLY_OF_STREAMS = (PARTITIONS, PARTITION_OF, PARTITION)
"""Which mean something for streams, and so may not stand for nothing elsewhere."""
PARTITIONS_MAX = 1_000
MAX_AGE = "x-max-age"
_UNITS_S = {"Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3_600, "m": 60, "s": 1}
_AGE = re.compile(r"([0-9]{1,9})([YMDhms])")
_SEGMENT_BYTES_MAX = 3_000_000_000

FOREIGN = (
    "x-message-ttl",
    "x-expires",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-priority",
    "x-single-active-consumer",
    "x-delivery-limit",
    "x-durability",
    "x-ack",
    PARTITION_OF,
    PARTITION,
)
"""Arguments of queues that make no sense where nothing is taken away."""

_NUMBERS = {
    "x-stream-max-segment-size-bytes": (0, _SEGMENT_BYTES_MAX),
    "x-stream-filter-size-bytes": (16, 255),
    PARTITIONS: (1, PARTITIONS_MAX),
}


def age_ms(text: str) -> int | None:
    """A count and a unit (Y M D h m s) in milliseconds; None if it is something else."""
    match = _AGE.fullmatch(text)
    return int(match[1]) * _UNITS_S[match[2]] * 1_000 if match else None


def complaint(arguments: Table) -> tuple[str, str] | None:
    """The first argument that is wrong, and why."""
    age = arguments.get(MAX_AGE)
    if age is not None and not (isinstance(age, str) and age_ms(age)):
        return MAX_AGE, "expected a number and a unit, one of Y M D h m s"
    for name, (low, high) in _NUMBERS.items():
        value = arguments.get(name, low)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            return name, f"expected {low} to {high}"
    return next(((name, "not for queue type stream") for name in FOREIGN if name in arguments), None)


def part_names(name: str, arguments: Table) -> tuple[str, ...]:
    """The streams that a stream with these arguments consists of, if it does."""
    count = arguments.get(PARTITIONS)
    return tuple(f"{name}-{number}" for number in range(count)) if isinstance(count, int) else ()


def options(name: str, arguments: Table) -> dict[str, Any]:
    """What the kernel is told of a stream besides what it is told of every queue."""
    part = arguments.get(PARTITION)
    parts = part_names(name, arguments)
    return {"stream": retention(arguments), "parts": parts, "part": part if isinstance(part, int) else None}


def retention(arguments: Table) -> Stream:
    """What a stream with these arguments keeps."""
    age = arguments.get(MAX_AGE)
    return Stream(
        age_ms_max=age_ms(age) if isinstance(age, str) else None,
        bytes_max=cast("int | None", arguments.get("x-max-length-bytes")),
        count_max=cast("int | None", arguments.get("x-max-length")),
    )
