"""Drives one engine: sockets, time and decisions around the kernel, on one asyncio loop.

Owns the loop's side of the boundary: `connection` (bytes in and out), `ticker` (time), `local` (messaging inside the
process), `memory` (how much there is), and `driver`, which puts them together and hands events to controllers.
Controllers come in as a protocol; none of them is known here by name.
Rule: Python runs per read, per flush and per decision, never per message (ARCHITECTURE.md).
"""

from weft.node.driver import Controller, Driver
from weft.node.local import Message, Receiver

__all__ = ["Controller", "Driver", "Message", "Receiver"]
