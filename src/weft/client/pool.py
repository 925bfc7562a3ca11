"""Connections to several nodes, kept and shared: for the stage before a fabric, where a program knows its brokers.

Owns one `Fabric` per node and who uses which. URLs and a policy come in; whoever has work takes a fabric and gives it
back. One connection carries the work of many, so a pool holds as many as there are nodes, never more.
It must never move work that has begun to another node: its links and its reply address are where it began.
Rule: prefer one local node and `weft.connect`; docs/guides/client.md, "Several brokers without a fabric".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Literal, Self, get_args

from weft.client.fabric import Fabric
from weft.model.errors import ConfigError, Refused, Unavailable

Policy = Literal["round-robin", "least", "each"]
NODES_MAX = 256
"""Nodes of one pool: each is a connection, and a program that needs more wants a node of its own."""
RETRY_S = 5.0
"""How long a node that could not be reached is passed over."""


class _Member:
    """One node, and what the pool knows of it."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url = url
        self.taken = 0
        self.fabric: Fabric | None = None
        self.resting_until_s = 0.0
        self._options = options
        self._opening = asyncio.Lock()

    async def open(self) -> Fabric:
        async with self._opening:
            if self.fabric is None:
                try:
                    self.fabric = await Fabric(self.url, **self._options).open()
                except (Unavailable, Refused):
                    self.resting_until_s = monotonic() + RETRY_S
                    raise
        return self.fabric

    @property
    def is_well(self) -> bool:
        """Connected, or worth a try."""
        return self.fabric.is_connected if self.fabric is not None else monotonic() >= self.resting_until_s


class Pool:
    """Fabrics to several nodes, chosen by policy: `round-robin` in turns, `least` the one with the fewest takers at
    present, `each` in turns with a connection to every node from the start.

    >>> async def main() -> None:
    ...     async with Pool(["amqp://localhost", "amqp://localhost"], policy="least") as pool:
    ...         async with pool.take() as fabric:
    ...             await fabric.send("doc.pool", "work")
    >>> asyncio.run(main())
    """

    def __init__(self, urls: Sequence[str], *, policy: Policy = "round-robin", **options: Any) -> None:
        """Options are those of `weft.connect`."""
        if policy not in get_args(Policy):
            raise ConfigError(f"policy is {', '.join(get_args(Policy))}, not {policy!r}")
        if isinstance(urls, str) or not 0 < len(urls) <= NODES_MAX:
            raise ConfigError(f"a pool needs a list of 1 to {NODES_MAX} URLs")
        self._policy = policy
        self._members = [_Member(url, options) for url in urls]
        self._turn = 0
        self._takes = 0
        self._opened = 0

    async def __aenter__(self) -> Self:
        if self._policy == "each":
            try:
                await asyncio.gather(*(member.open() for member in self._members))
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        for member in self._members:
            fabric, member.fabric = member.fabric, None
            if fabric is not None:
                await fabric.close()

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Fabric]:
        """A fabric to work with, until the block ends; Unavailable if no node can be reached."""
        member, fabric = await self._choose()
        self._takes += 1
        member.taken += 1
        try:
            yield fabric
        finally:
            member.taken -= 1

    def takers(self) -> dict[str, int]:
        """How many use each node now."""
        return {member.url: member.taken for member in self._members}

    @property
    def reuse(self) -> float:
        """The share of takes so far that did not need a connection of their own: 0 to 1."""
        return 1.0 - min(self._opened, self._takes) / self._takes if self._takes else 0.0

    async def _choose(self) -> tuple[_Member, Fabric]:
        causes: list[str] = []
        for member in self._order():
            try:
                self._opened += member.fabric is None
                return member, await member.open()
            except (Unavailable, Refused) as error:
                causes.append(str(error))
        raise Unavailable("; ".join(causes) or "no node of the pool is connected; each is tried again by itself")

    def _order(self) -> list[_Member]:
        """Whom to try, best first: those that are well, in turns, the least busy before others if so wanted."""
        first = self._turn % len(self._members)
        self._turn += 1
        turns = [*self._members[first:], *self._members[:first]]
        well = [member for member in turns if member.is_well]
        if self._policy == "least":
            well.sort(key=lambda member: member.taken)
        return well or [member for member in turns if member.fabric is None]
