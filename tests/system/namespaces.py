"""Network namespaces joined by a bridge: machines of a network that can be cut, slowed and made to lose packets.

Owns the namespaces, virtual cables and the bridge of one test, and removes them. It needs root and `ip`; `usable` says
whether that is so. It must never touch an interface it did not make. Delay and loss are made here, frame by frame, by
raw sockets: netem, the kernel's own means, is a module that many kernels lack.
"""

from __future__ import annotations

import ctypes
import heapq
import itertools
import os
import random
import selectors
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

PACKET_BYTES_MAX = 70_000
"""A frame with what the kernel leaves for a network card to cut up."""
SOL_PACKET = 263
PACKET_IGNORE_OUTGOING = 23
PACKET_VNET_HDR = 15
ALL_PROTOCOLS = 0x0003
CLONE_NEWNET = 0x40000000
HIDDEN, HIDDEN_ROUTER = "192.168.77.2", "192.168.77.1"
"""The same behind every router: nobody outside sees them."""
_NUMBERS = itertools.count(os.getpid() % 10_000 * 10)
"""Of networks: those of other processes and of tests before have others, since interfaces may take a while to go."""


def usable() -> bool:
    """May this user make namespaces?"""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    made = subprocess.run(["ip", "netns", "add", f"wt{os.getpid()}probe"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", f"wt{os.getpid()}probe"], capture_output=True, check=False)
    return made.returncode == 0


def can_translate() -> bool:
    """Is there network address translation?"""
    return shutil.which("iptables") is not None


@dataclass(frozen=True, slots=True)
class Spoiled:
    """What a bad cable does to each frame, in each direction."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """More delay at random: frames overtake each other."""
    loss: float = 0.0
    doubled: float = 0.0
    seed: int = 1


class BadCable:
    """Two plugs with a thread between them that keeps, loses, delays and doubles frames."""

    def __init__(self, one: str, other: str, spoiled: Spoiled) -> None:
        self.passed = self.lost = 0
        self._spoiled = spoiled
        self._random = random.Random(spoiled.seed)
        self._ends = [_plug(one), _plug(other)]
        self._late: list[tuple[float, int, int, bytes]] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop carrying."""
        self._closing.set()
        self._thread.join()
        for end in self._ends:
            end.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for at, end in enumerate(self._ends):
                selector.register(end, selectors.EVENT_READ, at)
            while not self._closing.is_set():
                wait_s = min(0.1, self._late[0][0] - time.monotonic()) if self._late else 0.1
                for key, _ in selector.select(max(0.0, wait_s)):
                    self._take(key.data)
                self._give()

    def _take(self, at: int) -> None:
        how = self._spoiled
        try:
            frame = self._ends[at].recv(PACKET_BYTES_MAX)
        except OSError:
            return  # the plug was pulled
        if self._random.random() < how.loss:
            self.lost += 1
            return
        for _copy in range(2 if self._random.random() < how.doubled else 1):
            self.passed += 1
            due = time.monotonic() + how.delay_s + self._random.random() * how.jitter_s
            heapq.heappush(self._late, (due, self.passed, 1 - at, frame))

    def _give(self) -> None:
        while self._late and self._late[0][0] <= time.monotonic():
            _due, _number, at, frame = heapq.heappop(self._late)
            try:
                self._ends[at].send(frame)
            except OSError:
                self.lost += 1  # no room in the other plug, or it was pulled


def _plug(name: str) -> socket.socket:
    """All frames that arrive at an interface, with the header that says what is left to do to them."""
    plug = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    plug.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    plug.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    plug.bind((name, ALL_PROTOCOLS))
    plug.setblocking(False)
    return plug


def _enter(space: int) -> None:
    """As `os.setns`, which Python has since 3.12."""
    if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


class Machines:
    """So many machines on one switch, in a network of their own."""

    def __init__(self, names: list[str], hidden: Collection[str] = ()) -> None:
        """`hidden` machines are behind a router each that translates addresses: they can call, and nobody can call
        them.
        """
        number = next(_NUMBERS)
        self._tag = f"wt{number}"
        self._net = f"10.{100 + number // 250 % 100}.{number % 250}"
        self.names = names
        self._hidden = hidden
        self._cables: list[BadCable] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def _make(self) -> None:
        self._ip("link", "add", f"{self._tag}s", "type", "bridge")
        self._ip("addr", "add", f"{self._net}.254/24", "dev", f"{self._tag}s")  # the test itself is on the switch, too
        self._ip("link", "set", f"{self._tag}s", "up")
        for at, name in enumerate(self.names):
            space, cable = self.space(name), f"{self._tag}c{at}"
            self._ip("netns", "add", space)
            front = self._hide(space) if name in self._hidden else space
            self._ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", front)
            self._ip("link", "set", cable, "master", f"{self._tag}s", "up")
            self._ip("-n", front, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            self._ip("-n", front, "link", "set", "eth0", "up")
            self._ip("-n", space, "link", "set", "lo", "up")

    def _hide(self, space: str) -> str:
        """A router in front of a machine; its own space."""
        router = f"{space}r"
        self._ip("netns", "add", router)
        self._ip("-n", router, "link", "add", "eth1", "type", "veth", "peer", "name", "eth0", "netns", space)
        for side, card, address in ((router, "eth1", HIDDEN_ROUTER), (space, "eth0", HIDDEN)):
            self._ip("-n", side, "addr", "add", f"{address}/24", "dev", card)
            self._ip("-n", side, "link", "set", card, "up")
        self._ip("-n", space, "route", "add", "default", "via", HIDDEN_ROUTER)
        self._ip("netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        translate = ["iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE"]
        self._ip("netns", "exec", router, *translate)
        return router

    def __exit__(self, *_exc: object) -> None:
        for cable in self._cables:
            cable.close()
        for at in range(len(self.names)):
            for plug in "bc":
                subprocess.run(["ip", "link", "del", f"{self._tag}{plug}{at}"], check=False, capture_output=True)
        for name in [*self.names, *(f"{name}r" for name in self._hidden)]:
            subprocess.run(["ip", "netns", "del", self.space(name)], check=False)
        subprocess.run(["ip", "link", "del", f"{self._tag}s"], check=False)

    def space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def address(self, name: str) -> str:
        return f"{self._net}.{self.names.index(name) + 1}"

    def inside(self, name: str) -> list[str]:
        """The words before a command that is to run on a machine."""
        return ["ip", "netns", "exec", self.space(name)]

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        """What this thread connects to in the meantime, it reaches from that machine; sockets stay where they are."""
        with Path("/proc/thread-self/ns/net").open() as here, Path(f"/run/netns/{self.space(name)}").open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(here.fileno())

    def cut(self, name: str) -> None:
        """Pull the cable: nothing is said to anyone."""
        self._ip("link", "set", f"{self._tag}c{self.names.index(name)}", "down")

    def heal(self, name: str) -> None:
        self._ip("link", "set", f"{self._tag}c{self.names.index(name)}", "up")

    def spoil(self, name: str, spoiled: Spoiled) -> BadCable:
        """Have a bad cable in place of a machine's good one, until the end of the test."""
        plug, socket_ = f"{self._tag}c{self.names.index(name)}", f"{self._tag}b{self.names.index(name)}"
        far = f"{self._tag}d{self.names.index(name)}"
        self._ip("link", "set", plug, "nomaster")
        self._ip("link", "add", socket_, "type", "veth", "peer", "name", far)
        self._ip("link", "set", socket_, "master", f"{self._tag}s", "up")
        self._ip("link", "set", far, "up")
        cable = BadCable(plug, far, spoiled)
        self._cables.append(cable)
        return cable

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)
