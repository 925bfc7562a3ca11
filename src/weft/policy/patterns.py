"""Patterns: regular expressions over resource names that cannot stall the node.

Owns the way from an operator's text to a compiled pattern, or to a ConfigError that says what is wrong with it.
Matching is a search, unanchored, as in RabbitMQ; the empty pattern stands for `^$` and so matches only the empty name.
Names are chosen by strangers and matching runs on the loop's thread, so patterns that could take long are refused here.
The bound: alternatives that a backtracking matcher may try on a name of 256 characters, counted over the pattern's
structure.
"""

from __future__ import annotations

import re
import warnings

from weft.model.errors import ConfigError

NAME_CHARS_MAX = 256
PATTERN_CHARS_MAX = 512
GROUP_DEPTH_MAX = 16
STEPS_MAX = NAME_CHARS_MAX**3
"""Some tenths of a second at the very worst; everyday patterns stay below NAME_CHARS_MAX squared."""

_ANYTHING = ".*"
_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP_START = re.compile(r"\(\?(?:[:=!>]|<[=!]|P<\w+>)")


def compile_pattern(text: str) -> re.Pattern[str]:
    """The pattern to search names with."""
    if len(text) > PATTERN_CHARS_MAX:
        raise ConfigError(f"a pattern has {len(text)} characters, at most {PATTERN_CHARS_MAX} are allowed")
    if not text:
        return re.compile("^$")
    shorter = _without_ends(text)
    steps = _Estimate(shorter).steps()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pattern = re.compile(shorter)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise ConfigError(f"pattern '{text}' is not a regular expression: {error}") from None
    if steps > STEPS_MAX:
        raise ConfigError(f"pattern '{text}' could take too long: use fewer or simpler repetitions")
    return pattern


def matches(pattern: re.Pattern[str], name: str) -> bool:
    """Does the pattern occur in the name? Never in one longer than AMQP allows."""
    return len(name) <= NAME_CHARS_MAX and pattern.search(name) is not None


def _without_ends(text: str) -> str:
    """In a search, `.*` at either end changes nothing but the time it takes."""
    if text.startswith(_ANYTHING) and text[2:3] not in {"?", "+", "*", "{"}:
        text = text.removeprefix(_ANYTHING)
    return text if text.endswith("\\.*") else text.removesuffix(_ANYTHING)


class _Estimate:
    """Walks a pattern and multiplies the choices it leaves to a matcher; syntax is left to `re`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def steps(self) -> float:
        starts = 1 if self._text.startswith("^") else NAME_CHARS_MAX
        steps = 0.0
        while self._at < len(self._text):  # once, but for a `)` too many
            steps += self._alternatives(0)
            self._at += 1
        return starts * max(steps, 1)

    def _alternatives(self, depth: int) -> float:
        if depth > GROUP_DEPTH_MAX:
            raise ConfigError(f"a pattern has more than {GROUP_DEPTH_MAX} groups inside each other")
        total, branch = 0.0, 1.0
        while self._at < len(self._text) and self._text[self._at] != ")":
            if self._text[self._at] == "|":
                self._at += 1
                total, branch = total + branch, 1.0
            else:
                branch *= self._repeated(self._atom(depth))
        return total + branch

    def _atom(self, depth: int) -> float:
        """Skip one atom; how many ways it has to match."""
        character = self._text[self._at]
        self._at += 1
        if character == "\\":
            if self._text[self._at : self._at + 1].isdecimal():
                raise ConfigError("a pattern may not refer back to a group")
            self._at += 1
        elif character == "[":
            end = re.compile(r"\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL).match(self._text, self._at)
            self._at = end.end() if end else len(self._text)
        elif character == "(":
            start = _GROUP_START.match(self._text, self._at - 1)
            self._at = start.end() if start else self._at
            ways = self._alternatives(depth + 1)
            self._at += 1
            return ways
        return 1

    def _repeated(self, ways: float) -> float:
        """Skip the quantifiers after an atom; how many ways they make of its ways."""
        while self._at < len(self._text):
            character = self._text[self._at]
            repeat = _REPEAT.match(self._text, self._at)
            if character in "*+":
                ways = NAME_CHARS_MAX if ways == 1 else float("inf")
            elif character == "?":
                ways += 1
            elif repeat:
                ways = self._counted(ways, *repeat.groups())
                self._at = repeat.end() - 1
            else:
                break
            self._at += 1
            if self._text[self._at : self._at + 1] in {"?", "+"}:
                self._at += 1  # lazy or possessive: the same choices, in another order
        return ways

    @staticmethod
    def _counted(ways: float, low: str, comma: str, high: str) -> float:
        low_count = int(low or 0)
        high_count = int(high) if high else (NAME_CHARS_MAX if comma else low_count)
        choices = max(high_count - low_count, 0) + 1
        if ways == 1:
            return choices
        return float("inf") if high_count > 64 else choices * ways**high_count
