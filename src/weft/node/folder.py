"""The folder that belongs to one node.

Owns making it and the lock that keeps a second node out. A path comes in; while the value lives, the folder is ours.
It must never know what is stored there.
Errors are `Unavailable`, with the path in the text; `Taken` if only its owner is in the way.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from weft.model.errors import Unavailable


class Taken(Unavailable):
    """Another node has the folder; it is free once that one has ended, however it did."""


class Folder:
    """A locked folder. The lock is the operating system's, so it goes with the process however that ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unavailable(f"cannot use data folder {path}: {(error.strerror or str(error)).lower()}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Taken(f"data folder {path} belongs to another node that is running") from None

    def close(self) -> None:
        """Let another node have it."""
        os.close(self._lock)
