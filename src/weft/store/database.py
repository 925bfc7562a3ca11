"""The definitions file: opening it, checking it, and its schema.

Owns the path from a file name to a healthy SQLite connection, or to one clear sentence why there is none.
Comes in: a path (or none, for a node that forgets); goes out: a connection with the tables of `SCHEMA` in it.
It never repairs a file and never guesses: what is damaged or too new is refused, untouched.
Settings: write-ahead log, synced by the store once per turn rather than at each commit, and an exclusive lock so that
two nodes cannot share a directory.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from weft.model.errors import ConfigError, Corrupt, Unavailable

APPLICATION_ID = 0x77656674
"""`weft`, in the place where SQLite files say whose they are."""
SCHEMA_VERSION = 4
LOCK_TIMEOUT_S = 1.0
"""How long a node waits for its predecessor, which may just be ending."""

SCHEMA = """
CREATE TABLE users (name TEXT PRIMARY KEY, password_hash TEXT, tags TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE vhosts (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE permissions (
    user TEXT NOT NULL, vhost TEXT NOT NULL, configure TEXT NOT NULL, write TEXT NOT NULL, read TEXT NOT NULL,
    PRIMARY KEY (user, vhost)
) STRICT, WITHOUT ROWID;
CREATE TABLE exchanges (
    vhost TEXT NOT NULL, name TEXT NOT NULL, type TEXT NOT NULL, auto_delete INTEGER NOT NULL,
    internal INTEGER NOT NULL, arguments TEXT NOT NULL,
    PRIMARY KEY (vhost, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE queues (
    vhost TEXT NOT NULL, name TEXT NOT NULL, auto_delete INTEGER NOT NULL, subscription INTEGER NOT NULL,
    arguments TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (vhost, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE bindings (
    vhost TEXT NOT NULL, source TEXT NOT NULL, kind TEXT NOT NULL CHECK (kind IN ('queue', 'exchange')),
    destination TEXT NOT NULL, routing_key TEXT NOT NULL, arguments TEXT NOT NULL,
    PRIMARY KEY (vhost, source, kind, destination, routing_key, arguments)
) STRICT, WITHOUT ROWID;
CREATE INDEX bindings_by_destination ON bindings (vhost, kind, destination);
"""
OBJECTS = """
CREATE TABLE objects (kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, name))
    STRICT, WITHOUT ROWID;
"""
"""What has a name and fields, and no relation to others that SQL would have to know: links, routes, directory entries.
Since format 2.
"""
NUMBERED = "ALTER TABLE exchanges ADD COLUMN number INTEGER NOT NULL DEFAULT 0;"
"""Exchanges of older formats had no barrier, so nothing is kept under their number. Since format 3."""
POLICIES = """
CREATE TABLE policies (
    vhost TEXT NOT NULL, operator INTEGER NOT NULL, name TEXT NOT NULL, pattern TEXT NOT NULL, apply_to TEXT NOT NULL,
    priority INTEGER NOT NULL, definition TEXT NOT NULL,
    PRIMARY KEY (vhost, operator, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE topic_permissions (
    user TEXT NOT NULL, vhost TEXT NOT NULL, exchange TEXT NOT NULL, write TEXT NOT NULL, read TEXT NOT NULL,
    PRIMARY KEY (user, vhost, exchange)
) STRICT, WITHOUT ROWID;
CREATE TABLE parameters (
    component TEXT NOT NULL, vhost TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (component, vhost, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE limits (
    kind TEXT NOT NULL CHECK (kind IN ('user', 'vhost')), name TEXT NOT NULL, what TEXT NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (kind, name, what)
) STRICT, WITHOUT ROWID;
"""
"""A parameter of the node has no component and no virtual host. Since format 4."""
UPGRADES = {1: OBJECTS, 2: NUMBERED, 3: POLICIES}
"""What a file of an older format lacks."""


def open_database(path: Path | None) -> tuple[sqlite3.Connection, bool]:
    """A checked connection, and whether the database was made just now."""
    where = ":memory:" if path is None else str(path)
    try:
        database = sqlite3.connect(where, timeout=LOCK_TIMEOUT_S)
    except sqlite3.Error as error:
        raise Unavailable(f"cannot open definitions {where}: {error}") from None
    try:
        return database, _prepare(database, where)
    except sqlite3.OperationalError as error:
        database.close()
        if "locked" in str(error):
            raise Unavailable(f"definitions {where} are in use by another node") from None
        raise Unavailable(f"cannot use definitions {where}: {error}") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        database.close()
        raise Corrupt(
            f"definitions {where} are damaged: {error}; restore them or choose another data directory"
        ) from None
    except BaseException:
        database.close()
        raise


def _prepare(database: sqlite3.Connection, where: str) -> bool:
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    is_new = database.execute("SELECT name FROM sqlite_schema").fetchone() is None
    if not is_new:
        _check(database, where)
    database.execute("PRAGMA journal_mode = WAL")
    if is_new:
        version = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        database.executescript(f"BEGIN EXCLUSIVE; {SCHEMA} {OBJECTS} {NUMBERED} {POLICIES} {version} COMMIT;")
    else:
        _upgrade(database)
    database.execute("PRAGMA synchronous = NORMAL")
    return is_new


def _check(database: sqlite3.Connection, where: str) -> None:
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise Corrupt(f"{where} is a database, but not one of weft's; choose another data directory")
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"definitions {where} were written by a newer weft (format {version}, this program reads up to "
            f"{SCHEMA_VERSION}); start the newer program or choose another data directory"
        )
    if version != SCHEMA_VERSION and version not in UPGRADES:
        raise Corrupt(f"definitions {where} have the unknown format {version}")
    (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise Corrupt(f"definitions {where} are damaged: {verdict}; restore them or choose another data directory")


def _upgrade(database: sqlite3.Connection) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    for step in range(version, SCHEMA_VERSION):
        database.executescript(f"BEGIN EXCLUSIVE; {UPGRADES[step]} PRAGMA user_version = {step + 1}; COMMIT;")
