"""The kernel's links under routes: opened, watched, and opened again.

Owns one `Carrier` per link of the kernel that federation has asked for, by its number. Routes ask for carriers, the
kernel's LinkAttached and LinkDetached come in; OpenLink and CloseLink go out.
It must not know what a route means: it is told both ends of each carrier.
Rule: a carrier that the peer refused is tried again with growing waits for as long as its connection lasts, since what
was missing there may be made at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from weft.federation.backoff import wait_ns
from weft.model.changes import Change, CloseLink, OpenLink
from weft.model.events import LinkAttached, LinkDetached

RETRY_MAX_MS = 5_000
"""Longest wait before a refused carrier is tried again: an operator who makes a missing queue sees it used at once."""


@dataclass(slots=True)
class Carrier:
    """One link of the kernel."""

    uplink: str
    owner: str
    """The route it serves, or what part of the control channel it is."""
    ask: OpenLink
    state: str = "attaching"
    cause: str = ""
    address: str = ""
    """The peer's address, as it answered."""
    failures: int = 0
    retry_ns: int | None = None


class Carriers:
    """Every link federation has in the kernel."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._carriers: dict[int, Carrier] = {}
        self._number = 0

    def __iter__(self) -> Iterator[Carrier]:
        return iter(self._carriers.values())

    def of(self, owner: str) -> list[Carrier]:
        """The carriers of one owner."""
        return [carrier for carrier in self._carriers.values() if carrier.owner == owner]

    def open(self, uplink: str, owner: str, ask: OpenLink) -> Change:
        """Open one more; the number in `ask` is given here."""
        self._number += 1
        ask = replace(ask, link=self._number)
        self._carriers[self._number] = Carrier(uplink, owner, ask)
        return ask

    def close(self, owner: str) -> list[Change]:
        """Close what an owner has."""
        gone = [number for number, carrier in self._carriers.items() if carrier.owner == owner]
        live = (self._carriers[number] for number in gone if self._carriers[number].retry_ns is None)
        changes: list[Change] = [CloseLink(carrier.ask.conn, carrier.ask.link) for carrier in live]
        for number in gone:
            del self._carriers[number]
        return changes

    def lose(self, uplink: str) -> None:
        """The connection under an uplink is gone, and with it every carrier on it."""
        for number in [n for n, carrier in self._carriers.items() if carrier.uplink == uplink]:
            del self._carriers[number]

    def on_attached(self, event: LinkAttached) -> Carrier | None:
        """The peer took a carrier."""
        carrier = self._carriers.get(event.link)
        if carrier is not None:
            carrier.state, carrier.cause, carrier.failures = "flowing", "", 0
            carrier.address = event.address
        return carrier

    def on_detached(self, event: LinkDetached, now_ns: int) -> Carrier | None:
        """The peer refused a carrier or gave it up."""
        carrier = self._carriers.get(event.link)
        if carrier is not None:
            carrier.state = "refused"
            carrier.cause = f"{event.condition}: {event.text}" if event.text else event.condition or "detached"
            carrier.failures += 1
            carrier.retry_ns = now_ns + wait_ns(carrier.failures, RETRY_MAX_MS, self._chance())
        return carrier

    def tick(self, now_ns: int) -> list[Change]:
        """Open again what is due."""
        due = [n for n, c in self._carriers.items() if c.retry_ns is not None and c.retry_ns <= now_ns]
        changes: list[Change] = []
        for number in due:
            carrier = self._carriers.pop(number)
            self._number += 1
            carrier.ask = replace(carrier.ask, link=self._number)
            carrier.state, carrier.retry_ns = "attaching", None
            self._carriers[self._number] = carrier
            changes.append(carrier.ask)
        return changes

    @property
    def due_ns(self) -> int | None:
        """When `tick` has something to do."""
        return min((c.retry_ns for c in self._carriers.values() if c.retry_ns is not None), default=None)
