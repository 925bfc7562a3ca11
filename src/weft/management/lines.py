"""What is told in words, as lines of `key=value`.

Owns that one form, of events in the log and of log lines on standard error. Names and values go in, a line comes out.
It must never let a value break a line or be taken for another key.
Rule: a value that is not plain is JSON; docs/guides/management.md, "Logs".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def line(parts: Mapping[str, Any]) -> str:
    """Everything that has a value, in order."""
    return " ".join(f"{key}={_plain(value)}" for key, value in parts.items() if value is not None)


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    is_plain = text.isprintable() and text and not any(mark in text for mark in ' "=')
    return text if is_plain else json.dumps(text)


class LineFormatter(logging.Formatter):
    """A log line: when, how severe, which log, and its text; one about an event has the event's own words."""

    def __init__(self, events: str) -> None:
        """`events` is the log whose texts are lines of this form already."""
        super().__init__()
        self._events = events

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever is in it."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        start, text = {"time": time, "severity": record.levelname.lower()}, record.getMessage()
        if record.name == self._events:
            return f"{line(start)} {text}"
        trace = self.formatException(record.exc_info) if record.exc_info else None
        return line(start | {"log": record.name, "text": text, "trace": trace})
