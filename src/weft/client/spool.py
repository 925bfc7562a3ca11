"""Store and forward: messages that wait on this machine's own disk until a node has them.

Owns a folder with one SQLite file: what waits, in the order it was sent, what a node refused, and the publisher's name,
from which every message has its id. One thread writes (many sends, one sync) and forwards; messages come in from any
thread, their tickets are done once the disk has them, and outcomes take them out again.
It must never forget a message before a node has accepted it, nor send one that the disk does not have.
Rule: a message keeps its id through crashes and reconnects, so that a barrier on `message-id` lets it in once
(docs/guides/client.md, "Store and forward").
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from weft.model.errors import ConfigError, LocalProtocolError, Refused, Unavailable, Undelivered, WeftError

if TYPE_CHECKING:
    from weft.client.links import Outlet

OVERHEAD_BYTES = 128
"""What a message costs besides its body and its properties."""
LOG = logging.getLogger("weft.client")
WINDOW = 256
"""Messages on their way to the node at a time."""
REFUSED_MAX = 1_000
"""Messages kept that a node refused; the oldest are dropped."""
AGAIN_S = 1.0
"""How long a message rests that the node could not take just now."""
DRAIN_S = 5.0
"""How long a client that is closed goes on forwarding, while it is connected."""
TEMPORARY = ("modified", "lost", "unknown")
FULL = "amqp:resource-limit-exceeded"

SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at_s REAL NOT NULL, is_topic INTEGER NOT NULL, address TEXT NOT NULL,
    properties TEXT NOT NULL, body BLOB NOT NULL, size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS refused (
    number INTEGER PRIMARY KEY, at_s REAL NOT NULL, is_topic INTEGER NOT NULL, address TEXT NOT NULL,
    properties TEXT NOT NULL, body BLOB NOT NULL, size INTEGER NOT NULL, reason TEXT NOT NULL);
"""
ADD = "INSERT INTO waiting (at_s, is_topic, address, properties, body, size) VALUES (?, ?, ?, ?, ?, ?)"
SET_ASIDE = "INSERT OR REPLACE INTO refused SELECT *, ? FROM waiting WHERE number = ?"
TAKE_BACK = """INSERT INTO waiting SELECT number, at_s, is_topic, address, properties, body, size FROM refused"""
TRIM = "DELETE FROM refused WHERE number NOT IN (SELECT number FROM refused ORDER BY number DESC LIMIT ?)"
AFTER = "SELECT number, address, is_topic, properties, body FROM waiting WHERE number > ? ORDER BY number LIMIT ?"
HELD = {
    "waiting": "SELECT number, at_s, address, body, '' FROM waiting ORDER BY number LIMIT ?",
    "refused": "SELECT number, at_s, address, body, reason FROM refused ORDER BY number LIMIT ?",
}


class Entry(NamedTuple):
    """A message on its way to the spool."""

    address: str
    is_topic: bool
    properties: dict[str, Any]
    body: bytes

    @property
    def words(self) -> str:
        """The properties as they are kept."""
        return json.dumps(self.properties, separators=(",", ":"))

    @property
    def size(self) -> int:
        """Bytes that count against the limit."""
        return len(self.body) + len(self.words) + len(self.address) + OVERHEAD_BYTES


def entry_of(address: str, body: bytes | str, properties: Mapping[str, Any], *, is_topic: bool) -> Entry:
    """A message to be kept; LocalProtocolError if it cannot be written down."""
    data = body.encode() if isinstance(body, str) else body
    kept = {key: _plain(value) for key, value in properties.items()}
    try:
        json.dumps(kept)
    except TypeError as error:
        raise LocalProtocolError(f"a spool keeps properties that JSON can say: {error}") from None
    return Entry(address, is_topic, kept, data)


