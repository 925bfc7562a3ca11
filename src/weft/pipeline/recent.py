"""Silver of the last batches, remembered: an answer that is about now need not open a file for each of them.

Owns a bounded memory of what a job made of the batches of this run, for tables that have a column of time. What a batch
made comes in; all there is from some time on goes out, or nothing where files may have more of it.
It must never be the truth: that is the files, and whoever finds nothing here reads those.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

BATCHES_MAX = 256
BYTES_MAX = 32 << 20


class Recent:
    """The batches of one table, by a column of time."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._batches: deque[tuple[int, pa.Table]] = deque()
        self._bytes = 0
        self._forgotten: datetime | None = None
        """Files may hold rows up to this time; None if that is not known."""

    def knows_files_end(self, newest: datetime) -> None:
        """The time of the newest row in files of batches that were never here."""
        self._forgotten = newest

    @property
    def is_new(self) -> bool:
        """Whether nobody has said yet what files hold."""
        return self._forgotten is None

    def add(self, batch: int, rows: pa.Table) -> None:
        """What a job made of a batch; of one that is repeated, what it made the last time."""
        while self._batches and self._batches[-1][0] >= batch:
            self._bytes -= self._batches.pop()[1].nbytes
        self._batches.append((batch, rows))
        self._bytes += rows.nbytes
        while len(self._batches) > BATCHES_MAX or self._bytes > BYTES_MAX:
            old = self._batches.popleft()[1]
            self._bytes -= old.nbytes
            newest = pc.max(old[self._column]).as_py()
            if self._forgotten is not None and newest is not None:
                self._forgotten = max(self._forgotten, newest)

    def since(self, time: datetime) -> pa.Table | None:
        """All rows from this time on; None where there may be more of them than these."""
        if self._forgotten is None or self._forgotten >= time:
            return None
        parts = [rows.filter(pc.greater_equal(rows[self._column], time)) for _, rows in self._batches]
        return pa.concat_tables(parts) if parts else None
