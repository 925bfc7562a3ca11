"""Audit: a message is found by what is known of it, and its replay says what it is."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from weft.model.errors import ConfigError
from weft.pipeline import synthetic
from weft.pipeline.audit import REPLAY, REPLAY_OF, Search, find, replay
from weft.spark.schema import check_message

Table = Callable[[pa.Table], DataFrame]


@pytest.fixture
def rows(table: Table) -> DataFrame:
    return table(
        synthetic.rows(
            "s", 4, enqueue_time=[synthetic.START_US + second * 1_000_000 for second in range(4)],
            exchange=["bank", "bank", "shop", "bank"], routing_key=["a.b", "a+c", "a.b", "axb"],
            message_id=["m0", "m1", "m2", None],
            headers=[[("tenant", "x")], [], [("tenant", "y"), (REPLAY, "old")], []],
            body=[b"one", b"two", b"three", b"four"],
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("search", "offsets"),
    [
        (Search(), [0, 1, 2, 3]),
        (Search(address="a.b"), [0, 2]),
        (Search(address="bank/a.*"), [0]),
        (Search(address="a?c"), [1]),
        (Search(since="2027-01-15 08:00:01", until="2027-01-15 08:00:03"), [1, 2]),
        (Search(message_id="m2"), [2]),
        (Search(headers={"tenant": "y"}), [2]),
        (Search(body_contains="o", address="a.b"), [0]),
    ],
)
def test_find(rows: DataFrame, search: Search, offsets: list[int]) -> None:
    assert [row["offset"] for row in find(rows, search).collect()] == offsets


def test_replay_is_marked_and_repeatable(rows: DataFrame) -> None:
    messages = replay(rows, "again")
    check_message(messages.schema, has_address=False)
    found = {row["message_id"]: row for row in messages.collect()}
    assert sorted(found) == [f"replay:again:s/0/{offset}" for offset in range(4)]
    third = found["replay:again:s/0/2"]
    assert third["headers"] == {"tenant": "y", REPLAY: "again", REPLAY_OF: "m2"}
    assert (third["exchange"], third["routing_key"], bytes(third["body"])) == ("shop", "a.b", b"three")
    assert found["replay:again:s/0/3"]["headers"][REPLAY_OF] == "s/0/3"
    elsewhere = replay(rows, "again", address="test/copy").first()
    assert elsewhere is not None
    assert (elsewhere["exchange"], elsewhere["routing_key"]) == ("test", "copy")


def test_a_replay_does_not_repeat_its_own_copies(rows: DataFrame) -> None:
    assert {row["message_id"] for row in replay(rows, "old").collect()} == {f"replay:old:s/0/{n}" for n in (0, 1, 3)}


def test_a_key_that_is_there_twice(table: Table) -> None:
    twice = table(synthetic.rows("s", 1, headers=[[("a", "1"), ("a", "2"), ("b", None)]], routing_key=["a\nb"]))
    (row,) = replay(find(twice, Search(address="a*")), "again").collect()
    assert row["headers"] == {"a": "1", "b": None, REPLAY: "again", REPLAY_OF: "s/0/0"}


def test_replay_without_a_name(rows: DataFrame) -> None:
    with pytest.raises(ConfigError, match="name"):
        replay(rows, "")