def _plain(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


class Held(NamedTuple):
    """A message in the spool, and what the node was told about it."""

    number: int
    at_s: float
    address: str
    body: bytes
    reason: str = ""


class Store:
    """The file. One thread at a time uses it; `weft spool` reads it beside a client."""

    def __init__(self, folder: Path, bytes_max: int = 0, *, is_owner: bool = True) -> None:
        self._bytes_max = bytes_max
        self._lock = _own(folder) if is_owner else None
        name = folder / "spool.sqlite"
        if not is_owner and not name.exists():
            raise ConfigError(f"there is no spool in {folder}")
        try:
            self._db = sqlite3.connect(name, isolation_level=None, check_same_thread=False, timeout=5)
            if is_owner:
                self._db.execute("PRAGMA journal_mode = WAL")
                # A send is promised to be on disk: each commit is synced.
                self._db.execute("PRAGMA synchronous = FULL")
                self._db.executescript(SCHEMA)
                self._db.execute("INSERT OR IGNORE INTO about VALUES ('publisher', ?)", (os.urandom(8).hex(),))
            (self.publisher,) = self._db.execute("SELECT value FROM about WHERE name = 'publisher'").fetchone()
            self.count, self.bytes = self._sums()
        except sqlite3.Error as error:
            raise ConfigError(f"{name} is not a spool: {error}") from error

    def _sums(self) -> tuple[int, int]:
        count, total = self._db.execute("SELECT count(*), coalesce(sum(size), 0) FROM waiting").fetchone()
        return count, total

    def change(self, entries: Sequence[Entry], done: Sequence[int], refused: Sequence[tuple[int, str]]) -> None:
        """Take some in and others out, in one transaction that is on disk when this returns."""
        at_s, more, less = time(), sum(entry.size for entry in entries), 0
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            rows = [(at_s, entry.is_topic, entry.address, entry.words, entry.body, entry.size) for entry in entries]
            self._db.executemany(ADD, rows)
            if refused:
                self._db.executemany(SET_ASIDE, [(reason, number) for number, reason in refused])
                self._db.execute(TRIM, (REFUSED_MAX,))
            gone = [*done, *(number for number, _ in refused)]
            for number in gone:
                less += self._db.execute("SELECT size FROM waiting WHERE number = ?", (number,)).fetchone()[0]
                self._db.execute("DELETE FROM waiting WHERE number = ?", (number,))
        self.count += len(entries) - len(gone)
        self.bytes += more - less

    def has_room(self, more_bytes: int) -> bool:
        """Do so many more bytes fit?"""
        return self.bytes + more_bytes <= self._bytes_max

    def after(self, number: int, count_max: int) -> list[tuple[int, Entry]]:
        """The next messages behind a number, in order."""
        rows = self._db.execute(AFTER, (number, count_max)).fetchall()
        return [(row[0], Entry(row[1], bool(row[2]), json.loads(row[3]), bytes(row[4]))) for row in rows]

    def held(self, table: Literal["waiting", "refused"], count_max: int) -> list[Held]:
        """The first messages that wait or were refused."""
        return [Held(*row) for row in self._db.execute(HELD[table], (count_max,)).fetchall()]

    def retry(self) -> int:
        """What was refused waits again, in its old place: how many."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(TAKE_BACK)
            count = self._db.execute("DELETE FROM refused").rowcount
        self.count, self.bytes = self._sums()
        return count

    def close(self) -> None:
        """Let go of the folder."""
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)


def _own(folder: Path) -> int:
    """One process forwards from a folder at a time: the lock goes with it, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be a spool: {(error.strerror or str(error)).lower()}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(f"the spool {folder} is in use by another client") from None
    return lock


class Sending(Protocol):
    """What a spool needs of its client, whichever face that has."""

    @property
    def is_connected(self) -> bool:
        """Is there a node now?"""

    def outlet(self, address: str, properties: dict[str, Any], *, is_topic: bool) -> Outlet:
        """The link to an address or a topic, with the properties that a message needs on it."""


class Spool:
    """The thread that writes and forwards, and what it has been told."""

    def __init__(self, fabric: Sending, folder: str | os.PathLike[str], bytes_max: int) -> None:
        self._folder = Path(folder)
        self._store = Store(self._folder, bytes_max)
        self._fabric = fabric
        self._told: SimpleQueue[tuple[str, Any, Any]] = SimpleQueue()
        self._sent = 0
        """The number of the last message that was sent."""
        self._under_way = 0
        self._again: list[int] = []
        """Messages that the node could not take, and that are sent once more."""
        self._closing: list[Any] = []
        self._end_s = float("inf")
        self._thread = threading.Thread(target=self._run, name="weft-spool", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Messages that no node has accepted yet."""
        return self._store.count

    def put(
        self, address: str, body: bytes | str, properties: Mapping[str, Any], ticket: Any, *, is_topic: bool
    ) -> None:
        """Have a message kept and forwarded; the ticket is done when the disk has it."""
        self._told.put(("put", entry_of(address, body, properties, is_topic=is_topic), ticket))

    def close(self, ticket: Any) -> None:
        """Forward what can be, and end; the ticket is done then. The rest is forwarded by the next client."""
        self._told.put(("close", None, ticket))

    def wake(self, _is_connected: bool = True) -> None:
        """The node came or went."""
        self._told.put(("wake", None, None))

    # on the spool's thread from here on

    def _run(self) -> None:
        while not self._is_over():
            self._turn(self._hear())
        self._store.close()
        for kind, _, ticket in self._hear():
            if kind == "put":
                ticket.fail(Unavailable("the client was closed"))
            elif kind == "close":
                ticket.done()
        for ticket in self._closing:
            ticket.done()

    def _is_over(self) -> bool:
        if not self._closing:
            return False
        return not self._store.count or not self._fabric.is_connected or monotonic() >= self._end_s

    def _hear(self) -> list[tuple[str, Any, Any]]:
        """Everything told since the last turn: one sync serves it all."""
        heard = []
        # Somebody tells of everything but of time.
        timeout_s = AGAIN_S if self._again or self._closing else None
        try:
            heard.append(self._told.get(timeout=0 if self._is_over() else timeout_s))
            while len(heard) < WINDOW * 4:
                heard.append(self._told.get_nowait())
        except Empty:
            pass
        return heard

    def _turn(self, heard: list[tuple[str, Any, Any]]) -> None:
        puts: list[tuple[Entry, Any]] = []
        done: list[int] = []
        refused: list[tuple[int, str]] = []
        planned_bytes = 0
        for kind, what, more in heard:
            self._under_way -= kind in ("done", "refused", "again", "kept")
            match kind:
                case "put" if self._store.has_room(planned_bytes + what.size):
                    planned_bytes += what.size
                    puts.append((what, more))
                case "put":
                    more.fail(self._full())
                case "done":
                    done.append(what)
                case "refused":
                    refused.append((what, more))
                case "again":
                    self._again.append(what)
                case "close":
                    self._closing.append(more)
                    self._end_s = monotonic() + DRAIN_S
        if puts or done or refused:
            self._change(puts, done, refused)
        if self._fabric.is_connected:
            try:
                self._forward(is_rested=not heard)
            except sqlite3.Error as error:
                LOG.warning("the spool %s cannot be read: %s", self._folder, error)

    def _full(self) -> Unavailable:
        held = f"{self._store.count} messages of {self._store.bytes} bytes wait in {self._folder}"
        return Unavailable(f"the spool is full: {held} for a node to take them")

    def _change(self, puts: list[tuple[Entry, Any]], done: list[int], refused: list[tuple[int, str]]) -> None:
        try:
            self._store.change([entry for entry, _ in puts], done, refused)
        except sqlite3.Error as error:
            # What was accepted and could not be taken out is sent again by the next client, under the same id.
            for _, ticket in puts:
                ticket.fail(Unavailable(f"the spool {self._folder} cannot be written: {error}"))
        else:
            for _, ticket in puts:
                ticket.done()

    def _forward(self, *, is_rested: bool) -> None:
        if is_rested and self._again:
            again, self._again = self._again, []
            for number in again:
                self._send(*self._store.after(number - 1, 1)[0])
        for number, entry in self._store.after(self._sent, WINDOW - self._under_way):
            self._sent = number
            self._send(number, entry)

    def _send(self, number: int, entry: Entry) -> None:
        properties = {"message_id": f"{self._store.publisher}:{number}", **entry.properties}
        self._under_way += 1
        try:
            outlet = self._fabric.outlet(entry.address, properties, is_topic=entry.is_topic)
            outlet.send((entry.body,), properties, _Forwarding(self._told, number, entry.is_topic))
        except (Refused, LocalProtocolError, TypeError, ValueError) as error:
            self._told.put(("refused", number, str(error)))
        except WeftError:
            self._told.put(("kept", number, None))  # the client is being closed: the next one sends it


class _Forwarding:
    """The ticket of a message on its way: its outcome is told to the spool's thread, whichever thread knows it."""

    __slots__ = ("_is_topic", "_number", "_told", "deadline", "left")

    def __init__(self, told: SimpleQueue[tuple[str, Any, Any]], number: int, is_topic: bool) -> None:
        self._told = told
        self._number = number
        self._is_topic = is_topic
        self.deadline = float("inf")
        self.left = 1

    def done(self, _value: Any = None) -> None:
        """A node has it."""
        self._told.put(("done", self._number, None))

    def fail(self, error: BaseException) -> None:
        """No node has it: it was refused, or the client ends."""
        if isinstance(error, Undelivered) and self._is_topic and error.outcome == "released":
            self.done()  # nobody is subscribed, which is fine for a topic
        elif isinstance(error, Undelivered) and (error.outcome in TEMPORARY or error.condition == FULL):
            self._told.put(("again", self._number, None))
        elif isinstance(error, Undelivered | Refused):
            self._told.put(("refused", self._number, str(error)))
        else:
            self._told.put(("kept", self._number, None))
