"""Arguments of idempotency barriers: what they may be, and what they become in the kernel.

Owns the words for barriers, weft's own and those of the deduplication plugin for RabbitMQ and of LavinMQ, which mean
the same here. Arguments of strangers come in; a complaint or the kernel's settings go out.
It must not know whether they stand on an exchange, a queue or a stream.
Rule: docs/guides/idempotency.md; the first set of words that is there counts, weft's own before the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from weft.model.changes import Barrier

BARRIER = "x-barrier"
WINDOW = "x-barrier-window"
IDS_MAX = "x-barrier-ids-max"
MISSING = "x-barrier-missing"
DEDUPLICATION = "x-message-deduplication"
"""Also the plugin's exchange type, which matches as fanout does."""
CACHE_TTL = "x-cache-ttl"
CACHE_SIZE = "x-cache-size"
CACHE_HEADER = "x-deduplication-header"
BARRIER_ARGUMENTS = (BARRIER, WINDOW, IDS_MAX, MISSING, DEDUPLICATION, CACHE_TTL, CACHE_SIZE, CACHE_HEADER)

WINDOW_MS = 600_000
"""Ten minutes: longer than anything that reconnects by itself is away."""
IDS_COUNT = 1_000_000
"""About 32 MB when full."""
CACHE_COUNT = 128
"""LavinMQ's default."""
WINDOW_MS_MAX = 315_360_000_000
IDS_COUNT_MAX = 100_000_000
HEADER_PREFIX = "header:"
KEYS = ("message-id", "body", "fabric")
_BOUNDS = {
    WINDOW: (1, WINDOW_MS_MAX),
    IDS_MAX: (1, IDS_COUNT_MAX),
    CACHE_TTL: (1, WINDOW_MS_MAX),
    CACHE_SIZE: (1, IDS_COUNT_MAX),
}


def complain(arguments: Mapping[str, object]) -> tuple[str, str] | None:
    """The first argument that does not make sense, and why."""
    key = arguments.get(BARRIER, "body")
    if key not in KEYS and not (
        isinstance(key, str) and len(key) > len(HEADER_PREFIX) and key.startswith(HEADER_PREFIX)
    ):
        return BARRIER, f"expected one of {', '.join(KEYS)} or {HEADER_PREFIX}<name>"
    for name, (low, high) in _BOUNDS.items():
        value = arguments.get(name, low)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            return name, f"expected an integer from {low} to {high}"
    if arguments.get(MISSING, "pass") not in ("pass", "body"):
        return MISSING, "expected one of pass, body"
    if not isinstance(arguments.get(DEDUPLICATION, True), bool):
        return DEDUPLICATION, "expected a boolean"
    header = arguments.get(CACHE_HEADER, CACHE_HEADER)
    return None if isinstance(header, str) and header else (CACHE_HEADER, "expected the name of a header")


def barrier_of(arguments: Mapping[str, object], number: int, *, deduplicates: bool = False) -> Barrier | None:
    """The barrier that these arguments, or the plugin's exchange type, ask for; its ids are kept under `number`."""
    given = cast("Mapping[str, Any]", arguments)
    if BARRIER in given:
        window_ms, ids_max = given.get(WINDOW, WINDOW_MS), given.get(IDS_MAX, IDS_COUNT)
        return Barrier(given[BARRIER], window_ms, ids_max, given.get(MISSING) == "body", number)
    if deduplicates or given.get(DEDUPLICATION, False):
        key = HEADER_PREFIX + given.get(CACHE_HEADER, CACHE_HEADER)
        return Barrier(key, given.get(CACHE_TTL, WINDOW_MS_MAX), given.get(CACHE_SIZE, CACHE_COUNT), number=number)
    return None
