"""Positions and slices: pure functions, so no session is needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.spark import offsets
from weft.spark.offsets import Extent, Place, Position, Slice


def at(**places: int) -> Position:
    return {f"{name}/0": Place(life="1", next=offset) for name, offset in places.items()}


positions = st.dictionaries(st.sampled_from("abc"), st.integers(0, 100_000)).map(lambda places: at(**places))


@settings(deadline=None)
@given(positions, positions, st.integers(1_000, 50_000), st.integers(0, 8))
def test_slices_cover_the_way_exactly_once(start: Position, end: Position, rows_max: int, parts_min: int) -> None:
    end = offsets.forward(start, end)
    cut = offsets.slices(start, end, rows_max=rows_max, parts_min=parts_min)
    assert cut == offsets.slices(start, end, rows_max=rows_max, parts_min=parts_min)
    assert all(0 < piece.end - piece.start <= rows_max for piece in cut)
    for key, place in end.items():
        expected = offsets.begin(start, key, place["life"])[0]
        for piece in cut:
            if piece.stream == key[0]:
                assert piece.start == expected
                expected = piece.end
        assert expected == place["next"]


@settings(deadline=None)
@given(positions, positions, st.integers(1, 200_000))
def test_limit_goes_on_and_never_too_far(start: Position, end: Position, rows_max: int) -> None:
    end = offsets.forward(start, end)
    limited = offsets.limit(start, end, rows_max)
    waits, taken = offsets.available(start, end), offsets.available(start, limited)
    assert taken <= max(rows_max, 1)
    assert taken > 0 or waits == 0
    assert all(limited[key]["next"] <= end[key]["next"] for key in limited)
    assert taken >= min(waits, rows_max) - len(end)


def test_there_is_a_limit_on_slices() -> None:
    cut = offsets.slices({}, at(a=100_000_000), rows_max=1, parts_min=1)
    assert len(cut) == offsets.SLICES_MAX


@pytest.mark.parametrize(
    ("rows", "parts_min", "tasks"), [(100_000, 0, 1), (200_000, 0, 2), (900_000, 0, 2), (100_000, 4, 4)]
)
def test_few_rows_are_one_task(rows: int, parts_min: int, tasks: int) -> None:
    assert len(offsets.slices({}, at(a=rows), rows_max=1_000_000, parts_min=parts_min)) == tasks


def test_shares_follow_what_waits() -> None:
    limited = offsets.limit(at(a=0, b=0), at(a=900, b=100), 100)
    assert {key: place["next"] for key, place in limited.items()} == {"a/0": 90, "b/0": 10}


def test_new_life_is_read_from_its_beginning() -> None:
    end: Position = {"a/0": Place(life="2", next=5)}
    assert offsets.slices(at(a=70), end, rows_max=10, parts_min=1) == [Slice("a", 0, "2", 0, 5, False)]


def test_shard_that_appears_is_fresh() -> None:
    assert offsets.slices({}, at(a=5), rows_max=10, parts_min=1) == [Slice("a", 0, "1", 0, 5, True)]


def test_every_piece_of_a_shard_that_appears_is_fresh() -> None:
    cut = offsets.slices({}, at(a=30_000), rows_max=10_000, parts_min=1)
    assert [(piece.start, piece.fresh) for piece in cut] == [(0, True), (10_000, True), (20_000, True)]


def test_limits_count_rows_that_are_there() -> None:
    extents = {extent.key: extent for extent in (Extent("a", 0, "1", 900, 1_000), Extent("b", 0, "1", 50, 60))}
    end = at(a=1_000, b=60)
    start = offsets.held(at(a=0, b=55), end, extents)
    assert start == at(a=900, b=55)
    assert offsets.available(start, end) == 105
    assert offsets.limit(start, end, 21) == at(a=920, b=56)
    again: Position = {"a/0": Place(life="2", next=7)}
    assert offsets.held(at(a=5), again, extents) == at(a=5), "another life's first offset says nothing"


def test_losses_are_told() -> None:
    extents = {extent.key: extent for extent in (
        Extent("kept", 0, "1", 0, 9), Extent("cut", 0, "1", 5, 9), Extent("again", 0, "2", 0, 9),
        Extent("short", 0, "1", 0, 2),
    )}  # fmt: skip
    told = offsets.losses(at(kept=4, cut=4, again=4, short=4, gone=4), extents)
    assert [line.split()[1] for line in told] == ["again/0", "cut/0", "gone/0", "short/0"]
    assert offsets.losses(at(kept=9, cut=5), extents) == []


def test_a_query_never_goes_back() -> None:
    assert offsets.forward(at(a=9, b=1), at(a=4, b=2)) == at(a=9, b=2)
