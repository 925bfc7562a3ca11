"""JSON as the kernel writes it: whatever Python reads from it, or says of a value, is the same."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft._kernel import encode_json

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))
def test_what_json_has_comes_back(value: object) -> None:
    text = encode_json(value)
    assert json.loads(text) == value
    assert b"\n" not in text


class Colour(IntEnum):
    RED = 2**70


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ((1, [2]), [1, [2]]),
        (b"\xff\x00", "\ufffd\x00"),
        (math.nan, None),
        (-math.inf, None),
        (Colour.RED, 2**70),
        (Decimal("1.5"), "1.5"),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        ("\ud800", "\ufffd\ufffd\ufffd"),
        (1.0, 1.0),
    ],
)
def test_what_json_has_not_becomes_what_is_nearest(value: object, read: object) -> None:
    assert json.loads(encode_json(value)) == read


def test_nesting_has_an_end() -> None:
    deep: object = 0
    for _ in range(900):
        deep = [deep]
    assert encode_json(deep) == b"[" * 900 + b"0" + b"]" * 900
    for _ in range(2_000):
        deep = [deep]
    with pytest.raises(ValueError, match="too deep"):
        encode_json(deep)
