"""Reading a document in parts gives what reading it at once gives."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from time import monotonic_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.management.reading import json_object, json_value
from weft.management.turns import REST_S, Turns, heed
from weft.model.errors import Refused

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5), st.sampled_from([None, 1, "\t"]))
def test_an_object_is_what_json_says(document: dict[str, object], indent: int | str | None) -> None:
    data = json.dumps(document, indent=indent).encode()
    assert asyncio.run(json_object(data, "it")) == json.loads(data)


@given(st.text(alphabet='{}[]:,"1a \\', max_size=12))
def test_what_is_no_object_is_refused_in_one_sentence(text: str) -> None:
    try:
        right = json.loads(text)
    except ValueError:
        right = None
    if isinstance(right, dict):
        assert asyncio.run(json_object(text.encode(), "it")) == right
        return
    with pytest.raises(Refused, match=r"it (is not JSON|must be a JSON object)"):
        asyncio.run(json_object(text.encode(), "it"))


@pytest.mark.parametrize("data", [b"\xff", b'{"a": ' + b"[" * 100_000, b'{"a": 1} x', b'{"a" 1}', b"{1: 2}", b"[1]"])
def test_bytes_that_are_no_document(data: bytes) -> None:
    with pytest.raises(Refused, match=r"it (is not JSON|must be a JSON object)"):
        asyncio.run(json_object(data, "it"))


async def test_others_have_their_turn_meanwhile() -> None:
    data = json.dumps({"queues": [{"name": f"queue-{number}"} for number in range(20_000)]}).encode()
    reading = asyncio.create_task(json_object(data, "it"))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert len((await reading)["queues"]) == 20_000
    assert turns > 20  # 0.1 ms each: no machine reads all of it in two


async def test_parts_of_many_follow_each_other_with_turns_in_between() -> None:
    order: list[str] = []

    async def work(name: str) -> None:
        turns = Turns()
        for _ in range(3):
            order.append(name)
            await turns.give_way()

    async def watch() -> None:
        for _ in range(40):
            order.append(".")
            await asyncio.sleep(0)

    await asyncio.gather(work("a"), work("b"), work("c"), watch())
    text = "".join(order)
    parts = text.replace(".", "")
    assert parts == "abcabcabc"
    later = text[text.index(".") :]
    assert all(first == "." or second == "." for first, second in pairwise(later)), text


async def test_where_messages_flow_the_processor_is_free_between_two_parts() -> None:
    turns, asked = Turns(), []
    heed(lambda: asked.append(None) is None)
    start_ns = monotonic_ns()
    await turns.give_way()
    assert len(asked) == 1
    assert monotonic_ns() - start_ns > REST_S * 0.5e9


async def test_a_part_is_over_after_a_while_whoever_works_in_it() -> None:
    turns = Turns()
    deadline = monotonic_ns() + 10**10
    while not turns.is_over:
        assert monotonic_ns() < deadline
    assert Turns().is_over  # in the same turn of the loop: what follows has only what was left


@pytest.mark.parametrize("text", ['{"a": "\\udcff"}', '{"\\ud83d": 1}', '{"a": [1, {"b": "\\uDE00\\ud83d"}]}'])
def test_half_of_a_character_is_no_text(text: str) -> None:
    with pytest.raises(Refused, match="half of a character"):
        asyncio.run(json_object(text.encode(), "it"))
    with pytest.raises(ValueError, match="half of a character"):
        json_value(text.encode())
    whole = text.replace("\\udcff", "\\ud83d\\ude00")
    if whole != text:
        assert asyncio.run(json_object(whole.encode(), "it")) == json_value(whole.encode()) == {"a": "😀"}
