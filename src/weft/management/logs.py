"""Log lines as messages: what the parts of a node say in words, told like everything else.

Owns the one handler that hears the logs of this process, and for each node the lines that wait to be told and how many
there were. A line comes in from any thread; an event of the class `log` goes out in the next turn of the node's loop if
anybody listens.
It must never tell of what telling itself says, nor wait, nor tell more than its bounds.
Rule: docs/guides/management.md, "Logs". Lines about events are events already, and are left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from threading import get_ident
from typing import Final

from weft.management.events import LOG as EVENTS
from weft.management.events import Events

ROOT: Final = logging.getLogger("weft")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
LINES_WAITING_MAX = 100
"""Lines between two turns of the loop; more are dropped and counted."""
LINES_MAX = 100
"""Lines told in one second; more are dropped and counted. Who gathers from many nodes must not drown in one."""
SECOND_S = 1.0
TEXT_CHARS_MAX = 4_000


class _Ear(logging.Handler):
    """Hears every line of every log of weft, for all nodes of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._nodes: tuple[Logs, ...] = ()

    def add(self, node: Logs) -> None:
        self._nodes += (node,)
        ROOT.addHandler(self)

    def remove(self, node: Logs) -> None:
        self._nodes = tuple(known for known in self._nodes if known is not node)
        if not self._nodes:
            ROOT.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Let every node have it."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and self._is_alone(record.name):
            # Python shows warnings where nobody handles them, and we do not count as somebody.
            last.handle(record)
        if record.name == EVENTS.name:
            return
        try:
            text = record.getMessage()[:TEXT_CHARS_MAX]
            error = record.exc_info[1] if record.exc_info else None
        except Exception:  # as every handler does with a line whose arguments do not fit
            self.handleError(record)
            return
        about = None if error is None else f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX]
        for node in self._nodes:
            node.hear(record.name, record.levelno, text, about)

    def _is_alone(self, name: str) -> bool:
        log: logging.Logger | None = logging.getLogger(name)
        while log is not None:
            if any(handler is not self for handler in log.handlers):
                return False
            log = log.parent if log.propagate else None
        return True


_EAR = _Ear()


class Logs:
    """The log lines of one node."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[tuple[str, int, str, str | None]] = deque()
        self._telling_thread = 0
        self._second = 0.0
        self._told_in_second = 0
        self.lines: Counter[str] = Counter()
        """Lines of each log, and how many of them were told, or dropped."""
        self.told: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()

    def start(self) -> None:
        """Hear from now on."""
        self._loop = asyncio.get_running_loop()
        _EAR.add(self)

    def stop(self) -> None:
        """Hear nothing more."""
        _EAR.remove(self)
        self._loop = None
        self._waiting.clear()

    def hear(self, log: str, level: int, text: str, error: str | None) -> None:
        """A line was written, in whichever thread."""
        self.lines[log] += 1
        loop = self._loop
        if loop is None or loop.is_closed() or self._telling_thread == get_ident() or not self._events.is_heard:
            return
        if len(self._waiting) >= LINES_WAITING_MAX:
            self.dropped[log] += 1
            return
        self._waiting.append((log, level, text, error))
        if len(self._waiting) == 1:
            loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if self._loop is None:
            return
        if self._loop.time() - self._second >= SECOND_S:
            self._second, self._told_in_second = self._loop.time(), 0
        self._telling_thread = get_ident()
        try:
            while self._waiting:
                log, level, text, error = self._waiting.popleft()
                if self._told_in_second >= LINES_MAX:
                    self.dropped[log] += 1
                    continue
                self._told_in_second += 1
                self.told[log] += 1
                values = {"text": text} | ({} if error is None else {"error": error})
                self._events.publish("log", "line", log, None, values, severity=_severity(level))
        finally:
            self._telling_thread = 0


def _severity(level: int) -> str:
    return "error" if level >= logging.ERROR else "warning" if level >= logging.WARNING else "info"
