"""What clients know about their messages over the deaths of a node, and what follows from it.

Owns the record of sends, confirms, deliveries and acknowledgements, and the judgement. Workers write into it from
their threads; `judge` reads it when all is over. It must never guess: a message that was sent and not confirmed may
be there or not, one that was acknowledged may come back or not, until a confirm that was asked for later says that
the acknowledgement is on disk. Rule: at least once, in order, and never what was neither sent nor left.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Letter:
    """One message: who sent it, and its number there."""

    publisher: str
    number: int

    def encode(self) -> bytes:
        return f"{self.publisher}:{self.number}".encode().ljust(200, b".")

    @classmethod
    def decode(cls, body: bytes) -> Letter:
        publisher, _, number = bytes(body).rstrip(b".").decode().partition(":")
        return cls(publisher, int(number))


@dataclass
class Arrivals:
    """What one queue gave, in order."""

    first: list[Letter] = field(default_factory=list)
    times: Counter[Letter] = field(default_factory=Counter)
    settled: set[Letter] = field(default_factory=set)
    mistakes: list[str] = field(default_factory=list)

    def arrived(self, letter: Letter, redelivered: bool) -> None:
        if letter in self.settled:
            self.mistakes.append(f"{letter} came back after its acknowledgement was on disk")
        if self.times[letter] and not redelivered:
            self.mistakes.append(f"{letter} came again and does not say so")
        if not self.times[letter]:
            self.first.append(letter)
        self.times[letter] += 1


class Ledger:
    """Everything that happened, queue by queue."""

    def __init__(self, *queues: str) -> None:
        self.sent: dict[str, set[Letter]] = {queue: set() for queue in queues}
        self.confirmed: dict[str, set[Letter]] = {queue: set() for queue in queues}
        self.arrivals = {queue: Arrivals() for queue in queues}
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def send(self, publisher: str, queues: tuple[str, ...]) -> Letter:
        """A new message that is about to be sent to these queues."""
        with self._lock:
            self._numbers[publisher] += 1
            letter = Letter(publisher, self._numbers[publisher])
            for queue in queues:
                self.sent[queue].add(letter)
            return letter

    def confirm(self, letter: Letter, queues: tuple[str, ...]) -> None:
        with self._lock:
            for queue in queues:
                self.confirmed[queue].add(letter)

    def judge(self) -> tuple[dict[str, int], list[str]]:
        """How many messages were lost, duplicated, recovered, unexpected; and every mistake, in words."""
        counts = dict.fromkeys(("confirmed", "received", "lost", "duplicated", "recovered", "unexpected"), 0)
        mistakes: list[str] = []
        for queue, arrivals in self.arrivals.items():
            got, sent, confirmed = set(arrivals.times), self.sent[queue], self.confirmed[queue]
            counts["confirmed"] += len(confirmed)
            counts["received"] += len(got)
            counts["lost"] += len(confirmed - got)
            counts["duplicated"] += sum(1 for times in arrivals.times.values() if times > 1)
            counts["recovered"] += len(got - confirmed)
            counts["unexpected"] += len(got - sent)
            mistakes += [f"{queue}: {mistake}" for mistake in arrivals.mistakes]
            mistakes += [f"{queue}: {letter} is lost" for letter in confirmed - got]
            mistakes += [f"{queue}: {letter} was never sent" for letter in got - sent]
            mistakes += [f"{queue}: {mistake}" for mistake in _disorder(arrivals.first)]
        return counts, mistakes


def _disorder(first: list[Letter]) -> list[str]:
    last: defaultdict[str, int] = defaultdict(int)
    mistakes = []
    for letter in first:
        if letter.number < last[letter.publisher]:
            mistakes.append(f"{letter} came first after {last[letter.publisher]}")
        last[letter.publisher] = letter.number
    return mistakes
