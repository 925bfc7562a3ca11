"""The address that others reach this machine by.

Owns the one guess of it, for a node that listens on every address and tells others where it is.
It must never send anything or ask a name server: it may run in the loop.
Rule: the source address that the system would use to reach the outside (RFC 6724, section 5); without a way there, the
host's name.
"""

from __future__ import annotations

import socket

WILDCARDS = ("0.0.0.0", "::", "*")  # noqa: S104 - to be told from addresses that others can use
_OUTSIDE = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}
"""Addresses of documentation: nothing is sent, connecting a datagram socket only chooses a way."""


def own_address(host: str) -> str:
    """What to tell of a host that a socket is bound to."""
    if host not in WILDCARDS:
        return host
    for family in (socket.AF_INET6, socket.AF_INET) if host == "::" else (socket.AF_INET,):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as one:
                one.connect(_OUTSIDE[family])
                return str(one.getsockname()[0])
        except OSError:
            continue
    return socket.gethostname()
