"""An event loop whose time is invented, and a world in which everything else that is random comes from a seed.

Owns the clock: it jumps to the next deadline when nothing is left to do. Work of a paused node waits, as after SIGSTOP:
which node a callback belongs to is in its context (`NODE`).
It must never read the machine's clock, open a socket or start a thread; executors run their work on the spot.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import secrets
import sys
import time
from asyncio import Handle
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

NODE: ContextVar[str] = ContextVar("NODE", default="")
TURN_NS = 1_000
"""What one turn of the loop takes, so that a node that calls itself again and again does not stop the world."""
EPOCH_NS = 1_800_000_000_000_000_000
"""What the calendar says at the start."""


class VirtualLoop(asyncio.BaseEventLoop):
    """One loop for all nodes of a world."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 1_000_000_000
        self.turns = 0
        self._paused: dict[str, list[Handle]] = {}
        self._readers: dict[int, Handle] = {}

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._readers[fd] = Handle(callback, args, self)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def readable(self, number: int) -> None:
        """Something can be read where `add_reader` said: whoever waits for it is told."""
        reader = self._readers.get(number)
        if reader is not None:
            reader._run()

    def time(self) -> float:
        return self.now_ns / 1e9

    def pause(self, node: str) -> None:
        """Let a node do nothing from now on; what happens to it waits."""
        self._paused.setdefault(node, [])

    def resume(self, node: str) -> None:
        """Let it go on with what has waited."""
        self._ready.extendleft(reversed(self._paused.pop(node, [])))

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        """One turn, as asyncio's own: timers that are due, then everything that is ready."""
        scheduled, ready = self._scheduled, self._ready
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise RuntimeError("nothing will ever happen again in this world")
            self.now_ns = max(self.now_ns, round(scheduled[0]._when * 1e9))
        now_s = self.time()
        while scheduled and scheduled[0]._when <= now_s:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            held = self._paused.get(handle._context.get(NODE, "")) if self._paused else None
            if held is not None:
                held.append(handle)
            else:
                handle._run()
        self.now_ns += TURN_NS
        self.turns += 1

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers leave when their time has come."""

    def _write_to_self(self) -> None:
        """There is no other thread to wake this one."""


@contextmanager
def invented(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """Give weft the loop's clock, and chance from a seed; what is to have them must be imported before."""
    chance = random.Random(seed)
    fakes: dict[Any, Any] = {
        time.monotonic_ns: lambda: loop.now_ns,
        time.time_ns: lambda: EPOCH_NS + loop.now_ns,
        time.monotonic: loop.time,
        time.sleep: lambda _seconds: None,
    }
    changed: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, fake: Any) -> None:
        changed.append((owner, name, getattr(owner, name)))
        setattr(owner, name, fake)

    for module, real in _clocks(fakes):
        put(module, real.__name__, fakes[real])
    put(secrets, "randbits", chance.getrandbits)
    put(secrets, "token_bytes", lambda count=32: chance.randbytes(count))
    put(secrets, "token_urlsafe", lambda count=32: urlsafe_b64encode(chance.randbytes(count)).rstrip(b"=").decode())
    state = random.getstate()
    random.seed(seed)
    try:
        yield
        assert not _clocks(fakes), "imported too late for the invented clock"
    finally:
        random.setstate(state)
        for owner, name, real in changed:
            setattr(owner, name, real)


def _clocks(reals: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Modules of weft that read the machine's clock, with the function by which they do."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "weft"]
    return [(module, real) for module in modules for real in reals if vars(module).get(real.__name__) is real]
