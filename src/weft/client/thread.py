"""The thread that carries a process's connections, so that heartbeats go out whatever the program does.

Owns one daemon thread with one event loop, made when the first client connects over a network and kept until the
process ends. It must never run code of the program: handlers run on the program's own loops and threads.
Rule: a child process after a fork has no such thread, and makes its own.
"""

from __future__ import annotations

import asyncio
import os
import threading

_LOCK = threading.Lock()
_LOOPS: dict[int, asyncio.AbstractEventLoop] = {}


def io_loop() -> asyncio.AbstractEventLoop:
    """The loop of this process's connections."""
    with _LOCK:
        loop = _LOOPS.get(os.getpid())
        if loop is None:
            loop = _LOOPS[os.getpid()] = _make()
        return loop


def _make() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="weft-client", daemon=True).start()
    return loop
