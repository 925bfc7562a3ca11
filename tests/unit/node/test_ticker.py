"""The one timer of a node: by the system's clock where it has one, by the loop's elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
from time import monotonic_ns

import pytest

from weft.node import ticker
from weft.node.ticker import Ticker

MS = 1_000_000
HOUR_NS = 3_600_000_000_000


@pytest.fixture(params=["system", "loop"])
def find_alarm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "loop":
        monkeypatch.setattr(ticker, "find_alarm", lambda: None)


@pytest.mark.usefixtures("find_alarm")
async def test_it_wakes_at_each_deadline_and_never_before() -> None:
    deadlines: list[int] = []
    woken: asyncio.Queue[int] = asyncio.Queue()
    one = Ticker(
        asyncio.get_running_loop(), lambda: min(deadlines, default=None), lambda: woken.put_nowait(monotonic_ns())
    )
    one.rearm()
    for deadline_ns in (monotonic_ns() + 5 * MS, 0, monotonic_ns() + 7 * MS):
        deadlines[:] = [monotonic_ns() + HOUR_NS]
        one.rearm()
        deadlines.append(deadline_ns)  # an earlier one takes the place of a later one; one that is over rings at once
        one.rearm()
        assert await asyncio.wait_for(woken.get(), 30) >= deadline_ns
        assert woken.empty()
    one.stop()


def alarms() -> int:
    """Timers of the system that this process has."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{number}") == "anon_inode:[timerfd]"
    return count


async def test_it_leaves_no_file_behind() -> None:
    before = alarms()
    one = Ticker(asyncio.get_running_loop(), lambda: monotonic_ns() + HOUR_NS, lambda: None)
    one.rearm()
    assert alarms() == before + 1
    one.stop()
    one.stop()
    assert alarms() == before
