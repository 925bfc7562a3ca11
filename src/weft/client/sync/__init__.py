"""The client for programs without an event loop: the same names, made from the asynchronous face, usable from threads.

Owns nothing but the public names; every module beside this one is made by tools/unasync.py.
It must never be edited by hand. Start at docs/guides/client.md.
"""

from weft.client.codecs import add_codec
from weft.client.message import Message
from weft.client.sync.everywhere import Distributed
from weft.client.sync.fabric import Fabric, connect
from weft.client.sync.receiving import Receiver

distributed = Distributed
"""Transactions over several nodes, as `connect` is the way to one: `with sync.distributed("orders", a, b)`."""

__all__ = ["Distributed", "Fabric", "Message", "Receiver", "add_codec", "connect", "distributed"]
