"""The embedded directory over the fabric: neighbours tell each other entries by control messages.

Owns the way between a node's copy of the directory and its neighbours. Joined and lost neighbours and their messages
come in; `entries` messages go out.
It must not look into entries.
Rule: `weft.directory.embedded`; a neighbour that joins is told everything.
"""

from __future__ import annotations

from typing import Any

from weft.directory import Embedded
from weft.federation import control
from weft.network.runner import Network
from weft.network.settings import NODES
from weft.network.voices import Voice

OP = "entries"


def join(directory: Embedded, network: Network) -> None:
    """Let a directory and a network work together."""
    node = network.federation.node

    def encode(records: list[dict[str, Any]]) -> bytes:
        return control.encode(OP, node, records=records)

    def spread(records: list[dict[str, Any]], but: str) -> None:
        for neighbour in network.federation.neighbours():
            if neighbour != but:
                network.tell(neighbour, [encode(records)])

    def on_joined(neighbour: str) -> None:
        network.tell(neighbour, [encode(piece) for piece in directory.everything()])

    def on_entries(said: control.Said, voice: Voice) -> None:
        sets = voice is Voice.SETTER
        directory.receive(said.node, said.table.get("records"), but="" if sets else NODES)

    directory.spread = spread
    network.on_joined = on_joined
    network.on_left = directory.lost
    network.others[OP] = on_entries
