"""May this AMQP 1.0 link be attached, and what does it end at? The rules.

Owns the decision on attach for both directions: targets, sources, the anonymous terminus.
The terminus as the peer asked for it comes in; what is to be made and the answer to the attach go out, or a refusal.
It must not know how links carry messages. Nodes made for a link are `subscriptions`' and `dynamic`'s business.
Rules: AMQP 1.0 section 3.5, RabbitMQ's address v2 and qpidd's conventions; sending to a queue needs write on the
default exchange.
"""

from __future__ import annotations

from weft.broker import dynamic, subscriptions
from weft.broker.access import Caller
from weft.broker.addresses import DEFAULT_EXCHANGE, Place, is_known_topic, resolve, served_queue
from weft.broker.arguments import is_stream
from weft.broker.attaching import TOPIC_CAPABILITIES, Attached, Attaching
from weft.broker.filters import read_filters
from weft.broker.names import REPLY_TO, RESERVED_PREFIX
from weft.broker.queues import check_exclusive
from weft.broker.tables import Edit, Put, Tables
from weft.model.changes import AcceptLink, SetAddress
from weft.model.errors import Refused
from weft.model.events import AddressRequested, Table
from weft.model.names import FABRIC, NAME_BYTES_MAX
from weft.model.services import ARGUMENT, BRIDGE_ARGUMENT, SCHEME
from weft.store import Queue

_REPLY_ADDRESSES = (REPLY_TO, f"/queues/{REPLY_TO}")
_QUEUE_CAPABILITIES = ("queue", "temporary-queue")


def attach(attaching: Attaching, *, may_create: bool) -> Attached:
    """Decide on an attach. Who receives from the pseudo queue of direct reply-to gets an address of its own."""
    asks_for_replies = attaching.terminus.address in _REPLY_ADDRESSES and not attaching.event.peer_sends
    if attaching.terminus.dynamic or asks_for_replies:
        return dynamic.attach(attaching)
    if attaching.event.peer_sends:
        return _attach_target(attaching, may_create)
    return _attach_source(attaching, may_create)


def resolve_to(
    tables: Tables, caller: Caller, event: AddressRequested, *, may_create: bool
) -> tuple[list[Edit], SetAddress]:
    """Decide where messages with this `to` go."""
    place = resolve(tables, event.address)
    if place.is_missing and is_known_topic(tables, event.address):
        place = resolve(tables, event.address, wants_topic=True)
    edits = _make_missing(tables, caller, place, may_create)
    exchange, key = (DEFAULT_EXCHANGE, place.queue) if place.exchange is None else (place.exchange, place.routing_key)
    _require_write(tables, caller, exchange)
    return edits, SetAddress(event.principal, event.address, exchange, key)


def _attach_target(attaching: Attaching, may_create: bool) -> Attached:
    tables, caller, terminus, request = attaching.tables, attaching.caller, attaching.terminus, attaching.event.request
    if not terminus.address:
        return Attached([], AcceptLink(request, None, anonymous=True))
    place = resolve(tables, terminus.address, wants_topic=attaching.wants_topic)
    if place.exchange is not None:
        _require_write(tables, caller, place.exchange)
        echoed = attaching.echo(*TOPIC_CAPABILITIES)
        link = AcceptLink(
            request, terminus.address, exchange=place.exchange, routing_key=place.routing_key, capabilities=echoed
        )
        return Attached([], link)
    edits = _make_missing(tables, caller, place, may_create)
    if place.queue == FABRIC:
        caller.require(
            "write", "queue", FABRIC
        )  # a right of its own: who speaks for nodes need not write anywhere else
    else:
        _require_write(tables, caller, DEFAULT_EXCHANGE)
    watch = dynamic.is_watched(tables.queues.get(place.queue or ""))
    link = AcceptLink(
        request, terminus.address, queue=place.queue, capabilities=attaching.echo(*_QUEUE_CAPABILITIES), watch=watch
    )
    return Attached(edits, link)


def _attach_source(attaching: Attaching, may_create: bool) -> Attached:
    tables, caller, terminus = attaching.tables, attaching.caller, attaching.terminus
    if not terminus.address:
        return subscriptions.recall(attaching)
    service = terminus.address.removeprefix(SCHEME) if terminus.address.startswith(SCHEME) else ""
    if service:
        place = served_queue(tables, service)
    else:
        place = resolve(tables, terminus.address, wants_topic=attaching.wants_topic)
    filters = read_filters(terminus.filters)
    if place.exchange is not None:
        return subscriptions.subscribe(attaching, tables.exchange(place.exchange), place.routing_key, filters)
    edits = _make_missing(tables, caller, place, may_create, {ARGUMENT: service} if service else {})
    name = place.queue or ""
    queue = tables.queues.get(name)
    if queue is not None:
        check_exclusive(queue, caller.conn)
    caller.require("read", "queue", name)
    link = AcceptLink(
        attaching.event.request,
        terminus.address,
        queue=name,
        browse=terminus.distribution == "copy",
        selector=filters.selector,
        subject_filter=filters.subject,
        no_local=filters.no_local,
        discard=queue is not None and BRIDGE_ARGUMENT in queue.arguments,
        filters=filters.applied_to_queue(is_stream=queue is not None and is_stream(queue)),
        capabilities=attaching.echo(*_QUEUE_CAPABILITIES),
        watch=dynamic.is_watched(queue),
    )
    return Attached(edits, link)


def _make_missing(
    tables: Tables, caller: Caller, place: Place, may_create: bool, arguments: Table | None = None
) -> list[Edit]:
    """A plain address that leads nowhere becomes a durable queue, as in Artemis."""
    name = place.queue
    if not place.is_missing or name is None:
        return []
    is_reserved = name.startswith((RESERVED_PREFIX, "$", "/"))
    if not may_create or is_reserved or not name or len(name.encode()) > NAME_BYTES_MAX:
        raise Refused(f"NOT_FOUND - no queue or exchange '{name[:NAME_BYTES_MAX]}' in vhost '{tables.vhost}'", 404)
    caller.require("configure", "queue", name)
    return [Put(Queue(tables.vhost, name, durable=True, arguments=arguments or {}), durable=True)]


def _require_write(tables: Tables, caller: Caller, exchange: str) -> None:
    caller.require("write", "exchange", exchange)
    if exchange and tables.exchange(exchange).internal:
        raise Refused(f"ACCESS_REFUSED - cannot publish to internal {tables.exchange(exchange)}", 403)
