"""The client library: one connection to a node, and every pattern of messaging over it.

Owns the public names of the client. `weft.connect` is the way in; `weft.client.sync` has the same for programs without
an event loop. It must never import the server or Spark: a program that only sends must start in a moment.
Start at docs/guides/client.md.
"""

from weft.client.codecs import add_codec
from weft.client.everywhere import Distributed
from weft.client.fabric import Fabric, connect
from weft.client.message import Message
from weft.client.receiving import Receiver

distributed = Distributed
"""Transactions over several nodes, as `connect` is the way to one: `async with weft.distributed("orders", a, b)`."""

__all__ = ["Distributed", "Fabric", "Message", "Receiver", "add_codec", "connect", "distributed"]
