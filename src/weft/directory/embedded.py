"""The directory that needs no server: every node has all entries, and neighbours tell each other what changed.

Owns this node's copy (`book`), its watchers, and what is stored of it. Changes come from this node and, through
`receive`, from neighbours; what must be told goes out through `spread`, which the network of the node sets.
It must not know links: it is told who joined and who is gone.
Rule: news is passed on to every neighbour but the one it came from, so that it reaches all in any topology and stops
where it is known (`book`). Loss of a neighbour ends the ephemeral entries of it; who lives on says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Self

from weft.directory.base import (
    Difference,
    Entry,
    Value,
    Watch,
    Watcher,
    check_path,
    check_prefix,
    encode_value,
    is_below,
)
from weft.directory.book import Book, Record, record_of, to_tables
from weft.model.errors import RemoteProtocolError

LOG = logging.getLogger("weft.directory")

KIND = "entry"
RECORDS_PER_MESSAGE = 1_000
Spread = Callable[[list[dict[str, Any]], str], None]
"""Sends records to every neighbour but one."""


class Keeper(Protocol):
    """What keeps entries over a restart: the node's store."""

    def objects(self, kind: str) -> dict[str, dict[str, object]]: ...
    def put_object(self, kind: str, name: str, body: dict[str, object]) -> None: ...
    def delete_object(self, kind: str, name: str) -> None: ...
    def transaction(self) -> Any: ...


class Embedded:
    """The directory of one node of a fabric."""

    def __init__(self, node: str, keeper: Keeper | None = None) -> None:
        self._node = node
        self._book = Book(node)
        self._keeper = keeper
        self._stored: set[str] = set()
        """Paths of what is stored."""
        self._watchers: dict[_Watch, None] = {}
        self.spread: Spread = lambda _records, _but: None
        """Set by the network: sends records to all neighbours but one."""

    # the directory

    async def start(self) -> None:
        """Read what was stored."""
        if self._keeper is not None:
            tables = self._keeper.objects(KIND)
            self._stored = set(tables)
            self._book.load(record_of(table) for table in tables.values())

    async def stop(self) -> None:
        """Take back what was ephemeral."""
        for record in self._book.entries(""):
            if record.ephemeral and record.owner == self._node:
                await self.delete(record.path)

    async def put(self, path: str, value: Value, *, ephemeral: bool = False) -> Entry:
        """Make an entry, or change it."""
        encode_value(value)
        record = self._book.put(check_path(path), value, ephemeral=ephemeral)
        self._changed([record], "")
        return _entry(record)

    async def get(self, path: str) -> Entry | None:
        """One entry."""
        record = self._book.get(check_path(path))
        return None if record is None else _entry(record)

    async def delete(self, path: str) -> bool:
        """Take an entry away; was it there?"""
        record = self._book.delete(check_path(path))
        if record is not None:
            self._changed([record], "")
        return record is not None

    async def entries(self, prefix: str) -> list[Entry]:
        """The entries at and below a path."""
        return [_entry(record) for record in self._book.entries(check_prefix(prefix))]

    def known(self) -> list[Entry]:
        """All entries."""
        return [_entry(record) for record in self._book.entries("")]

    async def watch(self, prefix: str, watcher: Watcher) -> Watch:
        """Tell of everything that happens at and below a path."""
        watch = _Watch(self._watchers, check_prefix(prefix), watcher)
        self._watchers[watch] = None
        watcher([Difference(record.path, _entry(record)) for record in self._book.entries(watch.prefix)])
        return watch

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    # the fabric

    def everything(self) -> list[list[dict[str, Any]]]:
        """All records, in pieces, for a neighbour that joined."""
        records = [dict(table) for table in to_tables(self._book.all())]
        return [records[at : at + RECORDS_PER_MESSAGE] for at in range(0, len(records), RECORDS_PER_MESSAGE)]

    def receive(self, sender: str, tables: object, *, but: str = "") -> None:
        """What a neighbour told, but nothing at and below a path; RemoteProtocolError if it makes no sense."""
        if not isinstance(tables, list):
            raise RemoteProtocolError("entries of the directory that are no list")
        records = [record_of(table) for table in tables]
        heard = [record for record in records if not (but and is_below(record.path, but))]
        news, answers = self._book.merge(heard)
        self._changed(news, sender)
        self._changed(answers, "")
        if len(heard) < len(records):
            LOG.warning("%s may not set nodes up: %s entries were left out", sender, len(records) - len(heard))

    def lost(self, node: str) -> None:
        """A neighbour is gone, as far as this node can tell."""
        self._changed(self._book.drop_owner(node), "")

    # parts

    def _changed(self, records: Sequence[Record], sender: str) -> None:
        if not records:
            return
        self._store(records)
        self.spread([record.to_table() for record in records], sender)
        differences = [Difference(r.path, None if r.value is None else _entry(r)) for r in records]
        for watch in list(self._watchers):
            mine = [difference for difference in differences if is_below(difference.path, watch.prefix)]
            if mine:
                watch.watcher(mine)

    def _store(self, records: Iterable[Record]) -> None:
        changed = [record for record in records if not record.ephemeral or record.path in self._stored]
        if self._keeper is None or not changed:
            return
        with self._keeper.transaction():
            for record in changed:
                if record.ephemeral:  # in place of one that lasted
                    self._keeper.delete_object(KIND, record.path)
                    self._stored.discard(record.path)
                else:
                    self._keeper.put_object(KIND, record.path, record.to_table())
                    self._stored.add(record.path)


class _Watch:
    """One watcher."""

    def __init__(self, home: dict[_Watch, None], prefix: str, watcher: Watcher) -> None:
        self._home = home
        self.prefix = prefix
        self.watcher = watcher

    def close(self) -> None:
        """Tell it nothing more."""
        self._home.pop(self, None)


def _entry(record: Record) -> Entry:
    return Entry(record.path, record.value or {}, record.version, record.owner, record.ephemeral)
