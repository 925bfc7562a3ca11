"""What an operation waits on, for programs without an event loop: told from any thread, waited for on the caller's.

Owns the synchronous half of waiting, name for name the half in `weft.client.tickets`; the generated face in
`weft.client.sync` uses these. It must never be used on an event loop's thread, which it would stop.
Rule: whatever waits here ends, by its result, by its deadline or by `Work.cancel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from weft.client.thread import io_loop
from weft.client.url import Target


class _Here(threading.local):
    """What the current thread is bound by."""

    deadline = float("inf")
    work: Work | None = None


_HERE = _Here()


class _Cancelled(BaseException):
    """The work of this thread is not wanted any more."""


Cancelled = _Cancelled


def is_cancelled() -> bool:
    """Is it the caller itself that is to stop, and not something that it waits for?"""
    work = _HERE.work
    return work is not None and work.cancelled.is_set()


class Ticket:
    """One result to wait for. `left` counts the messages of a batch that have no outcome yet."""

    __slots__ = ("_error", "_lock", "_value", "deadline", "left")

    def __init__(self, deadline: float = float("inf"), left: int = 1) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._value: Any = None
        self._error: BaseException | None = None
        self.deadline = deadline
        self.left = left

    def done(self, value: Any = None) -> None:
        """It is there; from any thread."""
        self._end(value, None)

    def fail(self, error: BaseException) -> None:
        """It will never be there; from any thread."""
        self._end(None, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        if self._lock.locked():
            self._value, self._error = value, error
            with contextlib.suppress(RuntimeError):  # told twice, by two threads at once
                self._lock.release()

    def wait(self) -> Any:
        """The result, once it is there."""
        if not self._lock.acquire(timeout=_left_s()):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value


def wait_for_all(tickets: Sequence[Ticket]) -> None:
    """Wait until all are done; the first that failed raises."""
    for ticket in tickets:
        ticket.wait()


class Slots:
    """So many at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._semaphore = threading.Semaphore(count)

    def take(self) -> None:
        """Wait for a free slot."""
        left_s = _left_s()
        if not self._semaphore.acquire(timeout=None if left_s < 0 else left_s):
            raise TimeoutError

    def give(self) -> None:
        """Give a slot back."""
        self._semaphore.release()

    def settle(self) -> None:
        """Wait until all slots are free."""
        for _ in range(self._count):
            self.take()
        self._semaphore.release(self._count)


class Work:
    """Something that runs beside its caller, on a thread of its own."""

    def __init__(self, job: Callable[..., None], *arguments: Any) -> None:
        self.cancelled = threading.Event()
        self._job = (job, arguments)
        self._thread = threading.Thread(target=self._run, name="weft-work", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _HERE.work = self
        job, arguments = self._job
        try:
            job(*arguments)
        except _Cancelled:
            return

    def cancel(self) -> None:
        """Have it stop where it sleeps; what it waits for must end by itself."""
        self.cancelled.set()

    @property
    def is_done(self) -> bool:
        """Has it ended?"""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait until it has ended, however it did."""
        left_s = _left_s()
        self._thread.join(None if left_s < 0 else left_s)
        if self._thread.is_alive():
            raise TimeoutError


def caller(handler: Callable[..., Any]) -> Callable[..., Any]:
    """How a program's handler is called: as it is."""
    return handler


def within(timeout_s: float | None, job: Callable[..., Any], *arguments: Any) -> Any:
    """The job's result; TimeoutError if what it waits for takes longer. A handler that computes is not stopped."""
    before = _HERE.deadline
    if timeout_s is not None:
        _HERE.deadline = min(before, monotonic() + timeout_s)
    try:
        return job(*arguments)
    finally:
        _HERE.deadline = before


Lock = threading.Lock
"""One at a time: `with`."""


def soon(what: Callable[[], None]) -> None:
    """Have something called before the caller waits."""
    what()


def sleep(seconds: float) -> None:
    """Sleep, or end with the work that this thread does."""
    work = _HERE.work
    if work is None:
        threading.Event().wait(seconds)
    elif work.cancelled.wait(seconds):
        raise _Cancelled


def until_stopped() -> None:
    """Wait until the process is told to end, by SIGTERM or SIGINT; only on the main thread."""
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not stopped.wait(1.0):
            pass  # signals of some platforms only interrupt a wait that ends by itself
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def home_loop(_targets: Sequence[Target]) -> asyncio.AbstractEventLoop:
    """Where a connection lives: on the thread for them all."""
    return io_loop()


def near_loop() -> asyncio.AbstractEventLoop | None:
    """Where a connection may be read while that loop is awake: there is none here."""
    return None


def _left_s() -> float:
    """Seconds until this thread's deadline, as a lock takes them: -1 is for ever."""
    deadline = _HERE.deadline
    return -1.0 if deadline == float("inf") else max(0.0, deadline - monotonic())
