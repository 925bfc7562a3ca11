"""May this user publish with, or bind by, this routing key? Permissions on topics.

Owns the patterns per user, virtual host and topic exchange, with the variables in them replaced.
Records come in; texts for the kernel, which looks at the keys of messages itself, and yes or no for bindings go out.
It must not know which exchanges exist or of what type they are.
Rule: RabbitMQ's topic authorisation: an exchange without a permission of its own is open to everyone who may write to
it or read from it; `{username}` and `{vhost}` in a pattern stand for the user's, taken literally.
"""

from __future__ import annotations

import re

from weft.model.errors import ConfigError
from weft.policy.patterns import compile_pattern, matches
from weft.store import TopicPermission

NOTHING = "^$"
"""What an empty pattern stands for."""
_NOT_IN_KERNEL = re.compile(r"\(\?(?![:imsxU-])|[*+?}]\+|\\[ZGpP]")
"""Look-around, named and atomic groups, possessive repetition: what a matcher that never steps back cannot do."""


class Topics:
    """Patterns of every user in every virtual host."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], dict[str, TopicPermission]] = {}
        self._read: dict[tuple[str, str, str], re.Pattern[str]] = {}
        self._asked: dict[tuple[str, str, str], list[int]] = {}

    def put(self, permission: TopicPermission) -> None:
        """Set a permission; ConfigError if a pattern is wrong."""
        check_topics(permission)
        self._records.setdefault((permission.user, permission.vhost), {})[permission.exchange] = permission
        key = permission.user, permission.vhost, permission.exchange
        self._read[key] = compile_pattern(expand(permission, permission.read))
        self._asked.setdefault(key, [0, 0])

    def remove(self, user: str, vhost: str, exchange: str | None = None) -> list[TopicPermission]:
        """Forget the permission on one exchange, or all of them; what is gone."""
        records = self._records.get((user, vhost), {})
        gone = [record for name, record in records.items() if exchange in (None, name)]
        for record in gone:
            del records[record.exchange], self._read[user, vhost, record.exchange]
            del self._asked[user, vhost, record.exchange]
        if not records:
            self._records.pop((user, vhost), None)
        return gone

    def get(self, user: str, vhost: str, exchange: str) -> TopicPermission | None:
        """The permission of a user on an exchange."""
        return self._records.get((user, vhost), {}).get(exchange)

    def rows(self, user: str, vhost: str) -> tuple[tuple[str, str], ...]:
        """(exchange, pattern for keys of messages): what the kernel is told."""
        records = self._records.get((user, vhost), {})
        return tuple((name, expand(record, record.write)) for name, record in records.items())

    def may_read(self, user: str, vhost: str, exchange: str, key: str) -> bool:
        """May the user bind to this exchange by this key?"""
        pattern = self._read.get((user, vhost, exchange))
        return pattern is None or self._counted(user, vhost, exchange, matches(pattern, key))

    def may_write(self, user: str, vhost: str, exchange: str, key: str) -> bool:
        """May the user publish with this key? For the node itself, which publishes on behalf of a user."""
        record = self.get(user, vhost, exchange)
        if record is None:
            return True
        return self._counted(user, vhost, exchange, matches(compile_pattern(expand(record, record.write)), key))

    def asked(self, user: str, vhost: str, exchange: str) -> tuple[int, int]:
        """How often a key was asked about here, and how often the answer was no. The kernel counts none of its own."""
        asked, refused = self._asked.get((user, vhost, exchange), (0, 0))
        return asked, refused

    def _counted(self, user: str, vhost: str, exchange: str, may: bool) -> bool:
        asked = self._asked[user, vhost, exchange]
        asked[0] += 1
        asked[1] += not may
        return may

    def records(self) -> list[TopicPermission]:
        """Every permission."""
        return [record for records in self._records.values() for record in records.values()]


def check_topics(permission: TopicPermission) -> None:
    """ConfigError if a pattern is wrong, or is one that the kernel cannot match."""
    for text in (permission.write, permission.read):
        if _NOT_IN_KERNEL.search(text):
            raise ConfigError(f"topic pattern '{text}' has look-around or another group that is not for topics")
        compile_pattern(expand(permission, text))


def expand(permission: TopicPermission, text: str) -> str:
    """A pattern with its variables replaced."""
    for name, value in (("username", permission.user), ("vhost", permission.vhost)):
        text = text.replace(f"{{{name}}}", re.escape(value))
    return text or NOTHING
