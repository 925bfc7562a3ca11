"""Carries letters from a source to a target, for as long as it runs.

Owns the loop: pull, push, done, and what happens when a side is away. Two sides come in; nothing goes out but counts.
It must never hold more than one batch, and never tell a source `done` before its target has answered.
Rule: after an error both sides are opened anew, with growing waits; the source then gives again what was not done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weft.gateway.letters import Source, Target
from weft.model.errors import Refused, RemoteProtocolError, Unavailable, Undelivered
from weft.net.backoff import delays

LOG = logging.getLogger("weft.gateway")
BATCH_MAX = 100
"""Letters on their way at once: enough to hide a turn of the network, few to repeat after a crash."""
RETRY_MAX_S = 10.0
AWAY = (OSError, EOFError, TimeoutError, Unavailable, Undelivered, Refused, RemoteProtocolError)
"""What may be right again later: a side that is away, full, or lacks what an operator will make."""


class Bridge:
    """From one system to another: `await Bridge(source, target).run()`."""

    def __init__(
        self,
        source: Source,
        target: Target,
        *,
        batch_max: int = BATCH_MAX,
        on_moved: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """`on_moved` is told how many letters of a batch have gone over."""
        self._source = source
        self._target = target
        self._batch_max = batch_max
        self._on_moved = on_moved
        self.moved = 0
        self.refused = 0

    async def run(self) -> None:
        """Carry until cancelled."""
        waits = delays(max_s=RETRY_MAX_S)
        while True:
            before = self.moved + self.refused
            try:
                async with self._source, self._target:
                    while True:
                        await self._carry()
            except AWAY as error:
                LOG.warning("the gateway waits: %s", str(error) or type(error).__name__)
            if self.moved + self.refused > before:
                waits = delays(max_s=RETRY_MAX_S)
            await asyncio.sleep(next(waits))

    async def _carry(self) -> None:
        letters = await self._source.pull(self._batch_max)
        refusals = await self._target.push(letters)
        taken = [letter for letter in letters if letter.id not in refusals]
        await self._source.done(taken)
        for letter in letters:
            if letter.id in refusals:
                LOG.warning("%s was refused: %s", letter.id, refusals[letter.id])
                await self._source.refuse(letter, refusals[letter.id])
        self.moved += len(taken)
        self.refused += len(letters) - len(taken)
        self._on_moved(len(taken))
