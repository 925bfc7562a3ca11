"""What management needs of a node: the parts, by what they can do.

Owns `Host` and the protocols that the broker's and the policy's controllers satisfy, so that management imports
neither. Values of the store and the model go both ways.
It must not decide or keep anything.
Rule: siblings never import each other (`pyproject.toml`, importlinter); `weft.server` puts them together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import ClassVar, Literal, Protocol

from weft._kernel import Engine
from weft.model.changes import Change
from weft.model.events import Operation, Table
from weft.node.driver import Driver
from weft.store import (
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

Right = Literal["configure", "write", "read"]


class AppliedLike(Protocol):
    """Which policies apply to an object, and what they come to."""

    @property
    def policy(self) -> str | None: ...
    @property
    def operator_policy(self) -> str | None: ...
    @property
    def definition(self) -> Table: ...


class TopologyLike(Protocol):
    """Exchanges, queues and bindings."""

    exchange_types: ClassVar[frozenset[str]]
    idle_keys: ClassVar[frozenset[str]]

    def queues(self, vhost: str) -> list[Queue]: ...
    def exchanges(self, vhost: str) -> list[Exchange]: ...
    def bindings(self, vhost: str) -> list[Binding]: ...
    def find_queue(self, vhost: str, name: str) -> Queue | None: ...
    def find_exchange(self, vhost: str, name: str) -> Exchange | None: ...
    def count_bindings(self, vhost: str, exchange: str) -> int: ...
    def resolve(self, vhost: str, address: str) -> tuple[str, str]: ...
    def declare_queue(
        self, vhost: str, name: str = "", *, durable: bool, auto_delete: bool, arguments: Table | None
    ) -> list[Change]: ...
    def delete_queue(
        self, vhost: str, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> list[Change]: ...
    def declare_exchange(
        self,
        vhost: str,
        name: str,
        type_: str = "direct",
        *,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table | None,
    ) -> list[Change]: ...
    def delete_exchange(self, vhost: str, name: str, *, if_unused: bool = False) -> list[Change]: ...
    def bind(
        self,
        vhost: str,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: Literal["queue", "exchange"] = "queue",
        arguments: Table | None = None,
    ) -> list[Change]: ...
    def unbind(
        self,
        vhost: str,
        source: str,
        destination: str,
        routing_key: str = "",
        *,
        kind: Literal["queue", "exchange"] = "queue",
        arguments: Table | None = None,
    ) -> list[Change]: ...
    def policies(self, vhost: str) -> list[ResourcePolicy]: ...
    def set_policy(self, policy: ResourcePolicy) -> Iterator[list[Change]]: ...
    def clear_policy(self, vhost: str, name: str, *, operator: bool = False) -> Iterator[list[Change]]: ...
    def applied(self, to: Queue | Exchange) -> AppliedLike: ...
    def count_applied(self, policy: ResourcePolicy) -> tuple[int, int]: ...
    def run(self, vhost: str, operations: Iterable[Operation], *, sync: bool = True) -> list[Change]: ...
    def add_vhost(self, name: str) -> list[Change]: ...
    def delete_vhost(self, name: str) -> list[Change]: ...


class PolicyLike(Protocol):
    """Users, virtual hosts and what they may do."""

    def users(self) -> list[User]: ...
    def user_of(self, conn: int) -> str | None: ...
    def entered(self, conn: int) -> tuple[str, str] | None: ...
    def may_enter(self, user: str, vhost: str) -> bool: ...
    def may(self, user: str, vhost: str, right: Right, name: str) -> bool: ...
    def vhosts(self) -> list[str]: ...
    def notes(self, vhost: str) -> Notes: ...
    def note(self, vhost: str, notes: Notes) -> None: ...
    def pattern(self, text: str) -> re.Pattern[str]: ...
    def permissions(self) -> list[Permission]: ...
    def asked(self, user: str, vhost: str, exchange: str | None = None) -> tuple[int, int]: ...
    def hash_password(self, password: str) -> str: ...
    def add_user(
        self, name: str, password: str | None = None, *, password_hash: str | None = None, tags: Iterable[str] = ()
    ) -> list[Change]: ...
    def set_tags(self, name: str, tags: Iterable[str]) -> list[Change]: ...
    def change_password(
        self, name: str, password: str | None = None, *, password_hash: str | None = None
    ) -> list[Change]: ...
    def delete_user(self, name: str) -> list[Change]: ...
    def set_permission(
        self, user: str, vhost: str, *, configure: str = "", write: str = "", read: str = ""
    ) -> list[Change]: ...
    def clear_permission(self, user: str, vhost: str) -> list[Change]: ...
    def topic_permissions(self) -> list[TopicPermission]: ...
    def set_topic_permission(
        self, user: str, vhost: str, exchange: str, *, write: str = "", read: str = ""
    ) -> list[Change]: ...
    def clear_topic_permission(self, user: str, vhost: str, exchange: str | None = None) -> list[Change]: ...
    def may_topic(
        self, user: str, vhost: str, operation: Literal["write", "read"], exchange: str, key: str
    ) -> bool: ...
    def limits(self) -> list[Limit]: ...
    def set_limit(self, limit: Limit) -> list[Change]: ...
    def clear_limit(self, kind: str, name: str, what: str | None = None) -> list[Change]: ...
    def verify(self, name: str, password: bytes, *, local: bool, verdict: Callable[[bool], None]) -> bool: ...


class ParametersLike(Protocol):
    """Values that are kept for others."""

    def parameters(self) -> list[Parameter]: ...
    def put_parameter(self, one: Parameter) -> None: ...
    def delete_parameter(self, one: Parameter) -> None: ...
    def transaction(self) -> AbstractContextManager[None]: ...
    def sync(self) -> None: ...
    def write_out(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Host:
    """The node that is managed."""

    name: str
    version: str
    engine: Engine
    driver: Driver
    topology: TopologyLike
    policy: PolicyLike
    parameters: ParametersLike
    data_dir: Path | None
    listeners: Callable[[], Sequence[tuple[str, int, bool]]]
    """(host, port, is it TLS) of every socket it listens on."""
    certificates: Callable[[], Mapping[str, int]]
    """When each of its certificates expires, by file, in seconds since 1970."""
    stop_listening: Callable[[], None]

    def certificate_s(self) -> int | None:
        """How long all of its certificates are still good, in seconds; None without any."""
        return min((int(end - time()) for end in self.certificates().values()), default=None)

    def apply(self, changes: Sequence[Change]) -> None:
        """Give decisions to the engine."""
        self.driver.apply(changes)
