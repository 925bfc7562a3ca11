"""Links to other nodes, and the routes they carry: one fabric out of many nodes.

Owns the decisions: which link is tried when, what a route needs at both ends, which bindings are reflected where. The
kernel moves the messages, the node dials.
It must never touch a message or a socket, nor import a sibling: what it needs of the broker is in `desk`.
Read docs/guides/network.md for use, docs/decisions/0010 for how bindings travel.
"""

from weft.federation.controller import Federation
from weft.federation.records import Link, Route, link_of, parse_url, route_of, to_table
from weft.federation.relays import Relay, relay_of
from weft.federation.steps import Joined, Left, Post, Step

__all__ = [
    "Federation",
    "Joined",
    "Left",
    "Link",
    "Post",
    "Relay",
    "Route",
    "Step",
    "link_of",
    "parse_url",
    "relay_of",
    "route_of",
    "to_table",
]
