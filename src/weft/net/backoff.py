"""How long to wait before the next try: longer each time, never for ever, and not when everybody else tries too.

Owns the one rule for retries over the network. A random source comes in, delays in seconds go out.
It must never sleep: callers do.
Rule: exponential with full jitter; the first try comes at once, since most losses are a restart of one process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_S = 0.05
MAX_S = 5.0


def delays(first_s: float = FIRST_S, max_s: float = MAX_S, source: random.Random | None = None) -> Iterator[float]:
    """Delays before each try, without end."""
    yield 0.0
    chance = source or random.Random()  # noqa: S311 - spreads retries, guards nothing
    ceiling_s = first_s
    while True:
        yield chance.uniform(0.0, ceiling_s)
        ceiling_s = min(max_s, ceiling_s * 2)
