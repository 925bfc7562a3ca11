"""What federation asks of the broker: the few operations on queues and bindings it needs.

Owns the protocol that the broker's topology satisfies; the two are put together by `weft.server`.
Names come in, the kernel's changes go out, stored already if what they make is durable.
It must hold no rule of its own.
Rule: siblings never import each other (ARCHITECTURE.md), so what one needs of another is written down here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from weft.federation.reach import Key
from weft.model.changes import Change


class Desk(Protocol):
    """The broker as federation sees it. Whatever it will not do is raised as Refused."""

    def exchange_type(self, vhost: str, exchange: str) -> str | None:
        """How an exchange matches (direct, fanout, topic, headers), or None if there is none of that name."""

    def keys_of_exchange(self, vhost: str, exchange: str) -> list[tuple[str, str, Key]]:
        """(kind, destination, key) of every binding from an exchange."""

    def keys_of_queue(self, vhost: str, exchange: str, queue: str) -> list[Key]:
        """Keys by which a queue is bound to an exchange."""

    def held(self, vhost: str, queue: str) -> int | None:
        """Messages of a queue, those on their way included; None if there is no such queue."""

    def make_queue(self, vhost: str, queue: str, *, durable: bool, arguments: Mapping[str, object]) -> list[Change]:
        """A queue that is to exist; nothing if it does."""

    def drop_queue(self, vhost: str, queue: str) -> list[Change]:
        """A queue that is to be gone."""

    def rebind(
        self, vhost: str, exchange: str, queue: str, bind: Iterable[Key], unbind: Iterable[Key]
    ) -> Sequence[Change]:
        """Bindings to make and to undo, all or none."""
