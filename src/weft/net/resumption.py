"""TLS sessions that are taken up again: the second handshake with a peer is shorter than the first.

Owns what a dialling context remembers of the peers it has spoken to, by place. Before a dial the place is named, so
that the handshake offers the session that is known; the session of a connection is kept for the next one.
It must never weaken a check: a session belongs to its context, so to the same authorities and the same certificate of
ours. A peer that does not know it any more makes a whole handshake.
Rule: RFC 8446 section 2.2 (RFC 5077 before TLS 1.3); docs/guides/client.md, "TLS"; docs/guides/network.md, "Links".
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from contextvars import ContextVar

PLACES_MAX = 1_024
"""Peers whose sessions one context remembers: a few kilobytes each, and a program that has more wants a node."""

_PLACE: ContextVar[str] = ContextVar("place", default="")
"""Where the running task dials to: a context is told the host only, and several nodes may live at one."""


class Sessions:
    """The sessions of one context; it stands in for the context's own `wrap_bio`, which begins every handshake."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._make = context.wrap_bio
        self._by_place: OrderedDict[str, ssl.SSLSession] = OrderedDict()

    def __call__(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        known = self._by_place.get(_PLACE.get())
        return self._make(incoming, outgoing, server_side, server_hostname, session or known)

    def keep(self, place: str, session: ssl.SSLSession) -> None:
        """A connection to a place has this session; the oldest of too many is forgotten."""
        self._by_place[place] = session
        self._by_place.move_to_end(place)
        if len(self._by_place) > PLACES_MAX:
            self._by_place.popitem(last=False)


def dialling(context: ssl.SSLContext, place: str) -> None:
    """The running task is about to connect to a place with this context."""
    _PLACE.set(place)
    _sessions(context)


def remember(transport: asyncio.Transport, place: str) -> None:
    """Keep the session of a connection to a place. Only after bytes have come from the peer: it says in them under
    which ticket the session may be taken up again.
    """
    context, end = transport.get_extra_info("sslcontext"), transport.get_extra_info("ssl_object")
    if context is not None and end is not None and end.session is not None:
        _sessions(context).keep(place, end.session)


def is_resumed(transport: asyncio.Transport) -> bool:
    """Was the session of this connection taken up again?"""
    end = transport.get_extra_info("ssl_object")
    return end is not None and bool(end.session_reused)


def _sessions(context: ssl.SSLContext) -> Sessions:
    known = vars(context).get("wrap_bio")
    if not isinstance(known, Sessions):
        known = Sessions(context)
        context.wrap_bio = known  # type: ignore[method-assign] # public, and asked for at each handshake
    return known
