"""Permission patterns mean what they mean in RabbitMQ, and none can stall the node."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.model.errors import ConfigError
from weft.policy.patterns import PATTERN_CHARS_MAX, compile_pattern, matches


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (".*", ["", "a", "a\nb"], []),
        ("", [""], ["a"]),
        ("^$", [""], ["a"]),
        ("a", ["a", "bab"], ["b"]),
        ("^a", ["ab"], ["ba"]),
        ("^(?!amq\\.).*", ["orders"], ["amq.topic"]),
        (".*\\.dead$", ["a.dead"], ["a.dead.x", "adead"]),
        (".*?x", ["ax"], ["a"]),
        ("a\\.*", ["a...", "a"], ["b"]),
        ("^(celery|celeryev\\..*|.*\\.pidbox)$", ["celery", "celeryev.x", "a.pidbox"], ["celeryx"]),
        ("[]*]x{2}", ["]xx", "*xx"], ["x"]),
        ("^tenant_(1|2|3)\\.(in|out)(\\.dead)?$", ["tenant_2.in", "tenant_3.out.dead"], ["tenant_4.in"]),
    ],
)
def test_matching(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in yes if not matches(compiled, name)] == []
    assert [name for name in no if matches(compiled, name)] == []


@pytest.mark.parametrize("pattern", ["(", "[", "*", "a**", "(?<x>a)", "a{99999999999}", ")(", "[[a]", "\\"])
def test_what_is_no_regular_expression_is_named(pattern: str) -> None:
    with pytest.raises(ConfigError, match="is not a regular expression"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|aa)+$",
        "(a*)*b",
        "(a?){30}a{30}",
        "a?" * 30,
        "(?:x+x+)+y",
        ".*a.*a.*a.*a$",
        "(?=(a+)+b)c",
        "((a|b)*)?c",
    ],
)
def test_what_could_take_long_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="too long"):
        compile_pattern(pattern)


def test_other_bounds() -> None:
    with pytest.raises(ConfigError, match="characters"):
        compile_pattern("a" * (PATTERN_CHARS_MAX + 1))
    with pytest.raises(ConfigError, match="groups"):
        compile_pattern("(" * 100 + ")" * 100)
    with pytest.raises(ConfigError, match="refer back"):
        compile_pattern("(a)\\1")
    assert not matches(compile_pattern(".*"), "a" * 1000)


def test_the_worst_that_is_accepted_ends_soon() -> None:
    pattern = compile_pattern("^a.*a.*a.*b$")
    start_s = time.process_time()
    assert not matches(pattern, "a" * 256)
    assert time.process_time() - start_s < 1


@given(st.text("ab.*+?()[]{}|^$\\2,!", max_size=24), st.text("ab", max_size=40))
def test_any_text_is_a_pattern_or_a_config_error(text: str, name: str) -> None:
    try:
        pattern = compile_pattern(text)
    except ConfigError:
        return
    expected = re.compile(text or "^$").search(name) is not None
    assert matches(pattern, name) == expected
