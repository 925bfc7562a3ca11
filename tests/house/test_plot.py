"""The bench's plot shows what each size of message costs: a point for every one, at its median and its p99."""

import re

import pytest

from house import tree

TRIPS = {1: (20.0, 40.0), 1024: (30.0, 60.0), 16_384: (90.0, 200.0), 131_072: (400.0, 900.0)}
"""Bytes, and p50 and p99 in microseconds."""


def test_a_round_trip_is_drawn_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tree.ROOT / "benchmarks"))
    from report import plot

    drawn = plot({"weft": TRIPS, "rabbitmq": {size: (p50 * 3, p99 * 3) for size, (p50, p99) in TRIPS.items()}})
    for name in ("1", "1 KiB", "16 KiB", "128 KiB"):
        assert f">{name}</text>" in drawn
    assert drawn.count("<circle") == 2 * len(TRIPS)
    lines = [
        [tuple(map(float, point.split(","))) for point in points.split()]
        for points in re.findall(r'<polyline points="([^"]+)"', drawn)
    ]
    assert [len(line) for line in lines] == [len(TRIPS)] * 4
    for p50, p99 in (lines[:2], lines[2:]):
        assert [x for x, _ in p50] == [x for x, _ in p99] == sorted(x for x, _ in p50)
        # The axis points down: what takes longer is drawn higher.
        assert all(slow < usual for (_, usual), (_, slow) in zip(p50, p99, strict=True))
        assert [y for _, y in p50] == sorted((y for _, y in p50), reverse=True)
