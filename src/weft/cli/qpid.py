"""What `qpid-config` and `qpid-route` share: how words are read, how mistakes are told.

Owns the end of both tools: one line on standard error, exit code 1 when a broker refuses or is not there, 2 when the
words are wrong. Words come in, an exit code goes out.
It must never know a command: each tool does.
Rule: qpid-cpp's tools, which say `Failed: Class - text`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from weft.cli import Parser, carry_out
from weft.model.errors import ConfigError, WeftError


def run(parser: Parser, arguments: Sequence[str] | None, work: Callable[[argparse.Namespace], int]) -> int:
    """Read the words and do the work; the exit code."""

    def fail(error: WeftError | OSError) -> int:
        print(f"Failed: {type(error).__name__} - {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1

    return carry_out(lambda: work(parser.parse_args(arguments)), fail)
