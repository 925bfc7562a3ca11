"""Who asks, and what that user may see and do through management.

Owns the rules of the tags. A user's name comes in with each request; nothing or a refusal goes out.
It must not know classes or wires.
Rule: RabbitMQ's tags: `management` sees virtual hosts it may enter and its own connections, `monitoring` sees
everything, `policymaker` also sets policies and parameters, `administrator` changes users, virtual hosts and the node
too. What a user makes or deletes in a virtual
host needs the permissions that doing it over AMQP needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from weft.management.host import PolicyLike, Right
from weft.model.errors import Refused
from weft.model.names import NAME_BYTES_MAX

_RANKS = {"management": 1, "policymaker": 1, "monitoring": 2, "administrator": 3}
_POLICYMAKERS = frozenset({"policymaker", "administrator"})
NODE = ""
"""The node itself asks: nobody has the empty name."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A user with its tags."""

    user: str
    policy: PolicyLike = field(repr=False)
    vhost: str = "/"
    """Where it asks from: what it names without a virtual host is in this one."""

    @property
    def rank(self) -> int:
        """How much it may manage: 0 for nothing."""
        if self.user == NODE:
            return _RANKS["administrator"]
        return max((_RANKS.get(tag, 0) for tag in self._tags()), default=0)

    def _tags(self) -> tuple[str, ...]:
        return next((user.tags for user in self.policy.users() if user.name == self.user), ())

    def require(self, tag: str) -> None:
        """Refused unless the caller has this tag, or one above it; above `policymaker` is only `administrator`."""
        has_it = self.rank >= _RANKS[tag]
        if tag == "policymaker" and self.user != NODE:
            has_it = not _POLICYMAKERS.isdisjoint(self._tags())
        if not has_it:
            raise Refused(f"user '{self.user}' needs the tag '{tag}' for this", 403)

    @property
    def sees_all(self) -> bool:
        """Does it see every virtual host and every connection?"""
        return self.rank >= _RANKS["monitoring"]

    def vhosts(self) -> list[str]:
        """The virtual hosts it may see."""
        if self.sees_all:
            return self.policy.vhosts()
        return [vhost for vhost in self.policy.vhosts() if self.policy.may_enter(self.user, vhost)]

    def enter(self, vhost: str) -> str:
        """The virtual host, or Refused if it is not there or not to be seen."""
        if vhost not in self.policy.vhosts():
            raise Refused(f"no virtual host '{vhost}'", 404)
        if not self.sees_all and not self.policy.may_enter(self.user, vhost):
            raise Refused(f"user '{self.user}' may not enter virtual host '{vhost}'", 403)
        return vhost

    def need(self, right: Right, vhost: str, name: str) -> None:
        """Refused unless the user has this permission on a resource of this name."""
        if len(name.encode()) > NAME_BYTES_MAX:
            raise Refused(f"a name may have at most {NAME_BYTES_MAX} bytes", 400)
        if self.user != NODE and not self.policy.may(self.user, vhost, right, name):
            what = f"{right} access to '{name}' in virtual host '{vhost}'"
            raise Refused(f"{what} refused for user '{self.user}'", 403)

    def need_topic(self, right: Literal["write", "read"], vhost: str, exchange: str, key: str) -> None:
        """Refused unless the user may use this key with a topic exchange."""
        if self.user != NODE and not self.policy.may_topic(self.user, vhost, right, exchange, key):
            what = f"{right} access to topic '{key}' in exchange '{exchange}' in virtual host '{vhost}'"
            raise Refused(f"{what} refused for user '{self.user}'", 403)
