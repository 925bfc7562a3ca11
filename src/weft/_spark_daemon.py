"""Spark's Python processes without their cries: a worker whose JVM has hung up has nothing to tell.

Owns one silence. When a JVM ends or has read enough, Spark's workers, and the process that plans a streaming query,
find their socket closed and print a traceback, often only its first line before they are gone, though nothing is wrong.
Every other one is printed as before. Run as a program it is the daemon of workers that `weft.spark.session` asks for;
processes whose program Spark does not let us choose call `hush` when they import the source, or `pyspark_weft`.
It must never import `weft.spark` or pyarrow: threads that they start would not survive the daemon's forks, which is
why it lies outside that package.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from types import TracebackType

HUNG_UP = (BrokenPipeError, ConnectionResetError)
RUNTIME = ("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
"""What Spark tells the environment of the Python processes that it starts."""

_print, _hook = traceback.print_exc, sys.excepthook


def print_unless_hung_up() -> None:
    """In place of `traceback.print_exc`, which the daemon calls without arguments."""
    if not isinstance(sys.exc_info()[1], HUNG_UP):
        _print()


def hook_unless_hung_up(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In place of `sys.excepthook`."""
    if not isinstance(error, HUNG_UP):
        _hook(kind, error, trace)


@functools.cache
def hush() -> None:
    """In a process that Spark started, say nothing of a JVM that has hung up; anywhere else, nothing is changed."""
    if os.environ.get(RUNTIME[0]) == RUNTIME[1]:
        traceback.print_exc = print_unless_hung_up  # type: ignore[assignment]
        sys.excepthook = hook_unless_hung_up


if __name__ == "__main__":
    from pyspark import daemon

    hush()
    daemon.manager()
