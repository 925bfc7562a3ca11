"""May this user do that to this name? The permission table.

Owns the compiled patterns per user and virtual host, and the words of a refusal.
Permission records come in; yes and no go out.
It must not know connections, requests or what the resources are.
Rule: RabbitMQ's access control guide; the default exchange is checked under the name `amq.default`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from weft.policy.patterns import compile_pattern, matches
from weft.store import Permission

Operation = Literal["configure", "write", "read"]
DEFAULT_EXCHANGE = "amq.default"


@dataclass(frozen=True, slots=True)
class _Patterns:
    configure: re.Pattern[str]
    write: re.Pattern[str]
    read: re.Pattern[str]


class Permissions:
    """Patterns of every user in every virtual host."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], Permission] = {}
        self._patterns: dict[tuple[str, str], _Patterns] = {}
        self._asked: dict[tuple[str, str], list[int]] = {}

    def put(self, permission: Permission) -> None:
        """Set what a user may do in a virtual host; ConfigError if a pattern is wrong."""
        patterns = check_patterns(permission)
        self._records[permission.user, permission.vhost] = permission
        self._patterns[permission.user, permission.vhost] = patterns
        self._asked.setdefault((permission.user, permission.vhost), [0, 0])

    def remove(self, user: str, vhost: str) -> None:
        """From now on the user may not even enter."""
        self._records.pop((user, vhost), None)
        self._patterns.pop((user, vhost), None)
        self._asked.pop((user, vhost), None)

    def may_enter(self, user: str, vhost: str) -> bool:
        """Has the user any permission here, be it three empty patterns?"""
        return (user, vhost) in self._patterns

    def allow(self, user: str, vhost: str, operation: Operation, name: str) -> bool:
        """May the user do this to a resource of this name?"""
        patterns = self._patterns.get((user, vhost))
        if patterns is None:
            return False
        pattern: re.Pattern[str] = getattr(patterns, operation)
        may, asked = matches(pattern, name or DEFAULT_EXCHANGE), self._asked[user, vhost]
        asked[0] += 1
        asked[1] += not may
        return may

    def asked(self, user: str, vhost: str) -> tuple[int, int]:
        """How often it was asked what the user may do, and how often the answer was no."""
        asked, refused = self._asked.get((user, vhost), (0, 0))
        return asked, refused

    def records(self) -> list[Permission]:
        """Every permission, in the order they were first set."""
        return list(self._records.values())


def check_patterns(permission: Permission) -> _Patterns:
    """The compiled patterns of a permission; ConfigError if one is wrong."""
    fields = permission.configure, permission.write, permission.read
    return _Patterns(*(compile_pattern(text) for text in fields))
