"""What an operation waits on: told from any thread, awaited on the program's own loop.

Owns the async half of waiting; `weft.client.threads` has the same names for programs without a loop, and the
generated synchronous face uses those. A result or an error comes in once, from whichever thread has it.
It must never wake a loop more often than needed: everything told in one turn of the connection's thread
arrives together.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from types import coroutine
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from weft.client.thread import io_loop
from weft.client.url import Target


class Mailbox:
    """Results on their way to the futures of one loop."""

    __slots__ = ("__weakref__", "_due", "_items", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._due = False

    def put(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        """Have a future done: at once on its own loop, soon from any other thread."""
        if _get_running_loop() is self.loop:
            _finish(future, value, error)
            return
        self._items.append((future, value, error))
        if not self._due:
            self._due = True
            # A closed loop has nobody left who waits.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        items = self._items
        while items:
            _finish(*items.popleft())


def _finish(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


_MAILBOXES: WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = WeakKeyDictionary()


class _Latest:
    """The mailbox that was asked for last: most programs have one loop, and a weak table is slow to ask."""

    mailbox: Mailbox | None = None


def _mailbox() -> Mailbox:
    loop = asyncio.get_running_loop()
    latest = _Latest.mailbox
    if latest is not None and latest.loop is loop:
        return latest
    mailbox = _MAILBOXES.get(loop)
    if mailbox is None:
        mailbox = _MAILBOXES[loop] = Mailbox(loop)
    _Latest.mailbox = mailbox
    return mailbox


class Ticket:
    """One result to wait for. `left` counts the messages of a batch that have no outcome yet."""

    __slots__ = ("_future", "_mailbox", "deadline", "left")

    def __init__(self, deadline: float = float("inf"), left: int = 1) -> None:
        self._mailbox = _mailbox()
        self._future: asyncio.Future[Any] = self._mailbox.loop.create_future()
        self.deadline = deadline
        self.left = left

    def done(self, value: Any = None) -> None:
        """It is there; from any thread."""
        self._mailbox.put(self._future, value, None)

    def fail(self, error: BaseException) -> None:
        """It will never be there; from any thread."""
        self._mailbox.put(self._future, None, error)

    def wait(self) -> asyncio.Future[Any]:
        """The result, to be awaited."""
        return self._future


async def wait_for_all(tickets: Sequence[Ticket]) -> None:
    """Wait until all are done; the first that failed raises."""
    for ticket in tickets:
        await ticket.wait()


class Slots:
    """So many at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._semaphore = asyncio.Semaphore(count)

    async def take(self) -> None:
        """Wait for a free slot."""
        await self._semaphore.acquire()

    def give(self) -> None:
        """Give a slot back."""
        self._semaphore.release()

    async def settle(self) -> None:
        """Wait until all slots are free."""
        for _ in range(self._count):
            await self._semaphore.acquire()
        for _ in range(self._count):
            self._semaphore.release()


class Work:
    """Something that runs beside its caller."""

    _running: ClassVar[set[asyncio.Task[None]]] = set()

    def __init__(self, job: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        self._task = asyncio.get_running_loop().create_task(job(*arguments))
        # A loop only remembers its tasks weakly.
        self._running.add(self._task)
        self._task.add_done_callback(self._running.discard)

    def cancel(self) -> None:
        """Have it stop."""
        self._task.cancel()

    @property
    def is_done(self) -> bool:
        """Has it ended?"""
        return self._task.done()

    async def join(self) -> None:
        """Wait until it has ended, however it did."""
        await asyncio.wait([self._task])


def caller(handler: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """How a program's handler is called: a coroutine function on this loop, a plain function on a thread of its own."""
    if inspect.iscoroutinefunction(handler):
        return handler
    return partial(asyncio.to_thread, handler)


async def within(timeout_s: float | None, job: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
    """The job's result, or TimeoutError. A job that ends without waiting needs no clock."""
    begun = job(*arguments)
    try:
        waits_for = begun.send(None)
    except StopIteration as end:
        return end.value
    async with asyncio.timeout(timeout_s):
        return await _go_on(begun, waits_for)


@coroutine
def _go_on(begun: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """The result of a coroutine that has begun and waits for something."""
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:
                waits_for = begun.throw(error)
            else:
                waits_for = begun.send(sent)
    except StopIteration as end:
        return end.value


def soon(what: Callable[[], None]) -> None:
    """Have something called as soon as the caller waits."""
    asyncio.get_running_loop().call_soon(what)


sleep = asyncio.sleep
Cancelled = asyncio.CancelledError


def is_cancelled() -> bool:
    """Is it the caller itself that is to stop, and not something that it waits for?"""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


Lock = asyncio.Lock
"""One at a time: `async with`."""


async def until_stopped() -> None:
    """Wait until the process is told to end, by SIGTERM or SIGINT."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def home_loop(targets: Sequence[Target]) -> asyncio.AbstractEventLoop:
    """Where a connection lives: on the caller's loop with a node in this process, else on the thread for them all."""
    if any(target.kind == "memory" for target in targets):
        return asyncio.get_running_loop()
    return io_loop()


def near_loop() -> asyncio.AbstractEventLoop | None:
    """Where a connection may be read while that loop is awake: where it is opened."""
    return asyncio.get_running_loop()
