"""When to read less often: many small reads cost more than the messages in them.

Owns the decision whether the loop rests for a moment before it reads again, so that the next read finds several
messages in place of one. What each turn of the loop read comes in, with the time; yes or no goes out.
It must never sleep itself, and never keep resting where that slows the peers down: who waits for our answer before
sending more is served at once.
Rule: decision 0006.
"""

from __future__ import annotations

TURN_NS = 25_000
"""Turns longer than this on the average are either full or far apart: there is nothing to gain."""
TURN_BYTES = 8_192
"""Turns that read more than this on the average are efficient as they are."""
TURNS = 64
"""Turns that are looked at together."""
TRIAL_TURNS = 8
"""Turns with a rest before it is decided whether to go on resting."""
REST_TURNS = 256
"""Turns with a rest until it is looked at again how it would be without."""
PATIENCE_TURNS = 8_192
"""Turns without a rest after one that did not pay."""
SLOWER = 0.8
"""A rest must not make bytes come in slower than this part of what they did without."""


class Pace:
    """Looks at the turns of one loop."""

    __slots__ = ("_bytes", "_left", "_rate", "_start_ns", "_trial", "_turns", "resting", "rests")

    def __init__(self) -> None:
        self._rate = 0.0
        self.resting = False
        """Is each turn followed by a rest at present?"""
        self.rests = 0
        """Rests so far."""
        self._begin(0, TURNS, resting=False)

    def turn(self, read_bytes: int, now_ns: int) -> bool:
        """A turn of the loop is over that read so much: rest before the next?"""
        self._bytes += read_bytes
        self._left -= 1
        if self._left == 0:
            self._look(now_ns)
        self.rests += self.resting
        return self.resting

    def _look(self, now_ns: int) -> None:
        elapsed_ns = max(now_ns - self._start_ns, 1)
        rate = self._bytes / elapsed_ns
        if self.resting and rate < self._rate * SLOWER:
            self._begin(now_ns, PATIENCE_TURNS, resting=False)
        elif self.resting:
            # It pays: go on, and look again from time to time at how it would be without.
            self._begin(now_ns, REST_TURNS if self._trial else TURNS, resting=self._trial)
        elif elapsed_ns < self._turns * TURN_NS and 0 < self._bytes < self._turns * TURN_BYTES:
            self._rate = rate
            self._begin(now_ns, TRIAL_TURNS, resting=True, trial=True)
        else:
            self._begin(now_ns, TURNS, resting=False)

    def _begin(self, now_ns: int, turns: int, *, resting: bool, trial: bool = False) -> None:
        self._turns = self._left = turns
        self.resting, self._trial = resting, trial
        self._start_ns, self._bytes = now_ns, 0
