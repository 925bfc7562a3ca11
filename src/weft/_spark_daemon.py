"""Spark's daemon of Python workers, without its cries: what `weft.spark.session` starts in place of the plain one.

Owns one silence: a worker whose JVM has read enough and hung up. Spark prints a traceback for it, though nothing is
wrong; every other one is printed as before.
It must never import `weft.spark` or pyarrow: threads that they start would not survive the daemon's forks, which is
why it lies outside that package.
"""

from __future__ import annotations

import sys
import traceback

from pyspark import daemon

_print = traceback.print_exc


def print_unless_hung_up() -> None:
    """In place of `traceback.print_exc`, which the daemon calls without arguments."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        _print()


if __name__ == "__main__":
    traceback.print_exc = print_unless_hung_up  # type: ignore[assignment]
    daemon.manager()
