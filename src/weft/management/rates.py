"""How fast counters rise, for those who ask again and again.

Owns the last reading of each object that was asked for, a bounded number of them. Counters come in as they are read;
per-second rates since the reading before go out, 0 the first time.
It must never read anything by itself, so that objects nobody asks for cost nothing.
Rule: a rate is taken over at least `SPAN_S`, so that two readers at once do not spoil each other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

SPAN_S = 1.0
OBJECTS_MAX = 20_000


@dataclass(slots=True)
class _Reading:
    time: float
    counters: dict[str, int]
    rates: dict[str, float]


class Rates:
    """Rates of everything that was asked for lately."""

    def __init__(self) -> None:
        self._readings: dict[object, _Reading] = {}

    def of(self, key: object, counters: Mapping[str, int]) -> dict[str, float]:
        """Rates of an object's counters, per second."""
        now = monotonic()
        last = self._readings.get(key)
        if last is None:
            if len(self._readings) >= OBJECTS_MAX:
                del self._readings[next(iter(self._readings))]
            self._readings[key] = _Reading(now, dict(counters), dict.fromkeys(counters, 0.0))
            return self._readings[key].rates
        span = now - last.time
        if span >= SPAN_S:
            last.rates = {name: max(count - last.counters.get(name, 0), 0) / span for name, count in counters.items()}
            last.time, last.counters = now, dict(counters)
        return last.rates
