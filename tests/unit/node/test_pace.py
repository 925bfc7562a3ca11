"""Resting between small reads: only where it pays, and for as long as it does."""

from __future__ import annotations

from collections.abc import Callable

from weft.node.pace import PATIENCE_TURNS, TRIAL_TURNS, TURNS, Pace

REST_NS = 100_000
Peer = Callable[[int], int]
"""How many bytes are there after so many nanoseconds."""


def drive(pace: Pace, peer: Peer, turns: int, work_ns: int = 6_000, start_ns: int = 0) -> tuple[int, int]:
    """Turn a loop that reads what a peer sent; bytes read, and when it ends."""
    now_ns, since_ns, total = start_ns, work_ns, 0
    for _ in range(turns):
        read = peer(since_ns)
        total += read
        now_ns += work_ns
        since_ns = work_ns
        if pace.turn(read, now_ns):
            now_ns += REST_NS
            since_ns += REST_NS
    return total, now_ns


def streams(since_ns: int) -> int:
    """A message of 1 KiB every 5 µs, whatever we do."""
    return since_ns // 5_000 * 1_024


def asks(_since_ns: int) -> int:
    """One message, and the next after our answer."""
    return 1_024


def test_a_stream_of_small_reads_is_read_in_larger_ones() -> None:
    pace = Pace()
    drive(pace, streams, TURNS + TRIAL_TURNS)
    assert pace.resting
    drive(pace, streams, 2_000)
    assert pace.rests > 1_500


def test_who_waits_for_our_answer_is_not_slowed_down() -> None:
    pace = Pace()
    drive(pace, asks, TURNS + 10 * PATIENCE_TURNS)
    assert pace.rests <= 11 * TRIAL_TURNS


def test_full_reads_and_rare_ones_are_left_alone() -> None:
    full, rare = Pace(), Pace()
    drive(full, lambda _since_ns: 200_000, 10_000, work_ns=60_000)
    drive(rare, asks, 10_000, work_ns=100_000)
    assert (full.rests, rare.rests) == (0, 0)


def test_resting_ends_with_the_stream() -> None:
    pace = Pace()
    _, now_ns = drive(pace, streams, 1_000)
    before = pace.rests
    assert before > 0
    drive(pace, asks, 5_000, start_ns=now_ns)
    assert pace.rests - before <= 300
    assert not pace.resting
