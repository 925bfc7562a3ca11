"""When to try again: growing waits with jitter, bounded.

Owns the arithmetic only. The number of failures in a row and a random number come in, nanoseconds go out.
It must not know what is tried.
Rule: the wait doubles from `FIRST_MS`; a random half of it is taken off, so that a thousand nodes whose gateway came
back do not all call it in the same moment.
"""

from __future__ import annotations

FIRST_MS = 50
"""A peer that was restarted is back within a second; the first attempts cost nearly nothing."""
DOUBLINGS_MAX = 20
NS_PER_MS = 1_000_000


def wait_ns(failures: int, max_ms: int, chance: float) -> int:
    """How long to wait after this many failures in a row; `chance` is from 0 to 1."""
    full_ms = min(FIRST_MS << min(max(failures - 1, 0), DOUBLINGS_MAX), max_ms)
    return int(full_ms * (1.0 - 0.5 * chance) * NS_PER_MS)
