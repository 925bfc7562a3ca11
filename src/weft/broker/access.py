"""Who asks: the caller of a decision, and the interface to whoever knows what callers may do.

Owns the protocol `Access` that a policy satisfies, and `Caller`, which decisions ask without knowing about principals.
A principal and a connection come in with each request; nothing or a refusal goes out.
It must not hold rules of its own.
Rule: the node itself (no principal) may do everything; see docs/decisions/0003 for principals.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from weft.model.changes import Change

Operation = Literal["configure", "write", "read"]
Kind = Literal["queue", "exchange"]


class Access(Protocol):
    """What the broker needs to know of users and virtual hosts."""

    def identity(self, principal: int) -> tuple[str, str]:
        """(user, virtual host) of a principal; Refused if it is gone."""

    def check(self, principal: int, operation: Operation, kind: Kind, name: str) -> None:
        """Refused unless the principal is allowed."""

    def check_topic(self, principal: int, exchange: str, key: str) -> None:
        """Refused unless the principal may bind to this topic exchange by this key."""

    def queues_max(self, vhost: str) -> int | None:
        """How many queues a virtual host may have; None without a bound."""

    def queue_type(self, vhost: str) -> str | None:
        """The type of queues that are declared there without one; None is as good as `classic`."""

    def pattern(self, text: str) -> re.Pattern[str]:
        """A pattern over names that cannot stall the node; ConfigError if this text is none."""

    def vhosts(self) -> list[str]:
        """Every virtual host."""

    def add_vhost(self, name: str) -> list[Change]:
        """Make a virtual host durable; nothing if it exists."""

    def delete_vhost(self, name: str) -> list[Change]:
        """Delete a virtual host with everything stored for it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever asked for a decision."""

    access: Access
    principal: int | None = None
    conn: int | None = None

    def require(self, operation: Operation, kind: Kind, name: str) -> None:
        """Refused unless the caller is allowed."""
        if self.principal is not None:
            self.access.check(self.principal, operation, kind, name)

    def require_topic(self, exchange: str, key: str) -> None:
        """Refused unless the caller may bind to this topic exchange by this key."""
        if self.principal is not None:
            self.access.check_topic(self.principal, exchange, key)
