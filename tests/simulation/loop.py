"""An event loop whose time is invented, and a world in which everything else that is random comes from a seed.

Owns the clock: it jumps to the next deadline when nothing is left to do. Work of a paused node waits, as after SIGSTOP;
work of a dead one is never done. Whose a callback is, is in its context (`LIFE`).
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
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

from weft.node import ticker

TURN_NS = 1_000
"""What one turn of the loop takes, so that a node that calls itself again and again does not stop the world."""
EPOCH_NS = 1_800_000_000_000_000_000
"""What the calendar says at the start."""


@dataclass(eq=False)
class Life:
    """A node from one start to its end, however it ends."""

    name: str
    is_over: bool = False
    held: list[Handle] | None = None
    """What a paused one would do."""
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    mortal: list[Any] = field(default_factory=list)
    """What has to be told of its death: `die()`."""


NOBODY = Life("")
LIFE: ContextVar[Life] = ContextVar("LIFE", default=NOBODY)


class VirtualLoop(asyncio.BaseEventLoop):
    """One loop for all nodes of a world."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 1_000_000_000
        self.turns = 0
        self._pauses = 0
        self._deaths = 0
        self.dead: list[asyncio.Task[Any]] = []
        """Kept, so that nothing of theirs is tidied up: the dead do not tidy up."""
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

    def pause(self, life: Life) -> None:
        """Let a node do nothing from now on; what happens to it waits."""
        if life.held is None and not life.is_over:
            life.held = []
            self._pauses += 1

    def resume(self, life: Life) -> None:
        """Let it go on with what has waited."""
        if life.held is not None:
            self._ready.extendleft(reversed(life.held))
            life.held = None
            self._pauses -= 1

    def end(self, life: Life) -> None:
        """Kill a node: whatever it was about to do, it will not."""
        self.resume(life)
        life.is_over = True
        self._deaths += 1
        self.dead += life.tasks
        for part in life.mortal:
            part.die()

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        context = context or copy_context()
        task = super().create_task(coro, name=name, context=context)
        tasks = context.get(LIFE, NOBODY).tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard, context=context)
        return task

    def bury(self) -> None:
        """The world is over: forget the dead. What they would tidy up now is nobody's business."""
        for task in self.dead:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(Exception):
                task.get_coro().close()  # type: ignore[union-attr]
        self.dead.clear()

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
            life = handle._context.get(LIFE, NOBODY) if self._pauses or self._deaths else NOBODY
            if life.held is not None:
                life.held.append(handle)
            elif not life.is_over:
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
    put(ticker, "find_alarm", lambda: None)  # the system's timer knows the system's time only
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
