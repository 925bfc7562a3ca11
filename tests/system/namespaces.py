"""Network namespaces joined by a bridge: machines of a network that can be cut, slowed and made to lose packets.

Owns the namespaces, virtual cables and the bridge of one test, and removes them. It needs root and `ip`; `usable` says
whether that is so. It must never touch an interface it did not make.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Self


def usable() -> bool:
    """May this user make namespaces?"""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    made = subprocess.run(["ip", "netns", "add", f"wt{os.getpid()}probe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", f"wt{os.getpid()}probe"], capture_output=True, check=False)
    return made.returncode == 0


class Machines:
    """So many machines on one switch; the addresses are 10.99.0.1 and up."""

    def __init__(self, names: list[str]) -> None:
        self._tag = f"wt{os.getpid() % 100000}"
        self.names = names

    def __enter__(self) -> Self:
        self._ip("link", "add", f"{self._tag}s", "type", "bridge")
        self._ip("addr", "add", "10.99.0.254/24", "dev", f"{self._tag}s")  # the test itself is on the switch, too
        self._ip("link", "set", f"{self._tag}s", "up")
        for at, name in enumerate(self.names):
            space, cable = self.space(name), f"{self._tag}c{at}"
            self._ip("netns", "add", space)
            self._ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            self._ip("link", "set", cable, "master", f"{self._tag}s", "up")
            self._ip("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            self._ip("-n", space, "link", "set", "eth0", "up")
            self._ip("-n", space, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_exc: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False)
        subprocess.run(["ip", "link", "del", f"{self._tag}s"], check=False)

    def space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def address(self, name: str) -> str:
        return f"10.99.0.{self.names.index(name) + 1}"

    def inside(self, name: str) -> list[str]:
        """The words before a command that is to run on a machine."""
        return ["ip", "netns", "exec", self.space(name)]

    def cut(self, name: str) -> None:
        """Pull the cable: nothing is said to anyone."""
        self._ip("link", "set", f"{self._tag}c{self.names.index(name)}", "down")

    def heal(self, name: str) -> None:
        self._ip("link", "set", f"{self._tag}c{self.names.index(name)}", "up")

    def spoil(self, name: str, *what: str) -> bool:
        """Delay or lose packets of a machine (words of tc netem); False if this system cannot."""
        cable = f"{self._tag}c{self.names.index(name)}"
        command = ["tc", "qdisc", "replace", "dev", cable, "root", "netem", *what]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)
