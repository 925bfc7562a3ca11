"""How much memory messages may take when the configuration leaves it open.

Owns the reading of the machine's and the control group's limits. Nothing comes in, a number of bytes goes out.
It must never fail: what cannot be read does not count.
Rule: 40 % of what the process may use, as RabbitMQ's default, which leaves room for buffers, tables and other programs.
"""

from __future__ import annotations

import os
from pathlib import Path

SHARE = 0.4
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes_default(cgroup_limits: tuple[str, ...] = CGROUP_LIMITS) -> int:
    """The share of physical memory, or of the control group's limit if that is lower."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in cgroup_limits:
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            available = min(available, int(text))
    return int(available * SHARE)
