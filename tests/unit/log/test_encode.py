"""Rows of Arrow as messages: what is wrong is said before anything is sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from weft._kernel import encode_messages


def test_every_row_is_one_message() -> None:
    table = pa.table(
        {"body": ["a", None, "c"], "headers": pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string()))}
    )
    assert len(encode_messages(table)) == 3
    assert len(encode_messages(table.to_batches()[0].slice(1))) == 2
    assert len(encode_messages(pa.table({"body": pa.array([], pa.binary())}))) == 0


@pytest.mark.parametrize(
    ("columns", "addressed", "said"),
    [
        ({"message_id": ["a"]}, False, "there is no column body"),
        ({"body": [1]}, False, "body must be binary or text, not Int64"),
        ({"body": ["a"], "colour": ["red"]}, False, "a message has no colour, only body, address"),
        ({"body": ["a"], "headers": ["x"]}, False, "headers must be a map of text to text, not Utf8"),
        ({"body": ["a"], "creation_time": [5]}, False, "creation_time must be a timestamp, not Int64"),
        ({"body": ["a", "b"], "priority": [1, 256]}, False, "row 1: priority is 0 to 255, not 256"),
        ({"body": ["a"], "ttl_ms": [-1]}, False, "row 0: ttl_ms is 0 to 4294967295, not -1"),
        ({"body": ["a"], "content_type": ["größe"]}, False, 'row 0: content_type must be ASCII, not "größe"'),
        ({"body": ["a"], "routing_key": [""]}, True, "row 0: nothing says where it goes"),
    ],
)
def test_mistakes(columns: dict[str, Any], addressed: bool, said: str) -> None:
    with pytest.raises(ValueError, match=f"^these rows cannot become messages: {said}"):
        encode_messages(pa.table(columns), addressed=addressed)


def test_what_is_no_table() -> None:
    with pytest.raises(TypeError, match="Arrow's C stream interface"):
        encode_messages([{"body": b"x"}])


def test_a_stream_that_was_taken_says_so() -> None:
    class Taken:
        def __arrow_c_stream__(self) -> object:
            raise ValueError("the stream was taken before")

    with pytest.raises(ValueError, match="the stream was taken before"):
        encode_messages(Taken())


def test_rows_without_a_number_left_are_refused() -> None:
    table = pa.table({"body": ["a", "b"]})
    with pytest.raises(ValueError, match="row 1: its number is over 18446744073709551615"):
        encode_messages(table, identity="job", first=2**64 - 1)
