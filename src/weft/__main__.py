"""The command `weft`, also as `python -m weft`.

Owns what an interrupt means while modules are read: the end, without a word. See `weft.cli` for all else.
It must never be imported by a program: it changes how that one is interrupted.
"""

import signal
import sys

HANDLER = signal.getsignal(signal.SIGINT)
if HANDLER is signal.default_int_handler:  # in the background of a script it is ignored, and stays so
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from weft.cli import main  # noqa: E402 - it takes a moment, in which an interrupt would print a traceback

signal.signal(signal.SIGINT, HANDLER)

if __name__ == "__main__":
    sys.exit(main())
