"""Topology: edges and conversations from traces, and the nodes nobody could do without."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.testing import assertDataFrameEqual

from weft.pipeline import synthetic, topology

Table = Callable[[pa.Table], DataFrame]


def test_edges_and_single_points(table: Table) -> None:
    traces = [["a", "b", "c"], ["a", "b", "c"], ["d", "b"], ["c"]]
    rows = synthetic.rows("s", 4, trace=traces, origin=["a", "a", "d", "c"], app_id=["x", "x", "y", "z"],
                          body=[b"12", b"34", b"5", b""])  # fmt: skip
    talks = topology.conversations(table(rows))
    hops = topology.edges(talks)
    assertDataFrameEqual(
        hops,
        [
            Row(source="a", target="b", messages=2, bytes=4),
            Row(source="b", target="c", messages=2, bytes=4),
            Row(source="d", target="b", messages=1, bytes=1),
        ],
    )
    assert topology.single_points(hops) == ["b"]
    assertDataFrameEqual(topology.edges(talks.union(talks)).select("messages"), [Row(messages=m) for m in (4, 4, 2)])


@pytest.mark.parametrize(
    ("pairs", "points"),
    [
        ([], []),
        ([("a", "b"), ("b", "c"), ("c", "a")], []),
        ([("a", "b"), ("b", "c"), ("c", "d")], ["b", "c"]),
        ([("a", "b"), ("b", "a"), ("c", "d")], []),
        ([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "c")], ["c"]),
    ],
)
def test_articulation_points(pairs: list[tuple[str, str]], points: list[str]) -> None:
    assert topology.articulation_points(pairs) == points


def test_articulation_points_of_a_long_chain() -> None:
    assert len(topology.articulation_points((f"{n:05}", f"{n + 1:05}") for n in range(5_000))) == 4_999


def test_connections(table: Table) -> None:
    events = [("opened", "a"), ("opened", "a"), ("closed", "a"), ("opened", "b"), ("closed", "c")]
    bodies = [json.dumps({"kind": kind, "node": node, "class": "connection"}).encode() for kind, node in events]
    counted = topology.connections(table(synthetic.rows("events", 5, body=bodies)))
    found = topology.merge_connections(counted.union(counted)).select("node", "opened", "open")
    expected = [("a", 4, 2), ("b", 2, 2), ("c", 0, 0)]
    assertDataFrameEqual(found, [Row(node=node, opened=opened, open=there) for node, opened, there in expected])
