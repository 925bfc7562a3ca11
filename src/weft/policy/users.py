"""Users and virtual hosts: the registry behind every entry.

Owns the memory of users, virtual hosts, permissions and limits, and keeps it equal to the store: written there first,
then here.
Management calls come in; records go out. Wrong names and patterns are ConfigErrors, unknown ones Refused(404).
It must not know connections or principals; what a change means for those is `policy`'s to say.
Rule: a user without any permission in a virtual host may not enter it, and one without a password enters only by
EXTERNAL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from weft.model.errors import ConfigError, Refused
from weft.policy.passwords import check_hash
from weft.policy.permissions import Permissions, check_patterns
from weft.policy.scram import parse_verifier
from weft.policy.topics import Topics, check_topics
from weft.store import Limit, Notes, Permission, Store, TopicPermission, User

NAME_BYTES_MAX = 255
LIMITS = {"user": ("max-connections", "max-channels"), "vhost": ("max-connections", "max-queues")}
UNLIMITED = -1
DESCRIPTION_BYTES_MAX = 4_096
TAGS_MAX = 64
QUEUE_TYPES = ("classic", "quorum", "stream")


class Registry:
    """Every user, virtual host and permission of the node."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.permissions = Permissions()
        self.users = {user.name: user for user in store.users()}
        self._provable: set[str] = set()
        self._unprovable: set[str] = set()
        for user in self.users.values():
            self._sort(user)
        notes = store.notes()
        self.vhosts = {name: notes.get(name, Notes()) for name in store.vhosts()}
        for permission in store.permissions():
            self.permissions.put(permission)
        self.topics = Topics()
        for topic in store.topic_permissions():
            self.topics.put(topic)
        self._limits: dict[tuple[str, str, str], Limit] = {
            (limit.kind, limit.name, limit.what): limit for limit in store.limits()
        }

    def put_user(self, name: str, password_hash: str | None, tags: Iterable[str]) -> User:
        """Make a user, or replace one."""
        check_name("user", name)
        if password_hash is not None:
            check_hash(password_hash)
        return self._put(User(name, password_hash, tuple(tags)))

    def change_user(
        self, name: str, *, password_hash: str | None = None, tags: Iterable[str] | None = None
    ) -> tuple[User, User]:
        """Change what is given; (before, after)."""
        before = self.user(name)
        if password_hash is not None:
            check_hash(password_hash)
        after = replace(
            before,
            password_hash=before.password_hash if password_hash is None else password_hash,
            tags=before.tags if tags is None else tuple(tags),
        )
        return before, self._put(after)

    def delete_user(self, name: str) -> None:
        """Forget a user and all permissions of it."""
        self.user(name)
        with self._saving():
            self._store.delete_user(name)
        del self.users[name]
        self._sort(User(name, None))
        for vhost in self.vhosts:
            self.permissions.remove(name, vhost)
            self.topics.remove(name, vhost)
        self._forget_limits("user", name)

    def user(self, name: str) -> User:
        """The user of this name, or Refused."""
        user = self.users.get(name)
        if user is None:
            raise Refused(f"NOT_FOUND - no user '{name}'", 404)
        return user

    def all_provable(self) -> bool:
        """Has everyone with a password a verifier of SCRAM?"""
        return bool(self._provable) and not self._unprovable

    def add_vhost(self, name: str) -> None:
        """Make a virtual host, if it is not there."""
        check_name("virtual host", name)
        with self._saving():
            self._store.put_vhost(name)
        self.vhosts.setdefault(name, Notes())

    def note(self, name: str, notes: Notes) -> None:
        """Say what a virtual host is for."""
        self._check_vhost(name)
        _check_notes(notes)
        with self._saving():
            self._store.put_notes(name, notes)
        self.vhosts[name] = notes

    def delete_vhost(self, name: str) -> None:
        """Forget a virtual host and all permissions in it."""
        self._check_vhost(name)
        with self._saving():
            self._store.delete_vhost(name)
        del self.vhosts[name]
        for user in self.users:
            self.permissions.remove(user, name)
            self.topics.remove(user, name)
        self._forget_limits("vhost", name)

    def set_permission(self, permission: Permission) -> None:
        """Set what a user may do in a virtual host."""
        self.user(permission.user)
        self._check_vhost(permission.vhost)
        check_patterns(permission)
        with self._saving():
            self._store.put_permission(permission)
        self.permissions.put(permission)

    def clear_permission(self, user: str, vhost: str) -> None:
        """Take away whatever a user may do in a virtual host."""
        self.user(user)
        self._check_vhost(vhost)
        with self._saving():
            self._store.delete_permission(user, vhost)
        self.permissions.remove(user, vhost)

    def set_topic_permission(self, permission: TopicPermission) -> None:
        """Set which keys a user may use with a topic exchange."""
        self.user(permission.user)
        self._check_vhost(permission.vhost)
        check_topics(permission)
        with self._saving():
            self._store.put_topic_permission(permission)
        self.topics.put(permission)

    def clear_topic_permission(self, user: str, vhost: str, exchange: str | None) -> None:
        """Forget it for one exchange, or for all of them."""
        self.user(user)
        self._check_vhost(vhost)
        with self._saving():
            for record in self.topics.remove(user, vhost, exchange):
                self._store.delete_topic_permission(record)

    # limits

    def limit(self, kind: str, name: str, what: str) -> int | None:
        """How much of this a user or a virtual host may have; None without a bound."""
        found = self._limits.get((kind, name, what))
        return None if found is None or found.value == UNLIMITED else found.value

    def limits(self) -> list[Limit]:
        """Every limit."""
        return list(self._limits.values())

    def set_limit(self, limit: Limit) -> None:
        """Bound what a user or a virtual host may have; -1 takes the bound away and keeps the word."""
        if limit.kind == "user":
            self.user(limit.name)
        else:
            self._check_vhost(limit.name)
        if limit.what not in LIMITS[limit.kind]:
            raise ConfigError(f"a {limit.kind} has no limit '{limit.what}'; it has {', '.join(LIMITS[limit.kind])}")
        if not UNLIMITED <= limit.value < 2**63:
            raise ConfigError(f"{limit.what} must be a number from {UNLIMITED} on")
        with self._saving():
            self._store.put_limit(limit)
        self._limits[limit.kind, limit.name, limit.what] = limit

    def clear_limit(self, kind: str, name: str, what: str | None) -> None:
        """Forget one limit, or all of a user or virtual host."""
        gone = [
            one for one in self._limits.values() if (one.kind, one.name) == (kind, name) and what in (None, one.what)
        ]
        with self._saving():
            for one in gone:
                self._store.delete_limit(one)
        for one in gone:
            del self._limits[one.kind, one.name, one.what]

    def _forget_limits(self, kind: str, name: str) -> None:
        for key in [key for key in self._limits if key[:2] == (kind, name)]:
            del self._limits[key]

    def _put(self, user: User) -> User:
        with self._saving():
            self._store.put_user(user)
        self.users[user.name] = user
        self._sort(user)
        return user

    def _sort(self, user: User) -> None:
        """Among those with a password: can the user prove to know it without telling it?"""
        self._provable.discard(user.name)
        self._unprovable.discard(user.name)
        if user.password_hash is not None:
            is_verifier = parse_verifier(user.password_hash) is not None
            (self._provable if is_verifier else self._unprovable).add(user.name)

    @contextmanager
    def _saving(self) -> Iterator[None]:
        with self._store.transaction():
            yield
        self._store.sync()

    def _check_vhost(self, name: str) -> None:
        if name not in self.vhosts:
            raise Refused(f"NOT_FOUND - no virtual host '{name}'", 404)


def _check_notes(notes: Notes) -> None:
    if len(notes.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise ConfigError(f"a description has at most {DESCRIPTION_BYTES_MAX} bytes")
    if len(notes.tags) > TAGS_MAX:
        raise ConfigError(f"a virtual host has at most {TAGS_MAX} tags")
    for tag in notes.tags:
        check_name("tag", tag)
    if notes.queue_type is not None and notes.queue_type not in QUEUE_TYPES:
        raise ConfigError(f"default_queue_type is one of {', '.join(QUEUE_TYPES)}, not '{notes.queue_type}'")


def check_name(what: str, name: str) -> None:
    """ConfigError if nothing can have this name."""
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX or "\0" in name:
        raise ConfigError(f"the name of a {what} must have 1 to {NAME_BYTES_MAX} bytes and no NUL")
