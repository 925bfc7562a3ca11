"""Who is connected to whom, as the kernel's own table says, and not as any node tells it.

Owns the reading of `/proc/PID/fd` and `/proc/net/tcp`, which is what `ss -tnp` reads. Process ids by name come in;
pairs of names go out. It must never ask a node. Both ends of a connection are on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ESTABLISHED = "01"


def connected(pids: Mapping[str, int]) -> set[frozenset[str]]:
    """Pairs of processes with a TCP connection between them."""
    owners = {inode: name for name, pid in pids.items() for inode in _inodes(pid)}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = {row[1]: (row[2], owners[row[9]]) for row in rows if row[3] == ESTABLISHED and row[9] in owners}
    return {frozenset((name, ends[peer][1])) for peer, name in ends.values() if peer in ends}


def _inodes(pid: int) -> list[str]:
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            found.append(target[len("socket:[") : -1])
    return found
