"""What the kernel is asked for, for each kind of route: both ends of a link, and how it treats messages.

Owns how a route becomes an `OpenLink`. A route, a connection and a place at the peer come in; the change goes out,
without the number that `carriers` gives it.
It must know no state.
Rule: docs/reference/links.md, "A pull, a push" and "A relay".
"""

from __future__ import annotations

from dataclasses import replace

from weft.federation import control
from weft.federation.addresses import Place, exchange_place, is_pattern, queue_place
from weft.federation.records import Route
from weft.federation.steps import CONTROL_CREDIT, FOR, OUT, VHOST
from weft.federation.uplink import Uplink
from weft.model.changes import OpenLink


def pull(conn: int, route: Route, place: Place, *, durable: bool = False) -> OpenLink:
    """Fetch from a place of the peer."""
    # A topic's messages need not say what it is called.
    is_fixed = route.kind == "queue" or (place.is_topic and not is_pattern(route.key))
    return OpenLink(
        conn,
        0,
        f"weft-{route.name}",
        "pull",
        place.address,
        capabilities=place.capabilities,
        vhost=route.vhost,
        exchange=route.exchange,
        routing_key=route.key if is_fixed and route.key else None,
        credit=route.credit,
        backlog_max=route.backlog_max or None,
        bytes_per_s_max=route.bytes_per_s_max or None,
        durable=durable,
        relay=True,
        # A queue's message is one copy: it may come back to where it was published, to be worked on there.
        circles=route.kind == "queue",
        first_hand=route.relay == "complete",
        # What no binding here wants is forgotten, as for any publisher; what was in a queue stays there.
        refusal="modify" if route.kind == "queue" else "accept",
    )


def push(uplink: Uplink, route: Route, node: str, queue: str) -> OpenLink:
    """Send what a queue of this node has."""
    # Only our own nodes are told each message's key; others publish all of a link under one.
    is_fixed = route.kind == "queue" or (route.kind == "static" and not uplink.is_weft)
    key = route.key if is_fixed and route.key else None
    if route.exchange:
        place = exchange_place(uplink.product, route.exchange, key)
    else:
        place = queue_place(uplink.product, route.key)
    return OpenLink(
        uplink.conn,
        0,
        f"weft-{node}-{route.name}",
        "push",
        place.address,
        capabilities=place.capabilities,
        vhost=route.vhost,
        queue=queue,
        credit=route.credit,
        bytes_per_s_max=route.bytes_per_s_max or None,
        relay=True,
        circles=route.kind == "queue",
        first_hand=route.relay == "complete",
        discard=route.kind != "queue",
    )


def channel(uplink: Uplink, node: str) -> tuple[OpenLink, OpenLink]:
    """Control messages to a node of ours, and back."""
    conn, name = uplink.conn, uplink.link.name
    out = OpenLink(conn, 0, f"fabric-out-{name}", "push", control.ADDRESS, vhost=VHOST, queue=OUT + name)
    place = queue_place(uplink.product, FOR + node)
    back = OpenLink(
        conn,
        0,
        f"fabric-in-{name}",
        "pull",
        place.address,
        vhost=VHOST,
        queue=control.ADDRESS,
        credit=CONTROL_CREDIT,
    )
    return out, back


def at_pace(ask: OpenLink, route: Route) -> OpenLink:
    """The same link, as fast as a route is to be now."""
    backlog_max = route.backlog_max if route.direction == "pull" else 0
    return replace(
        ask, credit=route.credit, backlog_max=backlog_max or None, bytes_per_s_max=route.bytes_per_s_max or None
    )
