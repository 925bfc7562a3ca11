"""Rules at work: ask, decide, act, for as long as it is wanted.

Owns the loop around one rule file. Observations and events of a fabric come in through `Source`; what fires is handed
to its actions, each with its own fate.
It must never decide what fires: that is `watch`.
Rule: an action that fails is reported and delays nothing else; a fabric that cannot be reached is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from weft.model.errors import WeftError
from weft.rules.actions import Action, build, say_only
from weft.rules.file import RuleFile
from weft.rules.rule import Firing, Observation
from weft.rules.watch import Watch

LOG = logging.getLogger("weft.rules")
ACTIONS_MAX = 100
"""Actions under way at a time: beyond it the next firing waits, so that a storm of alarms is no storm of commands."""
RETRY_S = 2.0


class Source(Protocol):
    """The fabric as rules see it."""

    node: str

    async def observe(self, kind: str) -> Sequence[Observation]:
        """Every object of a class."""
        ...

    def events(self) -> AsyncIterator[tuple[str, Mapping[str, Any]]]:
        """Routing key and body of each event from now on."""
        ...

    async def send(self, address: str, body: Mapping[str, object]) -> None:
        """Send a JSON message."""
        ...

    async def tell(self, kind: str, event: str, name: str, values: Mapping[str, object]) -> None:
        """Publish an event about an object of a class."""
        ...

    async def report(self, rule: str, crossed: bool, fired: int) -> None:
        """Let the node show how a rule stands."""
        ...


class Runner:
    """One rule file over one fabric."""

    def __init__(
        self, file: RuleFile, source: Source, *, dry_run: bool = False, write: Callable[[str], None] = print
    ) -> None:
        self._file = file
        self._source = source
        self._write = write
        self._watch = Watch(file.rules)
        self._slots = asyncio.Semaphore(ACTIONS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        used = {name for rule in file.rules for name in rule.actions}
        self._actions: dict[str, Action] = {
            name: say_only(settings, write)
            if dry_run
            else build(settings, node=source.node, send=source.send, tell=source.tell, write=write)
            for name, settings in file.actions.items()
            if name in used
        }
        self._ignored: set[tuple[str, str]] = set()
        self._reported = self._watch.standing()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled; then what was begun is finished."""
        try:
            async with asyncio.TaskGroup() as group:
                if any(not rule.event for rule in self._file.rules):
                    group.create_task(self._ask())
                if any(rule.event for rule in self._file.rules):
                    group.create_task(self._listen())
                group.create_task(self._report())
        finally:
            await self.settle()

    async def look(self) -> list[Firing]:
        """Ask once, and begin what fires."""
        observations = [each for kind in self._watch.kinds for each in await self._source.observe(kind)]
        ignored = {(each.kind, each.name) for each in observations if not self._watch.interesting(each)}
        for kind, name in sorted(ignored - self._ignored):
            LOG.info("ignored: %s %s", kind, name)
        self._ignored = ignored
        firings = self._watch.observe(observations, time.monotonic())
        self._changed.set()
        await self._act(firings)
        return firings

    async def settle(self) -> None:
        """Wait for the actions that are under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self) -> None:
        while True:
            try:
                await self.look()
            except WeftError as error:
                LOG.warning("cannot look: %s", error)
            await asyncio.sleep(self._file.interval_s)

    async def _listen(self) -> None:
        while True:
            try:
                async for key, body in self._source.events():
                    firings = self._watch.on_event(key, body)
                    self._changed.set()
                    await self._act(firings)
            except WeftError as error:
                LOG.warning("cannot listen to events: %s", error)
            await asyncio.sleep(RETRY_S)

    async def _report(self) -> None:
        """Whatever actions a rule has, the node shows how it stands; a storm of firings is one report."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for rule, standing in self._watch.standing().items():
                if self._reported[rule] != standing:
                    try:
                        await self._source.report(rule, *standing)
                        self._reported[rule] = standing
                    except WeftError as error:
                        LOG.warning("cannot report on rule %s: %s", rule, error)
                        break

    async def _act(self, firings: Sequence[Firing]) -> None:
        for firing in firings:
            for name in firing.rule.actions:
                await self._slots.acquire()
                task = asyncio.create_task(self._do(name, firing))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _do(self, name: str, firing: Firing) -> None:
        try:
            await self._actions[name](firing)
        except WeftError as error:
            self._write(f"action {name} failed: {error}")
        except Exception as error:
            # Whatever it is, such as an object's name that no command line can hold: who watches is told.
            self._write(f"action {name} failed: {error!r}")
        finally:
            self._slots.release()
