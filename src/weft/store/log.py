"""The write-ahead log of the definitions: bits that the disk turned over are turned back.

Owns the look at a log before SQLite opens it. SQLite ends a log at the first frame whose checksum is wrong, and counts
all behind it as never written: one bit would cost every definition since. Frames are summed in a chain of additions,
so that a wrong sum tells which single bit of a frame explains it. A path comes in; the log is put right where that is
certain, and words go out. It must never change a frame on a guess: what else is wrong stays as it is, and a copy of it.
Rule: https://www.sqlite.org/walformat.html, "Checksum Algorithm".
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

HEADER = 32
FRAME_HEADER = 24
MAGIC = 0x377F0682
"""The lowest bit of the first word says whether words are summed as big endian ones."""
PAGE_BYTES_MAX = 1 << 16
PAGES_MAX = 1 << 20
"""More pages than definitions will ever have: a page number beyond is none."""
WORD = 0xFFFFFFFF
ASIDE = ".damaged"
"""What a copy of a log that could not be put right is called, behind the log's own name."""

State = tuple[int, int]


def mend(log: Path) -> list[str]:
    """Put right what can be; what was found, in words. A log that is not there or in order costs one reading."""
    try:
        content = bytearray(log.read_bytes())
    except FileNotFoundError:
        return []
    if len(content) <= HEADER:
        return []
    found = _mend_header(content)
    begin = _Log.of(content)
    if begin is None:
        return [_set_aside(log, "its header cannot be read")]
    mended, end = begin.mend(content)
    found += mended
    if found:
        _replace(log, content)
    if begin.goes_on(content, end):
        found.append(_set_aside(log, f"it cannot be read from byte {end} on"))
    return found


class _Log:
    """A log whose header is good."""

    def __init__(self, order: str, page: int, salts: bytes, state: State) -> None:
        self._order, self._page, self._salts, self._state = order, page, salts, state
        self._span = FRAME_HEADER + page

    @classmethod
    def of(cls, content: bytearray) -> _Log | None:
        magic, _, page = struct.unpack_from(">3I", content)
        order = ">" if magic & 1 else "<"
        state = _sum((0, 0), content[:24], order)
        if magic & ~1 != MAGIC or state != struct.unpack_from(">2I", content, 24) or not 512 <= page <= PAGE_BYTES_MAX:
            return None
        return cls(order, page, bytes(content[16:24]), state)

    def mend(self, content: bytearray) -> tuple[list[str], int]:
        """Put frames right from the first on; what was done, and where the good ones end."""
        found, at = [], HEADER
        while at + self._span <= len(content):
            changed = self._mend_frame(content, at)
            if changed is None:
                break
            found += [f"definitions: a bit of their log was turned over, at byte {place}; it was put right"
                      for place in changed]  # fmt: skip
            self._state = struct.unpack_from(">2I", content, at + 16)
            at += self._span
        return found, at

    def _mend_frame(self, content: bytearray, at: int) -> list[int] | None:
        """The places that were changed, one at most; None if the frame is not good, and not surely one bit from it."""
        state, stored = self._sum_of(content, at, self._state), struct.unpack_from(">2I", content, at + 16)
        salts = int.from_bytes(self._salts) ^ int.from_bytes(content[at + 8 : at + 16])
        if state == stored and salts.bit_count() <= 1:
            content[at + 8 : at + 16] = self._salts
            return [at + 8] if salts else []
        if salts:
            return None
        choices = {
            place: page
            for place in self._turned(content, at, state, stored)
            if (page := _page(content, at, place)) is not None
        }
        if (state[0] ^ stored[0]).bit_count() + (state[1] ^ stored[1]).bit_count() == 1:
            is_right = self._is_right(content, at, state)
            if is_right or (is_right is None and not choices):
                struct.pack_into(">2I", content, at + 16, *state)
                return [at + 16]
            if is_right is None:
                return None
        # Where several bits would explain the sum, it does not matter which, if the page was written again later.
        replaced = len(choices) > 1 and all(self._is_replaced(content, at, page) for page in set(choices.values()))
        if len(choices) != 1 and not replaced:
            return None
        byte, bit = next(iter(choices))
        content[byte] ^= 1 << bit
        return [byte]

    def _sum_of(self, content: bytearray, at: int, state: State) -> State:
        """The sum of a frame behind another one with this sum."""
        return _sum(state, content[at : at + 8] + content[at + FRAME_HEADER : at + self._span], self._order)

    def _is_right(self, content: bytearray, at: int, state: State) -> bool | None:
        """Is this the right sum of a frame? The next one was summed with the right one; None if there is none."""
        after = at + self._span
        if after + self._span > len(content):
            return None
        return self._sum_of(content, after, state) == struct.unpack_from(">2I", content, after + 16)

    def _turned(self, content: bytearray, at: int, state: State, stored: State) -> Iterator[tuple[int, int]]:
        """Every byte, and the bit in it, that gives the stored sum when it is turned over."""
        for byte, bit in _turned(state, stored, content[at : at + 8] + content[at + 24 : at + self._span], self._order):
            yield (at + byte if byte < 8 else at + FRAME_HEADER + byte - 8), bit

    def _is_replaced(self, content: bytearray, at: int, page: int) -> bool:
        """Does a later frame, which is good for what its forerunner says, hold this page?"""
        for later in range(at + self._span, len(content) - self._span + 1, self._span):
            number, _, *salts = struct.unpack_from(">2I8s", content, later)
            if number == page and salts == [self._salts]:
                before = struct.unpack_from(">2I", content, later - self._span + 16)
                return self._sum_of(content, later, before) == struct.unpack_from(">2I", content, later + 16)
        return False

    def goes_on(self, content: bytearray, end: int) -> bool:
        """Is there a frame of this log where its good ones end? Those of an older one have other salts."""
        frames = range(end, len(content) - self._span + 1, self._span)
        return any(content[at + 8 : at + 16] == self._salts for at in frames)


