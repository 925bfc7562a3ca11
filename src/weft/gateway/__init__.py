"""Gateways: messages of other systems into a fabric, and out of it, without losing one.

Owns the small interface that a plug-in fills in (`Source`, `Target`), the `Bridge` that carries letters between two of
them, and two samples, STOMP and HTTP. A gateway is a program of its own, a user of `weft.client`: it handles messages
in Python, a batch at a time, and no node waits for it.
It must never be imported by a node.
Read docs/guides/gateways.md; `weft gateway` runs one from the command line.
"""

from weft.gateway.bridge import Bridge
from weft.gateway.letters import Letter, Source, Target
from weft.gateway.places import open_source, open_target

__all__ = ["Bridge", "Letter", "Source", "Target", "open_source", "open_target"]
