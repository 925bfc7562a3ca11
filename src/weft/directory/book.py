"""The entries every node of a fabric has a copy of, and how copies become equal.

Owns records (an entry, or the mark that one is gone) and the rule which of two wins. Own changes and records of
neighbours come in; the records that must be told to others go out. No time, no socket, no fabric is in here.
It must never forget an own ephemeral entry while this node lives, whatever others say.
Rule: the higher (version, owner) wins, and a version is above all that were seen (Lamport's clock), but for those that
leap. Who is said to be gone and is not says so with a higher version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weft.directory.base import Value, is_below
from weft.model.errors import RemoteProtocolError, Unavailable

RECORDS_MAX = 200_000
"""Entries and marks of one fabric: 10,000 nodes with ten services and as many settings each."""
MARKS_MAX = 20_000
"""Marks of ephemeral entries that are kept, twice as many at times, the newest of them: names of nodes and services
that come once and never again would fill the book.
"""
VERSION_END = 2**62
LEAP_MAX = 2**40
"""How far a version may be ahead of all that were seen and still move this node's clock: more changes than a fabric
makes in a century. One that is further ahead counts for its own path alone; else one mistake would leave nobody a
number for the next change.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """An entry, or with no value the mark that it is gone."""

    path: str
    value: Value | None
    version: int
    owner: str
    ephemeral: bool = False

    @property
    def rank(self) -> tuple[int, str]:
        """Of two records of one path the higher rank wins."""
        return self.version, self.owner

    def to_table(self) -> dict[str, Any]:
        """As it is told to others."""
        return {"p": self.path, "v": self.value, "n": self.version, "o": self.owner, "e": self.ephemeral}


def record_of(table: object) -> Record:
    """What another node told; RemoteProtocolError if it is no record."""
    match table:
        case {"p": str(path), "v": dict() | None as value, "n": int(version), "o": str(owner), "e": bool(ephemeral)}:
            if 0 < version < VERSION_END and path.startswith("/"):
                return Record(path, value, version, owner, ephemeral)
    raise RemoteProtocolError("an entry of the directory that is none")


class Book:
    """One node's copy."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._records: dict[str, Record] = {}
        self._marks: set[str] = set()
        """Paths of ephemeral entries that are gone."""
        self._clock = 0
        self._own: dict[str, Value] = {}
        """Ephemeral entries this node has put and not taken back."""

    def get(self, path: str) -> Record | None:
        """The entry of a path."""
        record = self._records.get(path)
        return None if record is None or record.value is None else record

    def entries(self, prefix: str) -> list[Record]:
        """The entries at and below a path."""
        return [r for path, r in sorted(self._records.items()) if r.value is not None and is_below(path, prefix)]

    def all(self) -> list[Record]:
        """Everything, marks too: what a neighbour is told when it joins."""
        return list(self._records.values())

    def put(self, path: str, value: Value, *, ephemeral: bool) -> Record:
        """A change made here."""
        if path not in self._records and len(self._records) >= RECORDS_MAX:
            raise Unavailable(f"the directory is full: more than {RECORDS_MAX} entries")
        if ephemeral:
            self._own[path] = value
        else:
            self._own.pop(path, None)
        return self._write(path, value, ephemeral)

    def delete(self, path: str) -> Record | None:
        """Taken away here; None if it was not there."""
        self._own.pop(path, None)
        record = self.get(path)
        return None if record is None else self._write(path, None, record.ephemeral)

    def load(self, records: Iterable[Record]) -> None:
        """What was stored."""
        for record in records:
            self._see(record.version)
            self._set(record)

    def merge(self, records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
        """Records of a neighbour: (those that were news, our answers to what is wrong about us)."""
        news: list[Record] = []
        answers: list[Record] = []
        for record in records:
            self._see(record.version)
            known = self._records.get(record.path)
            if known is not None and known.rank >= record.rank:
                continue
            if known is None and record.value is None and record.ephemeral:
                self._set(record)  # no news: an old mark that others have dropped must not go round for ever
                continue
            if known is None and len(self._records) >= RECORDS_MAX:
                raise RemoteProtocolError(f"more than {RECORDS_MAX} entries in the directory")
            mine = self._own.get(record.path)
            if mine is not None and record.value != mine:
                answers.append(self._write(record.path, mine, True))
            elif mine is None and record.ephemeral and record.owner == self._node and record.value is not None:
                answers.append(self._write(record.path, None, True))  # of a former life of this node
            else:
                self._set(record)
                news.append(record)
        return news, answers

    def drop_owner(self, owner: str) -> list[Record]:
        """A node is taken for dead: marks for all ephemeral entries of it."""
        paths = [p for p, r in self._records.items() if r.owner == owner and r.ephemeral and r.value is not None]
        return [self._write(path, None, True) for path in paths]

    def _see(self, version: int) -> None:
        if self._clock < version <= self._clock + LEAP_MAX:
            self._clock = version

    def _write(self, path: str, value: Value | None, ephemeral: bool) -> Record:
        self._clock += 1
        known = self._records.get(path)
        version = self._clock if known is None else max(self._clock, known.version + 1)
        record = Record(path, value, version, self._node, ephemeral)
        self._set(record)
        return record

    def _set(self, record: Record) -> None:
        self._records[record.path] = record
        self._marks.discard(record.path)
        if record.value is None and record.ephemeral:
            self._marks.add(record.path)
            if len(self._marks) >= 2 * MARKS_MAX:
                oldest = sorted(self._marks, key=lambda path: self._records[path].rank)[:MARKS_MAX]
                for path in oldest:
                    del self._records[path]
                self._marks.difference_update(oldest)


def to_tables(records: Iterable[Record]) -> list[Mapping[str, Any]]:
    """Records as they are told."""
    return [record.to_table() for record in records]
