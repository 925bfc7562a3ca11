"""What `qpid-config` and `qpid-route` share: how words are read, how mistakes are told.

Owns the end of both tools: one line on standard error, exit code 1 when a broker refuses or is not there, 2 when the
words are wrong. Words come in, an exit code goes out.
It must never know a command: each tool does.
Rule: qpid-cpp's tools, which say `Failed: Class - text`.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence

from weft.cli import Parser
from weft.model.errors import ConfigError, WeftError


def seconds(text: str) -> float:
    """An option that is a time."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(text)
    return value


def count(text: str) -> int:
    """An option that is a number of something."""
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def run(parser: Parser, arguments: Sequence[str] | None, work: Callable[[argparse.Namespace], int]) -> int:
    """Read the words and do the work; the exit code."""
    options = parser.parse_intermixed_args(arguments)
    try:
        code = work(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read has had enough. Python must not try to flush the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (WeftError, OSError) as error:
        print(f"Failed: {type(error).__name__} - {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return code
