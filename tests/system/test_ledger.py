"""The ledger of the crash tests must see each kind of mistake, or their silence means nothing.

Owns one small history per mistake, and one without any. It must never need a node.
"""

from __future__ import annotations

import pytest

from .ledger import Ledger, Letter

QUEUE = ("q",)


@pytest.fixture
def ledger() -> Ledger:
    """Three messages, two of them confirmed."""
    ledger = Ledger(*QUEUE)
    letters = [ledger.send("p", QUEUE) for _ in range(3)]
    for letter in letters[:2]:
        ledger.confirm(letter, QUEUE)
    return ledger


def words(ledger: Ledger) -> str:
    return "; ".join(ledger.judge()[1])


def arrive(ledger: Ledger, *numbers: int, redelivered: bool = False) -> None:
    for number in numbers:
        ledger.arrivals["q"].arrived(Letter("p", number), redelivered)


def test_what_is_allowed(ledger: Ledger) -> None:
    arrive(ledger, 1, 2, 3)
    arrive(ledger, 2, redelivered=True)
    counts, mistakes = ledger.judge()
    assert mistakes == []
    assert counts == {
        "confirmed": 2,
        "received": 3,
        "lost": 0,
        "duplicated": 1,
        "recovered": 1,
        "unexpected": 0,
    }


def test_loss(ledger: Ledger) -> None:
    arrive(ledger, 1, 3)
    assert ledger.judge()[0]["lost"] == 1
    assert "number=2) is lost" in words(ledger)


def test_disorder(ledger: Ledger) -> None:
    arrive(ledger, 2, 1)
    assert "came first after 2" in words(ledger)


def test_a_stranger(ledger: Ledger) -> None:
    arrive(ledger, 1, 2, 4)
    assert "was never sent" in words(ledger)


def test_a_silent_duplicate(ledger: Ledger) -> None:
    arrive(ledger, 1, 2, 2)
    assert "does not say so" in words(ledger)


def test_a_ghost(ledger: Ledger) -> None:
    arrive(ledger, 1, 2)
    ledger.arrivals["q"].settled.add(Letter("p", 1))
    arrive(ledger, 1, redelivered=True)
    assert "came back" in words(ledger)
