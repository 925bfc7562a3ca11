"""What a client may be told when it connects, with the type of each option.

Owns the names and types alone, for editors and type checkers; `Fabric` has the defaults and the meaning.
It must never be needed at run time: importing a client should cost a moment.
A type checker compares it with `Fabric` wherever `connect` passes it on (docs/guides/client.md).
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from weft.client.signing import Signer


class Options(TypedDict, total=False):
    """The options of `weft.connect`."""

    name: str | None
    timeout_s: float
    heartbeat_s: float
    tls: ssl.SSLContext | None
    window: int
    policy: Literal["failover", "random", "round-robin"]
    signer: Signer | None
    spool: str | os.PathLike[str] | None
    spool_bytes_max: int
    patient: bool
