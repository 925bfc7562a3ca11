"""The command `weft`, also as `python -m weft`.

Owns what an interrupt means while modules are read: the end, without a word. See `weft.cli` for all else.
It must never be imported by a program: it changes how that one is interrupted.
"""

import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)

from weft.cli import main  # noqa: E402 - it takes a moment, in which an interrupt would print a traceback

signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ == "__main__":
    sys.exit(main())
