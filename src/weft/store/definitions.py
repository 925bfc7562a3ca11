"""The store: records in, records out.

Owns every SQL statement of weft except the schema; each method is one statement or a few on one noun.
Controllers write inside `with store.transaction()`, then change their memory; they answer peers after `sync`, once for
many.
It must not decide, default or check names: what it is told to keep, it keeps.
A write that fails raises Unavailable and leaves the file as it was before the transaction.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from weft.model.errors import Corrupt, Unavailable
from weft.model.events import Table
from weft.store.database import open_database
from weft.store.log import mend
from weft.store.records import (
    Binding,
    Exchange,
    Limit,
    Notes,
    Parameter,
    Permission,
    Queue,
    ResourcePolicy,
    TopicPermission,
    User,
)
from weft.store.tables import decode_table, encode_table

NODE = "node"
"""The kind of object that says whose definitions these are."""
DELETED = "deleted"
"""The kind of object that says which queues are gone: what the disk still has of them may go, and of no other queue.
Their names are counted upwards.
"""
DELETED_MAX = 1_024
"""Deletions that are remembered: long before so many more, the disk has them."""
NOTES = "vhost"
"""The kind of object that says what a virtual host is for: older programs, which know no notes, read the file all the
same.
"""

_IN_VHOST = ("permissions", "topic_permissions", "policies", "parameters", "exchanges", "queues", "bindings")


class Store:
    """The durable definitions of one node; with no path they live in memory and end with the store."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.found: list[str] = [] if path is None else mend(Path(f"{path}-wal"))
        """What was wrong with the file and was put right, or not, in words."""
        self._database, self.is_new = open_database(path)
        self._is_synced = True
        self._log: int | None = None
        self._deletions = max((int(name) for name in self.objects(DELETED) if name.isdecimal()), default=0)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written inside is all there after it, or not at all."""
        try:
            yield
            self._is_synced = self._is_synced and not self._database.in_transaction
            self._database.commit()
        except sqlite3.Error as error:
            self._database.rollback()
            raise Unavailable(f"cannot save definitions: {error}") from None
        except BaseException:
            self._database.rollback()
            raise

    def sync(self) -> None:
        """Bring what was written to the disk itself; costs nothing when nothing was."""
        if self._is_synced or self.path is None:
            return
        try:
            if self._log is None:
                self._log = os.open(f"{self.path}-wal", os.O_RDONLY)
            os.fsync(self._log)
        except OSError as error:
            raise Unavailable(f"cannot save definitions: {error.strerror}") from None
        self._is_synced = True

    def write_out(self) -> None:
        """Do most of what `sync` will have to do, on another thread; a failure is left for `sync` to find."""
        if self.path is not None:
            with suppress(OSError), Path(f"{self.path}-wal").open("rb") as log:
                os.fsync(log.fileno())

    def close(self) -> None:
        """Let the file go."""
        if self._log is not None:
            os.close(self._log)
            self._log = None
        self._database.close()

    # users

    def users(self) -> list[User]:
        rows = self._read("SELECT name, password_hash, tags FROM users")
        return [User(name, password_hash, _decode_tags(tags)) for name, password_hash, tags in rows]

    def put_user(self, user: User) -> None:
        self._write("REPLACE INTO users VALUES (?, ?, ?)", user.name, user.password_hash, json.dumps(user.tags))

    def delete_user(self, name: str) -> None:
        self._write("DELETE FROM users WHERE name = ?", name)
        self._write("DELETE FROM permissions WHERE user = ?", name)
        self._write("DELETE FROM topic_permissions WHERE user = ?", name)
        self._write("DELETE FROM limits WHERE kind = 'user' AND name = ?", name)

    def permissions(self) -> list[Permission]:
        return [Permission(*row) for row in self._read("SELECT user, vhost, configure, write, read FROM permissions")]

    def put_permission(self, permission: Permission) -> None:
        fields = permission.user, permission.vhost, permission.configure, permission.write, permission.read
        self._write("REPLACE INTO permissions VALUES (?, ?, ?, ?, ?)", *fields)

    def delete_permission(self, user: str, vhost: str) -> None:
        self._write("DELETE FROM permissions WHERE user = ? AND vhost = ?", user, vhost)

    def topic_permissions(self) -> list[TopicPermission]:
        rows = self._read("SELECT user, vhost, exchange, write, read FROM topic_permissions")
        return [TopicPermission(*row) for row in rows]

    def put_topic_permission(self, one: TopicPermission) -> None:
        fields = one.user, one.vhost, one.exchange, one.write, one.read
        self._write("REPLACE INTO topic_permissions VALUES (?, ?, ?, ?, ?)", *fields)

    def delete_topic_permission(self, one: TopicPermission) -> None:
        key = one.user, one.vhost, one.exchange
        self._write("DELETE FROM topic_permissions WHERE user = ? AND vhost = ? AND exchange = ?", *key)

    # limits of users and virtual hosts

    def limits(self) -> list[Limit]:
        return [Limit(*row) for row in self._read("SELECT kind, name, what, value FROM limits")]

    def put_limit(self, limit: Limit) -> None:
        self._write("REPLACE INTO limits VALUES (?, ?, ?, ?)", limit.kind, limit.name, limit.what, limit.value)

    def delete_limit(self, limit: Limit) -> None:
        key = limit.kind, limit.name, limit.what
        self._write("DELETE FROM limits WHERE kind = ? AND name = ? AND what = ?", *key)

    # virtual hosts

    def vhosts(self) -> list[str]:
        return [name for (name,) in self._read("SELECT name FROM vhosts")]

    def put_vhost(self, name: str) -> None:
        self._write("REPLACE INTO vhosts VALUES (?)", name)

    def delete_vhost(self, name: str) -> None:
        """With everything in it."""
        self._write("DELETE FROM vhosts WHERE name = ?", name)
        self.delete_object(NOTES, name)
        self._write("DELETE FROM limits WHERE kind = 'vhost' AND name = ?", name)
        self._bury("vhost = ?", name)
        for table in _IN_VHOST:
            self._write(f"DELETE FROM {table} WHERE vhost = ?", name)  # noqa: S608 - names of ours

    def notes(self) -> dict[str, Notes]:
        """What is said of virtual hosts, by their names."""
        return {name: _decode_notes(body) for name, body in self.objects(NOTES).items()}

    def put_notes(self, name: str, notes: Notes) -> None:
        body: Table = {"description": notes.description, "tags": list(notes.tags), "queue_type": notes.queue_type}
        self.put_object(NOTES, name, body)

    # parameters

    def parameters(self) -> list[Parameter]:
        rows = self._read("SELECT component, vhost, name, value FROM parameters")
        return [
            Parameter(component, vhost, name, decode_table(value)["value"]) for component, vhost, name, value in rows
        ]

    def put_parameter(self, one: Parameter) -> None:
        value = encode_table({"value": one.value})
        self._write("REPLACE INTO parameters VALUES (?, ?, ?, ?)", one.component, one.vhost, one.name, value)

    def delete_parameter(self, one: Parameter) -> None:
        key = one.component, one.vhost, one.name
        self._write("DELETE FROM parameters WHERE component = ? AND vhost = ? AND name = ?", *key)

    # policies

    def policies(self) -> list[ResourcePolicy]:
        rows = self._read("SELECT vhost, name, pattern, definition, apply_to, priority, operator FROM policies")
        return [
            ResourcePolicy(vhost, name, pattern, decode_table(definition), apply_to, priority, bool(operator))
            for vhost, name, pattern, definition, apply_to, priority, operator in rows
        ]

    def put_policy(self, policy: ResourcePolicy) -> None:
        key = policy.vhost, policy.operator, policy.name
        fields = policy.pattern, policy.apply_to, policy.priority, encode_table(policy.definition)
        self._write("REPLACE INTO policies VALUES (?, ?, ?, ?, ?, ?, ?)", *key, *fields)

    def delete_policy(self, policy: ResourcePolicy) -> None:
        key = policy.vhost, policy.operator, policy.name
        self._write("DELETE FROM policies WHERE vhost = ? AND operator = ? AND name = ?", *key)

    # exchanges, queues, bindings

    def exchanges(self) -> list[Exchange]:
        rows = self._read("SELECT vhost, name, type, auto_delete, internal, arguments, number FROM exchanges")
        return [
            Exchange(vhost, name, type_, True, bool(auto_delete), bool(internal), decode_table(arguments), number)
            for vhost, name, type_, auto_delete, internal, arguments, number in rows
        ]

    def put_exchange(self, exchange: Exchange) -> None:
        flags = exchange.auto_delete, exchange.internal
        fields = exchange.vhost, exchange.name, exchange.type, *flags, encode_table(exchange.arguments), exchange.number
        self._write("REPLACE INTO exchanges VALUES (?, ?, ?, ?, ?, ?, ?)", *fields)

    def delete_exchange(self, vhost: str, name: str) -> None:
        """With the bindings from and to it."""
        self._write("DELETE FROM exchanges WHERE vhost = ? AND name = ?", vhost, name)
        self._write("DELETE FROM bindings WHERE vhost = ? AND source = ?", vhost, name)
        self._delete_bindings_to(vhost, "exchange", name)

    def queues(self) -> list[Queue]:
        rows = self._read("SELECT vhost, name, auto_delete, subscription, arguments, number FROM queues")
        return [
            Queue(
                vhost,
                name,
                durable=True,
                auto_delete=bool(auto_delete),
                subscription=bool(subscription),
                arguments=decode_table(arguments),
                number=number,
            )
            for vhost, name, auto_delete, subscription, arguments, number in rows
        ]

    def put_queue(self, queue: Queue) -> None:
        flags = queue.auto_delete, queue.subscription
        fields = queue.vhost, queue.name, *flags, encode_table(queue.arguments), queue.number
        self._write("REPLACE INTO queues VALUES (?, ?, ?, ?, ?, ?)", *fields)

    def delete_queue(self, vhost: str, name: str) -> None:
        """With the bindings to it."""
        self._bury("vhost = ? AND name = ?", vhost, name)
        self._write("DELETE FROM queues WHERE vhost = ? AND name = ?", vhost, name)
        self._delete_bindings_to(vhost, "queue", name)

    def _bury(self, which: str, *values: str) -> None:
        """Remember that these queues are deleted."""
        rows = self._database.execute(f"SELECT number FROM queues WHERE {which}", values)  # noqa: S608 - words of ours
        self.bury([number for (number,) in rows])

    def bury(self, numbers: Sequence[int]) -> None:
        """Remember that queues of these numbers are deleted: what the journal has of them goes."""
        if not numbers:
            return
        self._deletions += 1
        self.put_object(DELETED, f"{self._deletions:016}", {"numbers": list(numbers)})
        oldest = max(0, self._deletions - DELETED_MAX)
        self._write("DELETE FROM objects WHERE kind = ? AND name <= ?", DELETED, f"{oldest:016}")

    def deleted_queues(self) -> set[int]:
        """The numbers of queues that were deleted last."""
        numbers = (body.get("numbers") for body in self.objects(DELETED).values())
        return {number for some in numbers if isinstance(some, list) for number in some if isinstance(number, int)}

    def bindings(self) -> list[Binding]:
        rows = self._read("SELECT vhost, source, kind, destination, routing_key, arguments FROM bindings")
        return [
            Binding(vhost, source, kind, destination, routing_key, decode_table(arguments))
            for vhost, source, kind, destination, routing_key, arguments in rows
        ]

    def put_binding(self, binding: Binding) -> None:
        self._write("REPLACE INTO bindings VALUES (?, ?, ?, ?, ?, ?)", binding.vhost, *binding.identity)

    def delete_binding(self, binding: Binding) -> None:
        self._write(
            "DELETE FROM bindings WHERE vhost = ? AND source = ? AND kind = ? AND destination = ?"
            " AND routing_key = ? AND arguments = ?",
            binding.vhost,
            *binding.identity,
        )

    def put_node_name(self, name: str) -> str:
        """Whose definitions these are: readers of files want to know, and cannot ask. Answers whose they were."""
        known = list(self.objects(NODE))
        if known != [name]:
            self._write("DELETE FROM objects WHERE kind = ?", NODE)
            self.put_object(NODE, name, {})
        return known[0] if known else name

    # objects: links, routes, directory entries, notes

    def objects(self, kind: str) -> dict[str, Table]:
        """Every object of a kind by its name."""
        try:
            rows = self._database.execute("SELECT name, body FROM objects WHERE kind = ?", (kind,)).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise Corrupt(f"cannot read definitions: {error}") from None
        return {name: decode_table(body) for name, body in rows}

    def put_object(self, kind: str, name: str, body: Table) -> None:
        self._write("REPLACE INTO objects VALUES (?, ?, ?)", kind, name, encode_table(body))

    def delete_object(self, kind: str, name: str) -> None:
        self._write("DELETE FROM objects WHERE kind = ? AND name = ?", kind, name)

    def _delete_bindings_to(self, vhost: str, kind: str, name: str) -> None:
        self._write("DELETE FROM bindings WHERE vhost = ? AND kind = ? AND destination = ?", vhost, kind, name)

    def _read(self, statement: str) -> list[Any]:
        try:
            return self._database.execute(statement).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise Corrupt(f"cannot read definitions: {error}") from None

    def _write(self, statement: str, *values: object) -> None:
        self._database.execute(statement, values)


def _decode_notes(body: Table) -> Notes:
    description, tags, queue_type = body.get("description"), body.get("tags"), body.get("queue_type")
    if not isinstance(description, str) or not isinstance(tags, list) or not isinstance(queue_type, str | None):
        raise Corrupt("stored notes on a virtual host cannot be read")
    return Notes(description, tuple(map(str, tags)), queue_type)


def _decode_tags(text: str) -> tuple[str, ...]:
    try:
        tags = json.loads(text)
    except ValueError:
        raise Corrupt("stored tags of a user cannot be read") from None
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise Corrupt("stored tags of a user are not a list of words")
    return tuple(tags)