def _page(content: bytearray, at: int, place: tuple[int, int]) -> int | None:
    """The page that a frame would hold if a bit of it were turned over; None if there is no such page."""
    page, pages = struct.unpack_from(">2I", content, at)
    turned = 1 << 8 * (3 - (place[0] - at) % 4) + place[1] if place[0] < at + 8 else 0
    page, pages = (page ^ turned, pages) if place[0] < at + 4 else (page, pages ^ turned)
    return page if 0 < page < PAGES_MAX and pages < PAGES_MAX else None


def _sum(state: State, content: bytes | bytearray, order: str) -> State:
    one, two = state
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for first, second in zip(words, words, strict=True):
        one = (one + first + two) & WORD
        two = (two + second + one) & WORD
    return one, two


def _weights(pairs: int) -> Iterator[tuple[State, State]]:
    """What one more in either word of a pair adds to the sum, from the last pair to the first."""
    first, second = (1, 1), (0, 1)
    for _ in range(pairs):
        yield first, second
        first, second = _step(first), _step(second)


def _step(state: State) -> State:
    one = (state[0] + state[1]) & WORD
    return one, (state[1] + one) & WORD


def _turned(state: State, stored: State, content: bytearray, order: str) -> Iterator[tuple[int, int]]:
    """Every byte, and the bit in it, that gives the sum that is stored when it is turned over."""
    missing = (stored[0] - state[0]) & WORD, (stored[1] - state[1]) & WORD
    pairs = len(content) // 8
    for back, weights in enumerate(_weights(pairs)):
        for word, weight in enumerate(weights):
            at = 8 * (pairs - 1 - back) + 4 * word
            (value,) = struct.unpack_from(f"{order}I", content, at)
            for bit in range(32):
                change = -(1 << bit) if value >> bit & 1 else 1 << bit
                if (weight[0] * change & WORD, weight[1] * change & WORD) == missing:
                    yield (at + 3 - bit // 8 if order == ">" else at + bit // 8), bit % 8


def _mend_header(content: bytearray) -> list[str]:
    if _Log.of(content) is not None:
        return []
    for bit in range(HEADER * 8):
        content[bit // 8] ^= 1 << bit % 8
        if _Log.of(content) is not None:
            return [f"definitions: a bit of their log was turned over, at byte {bit // 8}; it was put right"]
        content[bit // 8] ^= 1 << bit % 8
    return []


def _replace(log: Path, content: bytearray) -> None:
    """The log with other bytes, whole or not at all."""
    fresh = log.with_name(f"{log.name}.tmp")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(log)
    folder = os.open(log.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _set_aside(log: Path, why: str) -> str:
    """SQLite will begin the log anew: a copy of what was there stays."""
    copy = log.with_name(log.name + ASIDE)
    shutil.copyfile(log, copy)
    return f"definitions: what was written to their log last may be missing: {why}; a copy of it is {copy}"
