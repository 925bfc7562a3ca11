"""When the disk has nothing more to do: memory that was kept for a flood goes, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.node import disk, driver

WAIT_S = 30.0


async def test_it_rests_once_after_the_last_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rests: asyncio.Queue[int] = asyncio.Queue()

    class Noting(disk.Disk):
        def __init__(self, loop: Any, done: Any, rest: Callable[[], None]) -> None:
            def noted() -> None:
                rest()
                rests.put_nowait(self._begun)

            super().__init__(loop, done, noted)

    monkeypatch.setattr(disk, "REST_S", 0.01)
    monkeypatch.setattr(driver, "Disk", Noting)
    async with weft.Node(data_dir=tmp_path) as node:
        node.declare_queue("kept")
        for _ in range(2):
            await node.send("kept", b"x" * 1024, delivery_mode=2)
            assert await asyncio.wait_for(rests.get(), WAIT_S) > 0
            while not rests.empty():  # it may have rested between the jobs of one message
                rests.get_nowait()
