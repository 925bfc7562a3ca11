"""Integrity: losses per path are counted exactly, and redundancy is judged against P_loss^n."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from weft.pipeline import integrity, synthetic

Table = Callable[[pa.Table], DataFrame]


def numbered(*seen: tuple[int, str]) -> pa.Table:
    return synthetic.rows(
        "s", len(seen), app_id=["p"] * len(seen), origin=["a"] * len(seen),
        headers=[[("sequence", str(number))] for number, _ in seen], trace=[list(path) for _, path in seen],
    )  # fmt: skip


def test_losses_and_duplicates_by_path(table: Table) -> None:
    rows = numbered((1, "ab"), (2, "ab"), (2, "ab"), (4, "ab"), (1, "ac"), (4, "ac"))
    seen = integrity.sightings(table(rows))
    found = integrity.paths(seen).select("path", "expected", "seen", "lost", "duplicates", "p_loss")
    assertDataFrameEqual(
        found,
        [
            Row(path="a > b", expected=4, seen=3, lost=1, duplicates=1, p_loss=0.25),
            Row(path="a > c", expected=4, seen=2, lost=2, duplicates=0, p_loss=0.5),
        ],
    )
    assertDataFrameEqual(integrity.gaps(seen), [Row(sender="p", first=3, last=3, messages=1)])


def test_sightings_of_two_batches_merge(table: Table) -> None:
    first, second = numbered((1, "ab"), (2, "ab")), numbered((2, "ab"), (3, "ab"))
    seen = integrity.sightings(table(first)).union(integrity.sightings(table(second)))
    row = integrity.paths(seen).first()
    assert row is not None
    assert (row["seen"], row["lost"], row["duplicates"]) == (3, 0, 1)


def test_messages_without_number_or_trace(table: Table) -> None:
    rows = numbered((1, ""), (2, ""))
    wrong = rows.set_column(rows.schema.get_field_index("headers"), rows.schema.field("headers"),
                            pa.array([[("sequence", "many")], []], rows.schema.field("headers").type))  # fmt: skip
    seen = integrity.sightings(table(pa.concat_tables([rows, wrong])))
    assertDataFrameEqual(integrity.paths(seen).select("path", "seen"), [Row(path="a", seen=2)])


@pytest.mark.parametrize("paths", [1, 2, 3])
def test_p_failure_is_p_loss_to_the_n(table: Table, paths: int) -> None:
    loss = 0.2
    rows = synthetic.copies(5_000, {("a", f"r{number}", "z"): loss for number in range(paths)}, seed=7)
    row = integrity.redundancy(integrity.sightings(table(rows))).first()
    assert row is not None
    assert row["paths"] == paths
    assert row["p_failure_low"] <= loss**paths <= row["p_failure_high"]
    assert row["independent"]


def test_paths_that_fail_together_are_told(table: Table) -> None:
    # Both copies of each message pass the same relay: what it loses is lost on both paths.
    one = synthetic.copies(2_000, {("a", "r", "z"): 0.2}, seed=3)
    traces = pa.array([["a", "r", "y"]] * one.num_rows, one.schema.field("trace").type)
    other = one.set_column(one.schema.get_field_index("trace"), one.schema.field("trace"), traces)
    row = integrity.redundancy(integrity.sightings(table(pa.concat_tables([one, other])))).first()
    assert row is not None
    assert not row["independent"]


def test_confirmed_and_never_seen(spark: SparkSession, table: Table) -> None:
    confirmed = spark.createDataFrame([Row(message_id=f"sender-{number}") for number in range(5)])
    rows = synthetic.copies(3, {("a", "b"): 0.0})
    lost = integrity.unseen(confirmed, table(rows)).orderBy("message_id")
    assertDataFrameEqual(lost, [Row(message_id="sender-3"), Row(message_id="sender-4")])


def test_deduplicate_keeps_the_first(table: Table) -> None:
    rows = synthetic.rows("s", 5, message_id=["a", "b", "a", None, None])
    assertDataFrameEqual(
        integrity.deduplicate(table(rows)).select("offset"), [Row(offset=number) for number in (0, 1, 3, 4)]
    )
