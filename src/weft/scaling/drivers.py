"""Who starts and stops instances: processes of this machine, or a platform's own tool.

Owns the `Driver` interface and two drivers; those that speak to a platform themselves are in `platforms`. A service
and a number come in; instances run, and stop when told, with time to finish what they hold.
It must never decide how many: that is `decide`.
Rule: an instance is asked to end with SIGTERM, and made to with SIGKILL only after the service's `stop_s`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from typing import Protocol

from weft.model.errors import Unavailable
from weft.scaling.file import Service

COMMAND_S = 60.0
"""Time a platform's tool may take."""
SAID_BYTES_MAX = 4_096


class Driver(Protocol):
    """Brings a service to a number of instances."""

    async def count(self, service: Service) -> int:
        """Instances that run now."""
        ...

    async def bring_to(self, service: Service, instances: int) -> None:
        """Start or stop until there are so many."""
        ...

    async def close(self) -> None:
        """Stop what only this driver keeps alive."""
        ...


class LocalProcesses:
    """Instances are processes of this machine; they end with the driver."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._running: dict[str, list[tuple[str, asyncio.subprocess.Process]]] = {}
        self._stop_s: dict[str, float] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    async def count(self, service: Service) -> int:
        """Instances that run and were not told to end; those that died are forgotten."""
        running = self._running.setdefault(service.name, [])
        running[:] = [(name, process) for name, process in running if process.returncode is None]
        return len(running)

    async def bring_to(self, service: Service, instances: int) -> None:
        """The newest go first."""
        while await self.count(service) < instances:
            await self._start(service)
        while await self.count(service) > instances:
            _, process = self._running[service.name].pop()
            task = asyncio.create_task(_end(process, service.stop_s))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    def names(self, service: Service) -> Sequence[str]:
        """The instances by name."""
        return [name for name, _ in self._running.get(service.name, [])]

    async def close(self) -> None:
        """End every instance, politely."""
        all_ = self._running.items()
        ends = [_end(process, self._stop_s[service]) for service, running in all_ for _, process in running]
        self._running.clear()
        await asyncio.gather(*ends, *self._stopping)

    async def _start(self, service: Service) -> None:
        instance = f"{service.name}-{secrets.token_hex(3)}"
        words = _filled(service.command, {"service": service.name, "instance": instance, "url": self._url})
        told = {"WEFT_URL": self._url, "WEFT_SERVICE": service.name, "WEFT_INSTANCE": instance}
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=os.environ | told, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise Unavailable(f"cannot start {service.name}: {words[0]}: {error.strerror}") from error
        self._running.setdefault(service.name, []).append((instance, process))
        self._stop_s[service.name] = service.stop_s


class Commands:
    """A platform keeps the instances; its tool is told how many (`kubectl scale`, `docker service scale`)."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._last: dict[str, int] = {}

    async def count(self, service: Service) -> int:
        """What the platform was told last; at first the least, which is what it should have."""
        return self._last.get(service.name, service.min)

    async def bring_to(self, service: Service, instances: int) -> None:
        """Run the tool once; `Unavailable` with its words when it fails."""
        fields = {"service": service.name, "count": str(instances), "url": self._url}
        words = _filled(service.scale_command, fields)
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            _, said = await asyncio.wait_for(process.communicate(), COMMAND_S)
        except OSError as error:
            raise Unavailable(f"cannot scale {service.name}: {words[0]}: {error.strerror}") from error
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise Unavailable(f"cannot scale {service.name}: {words[0]} took more than {COMMAND_S:g} s") from error
        if process.returncode:
            text = said[-SAID_BYTES_MAX:].decode(errors="replace").strip()
            raise Unavailable(f"cannot scale {service.name}: {words[0]} ended with {process.returncode}: {text}")
        self._last[service.name] = instances

    async def close(self) -> None:
        """The platform goes on by itself."""


def _filled(words: Sequence[str], fields: dict[str, str]) -> list[str]:
    """Only the known words in braces are filled in: a command may be full of braces of its own."""
    filled = list(words)
    for name, value in fields.items():
        filled = [word.replace("{" + name + "}", value) for word in filled]
    return filled


async def _end(process: asyncio.subprocess.Process, stop_s: float) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), stop_s)
    except TimeoutError:
        process.kill()
        await process.wait()
