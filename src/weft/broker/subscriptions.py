"""Receiving from an exchange: the queue behind an AMQP 1.0 subscription.

Owns the naming, the making and the finding again of subscription queues, and what ends them.
An attach to an exchange comes in; a queue bound to it and the link from that queue go out.
It must not touch a queue that was not made for a subscription.
Rules: qpidd's names (`container_link`, or the link's alone when `shared`), AMQP 1.0 section 3.5.3 for durability and
expiry;
a durable subscription ends when its link is closed rather than detached, as JMS expects. Subscribing needs read on the
exchange, and configure on the queue's name where the queue outlives the link.
"""

from __future__ import annotations

from weft.broker.arguments import matching_type
from weft.broker.attaching import Attached, Attaching
from weft.broker.bindings import check_header_match, require_topic
from weft.broker.filters import Filters
from weft.broker.names import bounded_name, make_name
from weft.broker.tables import Edit, Put, Tables
from weft.model.changes import AcceptLink
from weft.model.errors import Refused
from weft.model.events import Terminus
from weft.store import Binding, Exchange, Queue

SHARED = "shared"
CAPABILITIES = ("topic", "temporary-topic", SHARED, "global")
_NAME_DELIMITER = "|"
"""JMS clients put what tells the links of one shared subscription apart after this sign."""


def subscribe(attaching: Attaching, exchange: Exchange, key: str | None, filters: Filters) -> Attached:
    """Attach a link that receives from an exchange."""
    tables, caller, terminus = attaching.tables, attaching.caller, attaching.terminus
    caller.require("read", "exchange", exchange.name)
    queue = _choose_queue(attaching)
    if queue.durable:
        caller.require("configure", "queue", queue.name)
    _require_sources(attaching, queue.name)
    arguments = filters.headers or {}
    check_header_match(exchange, arguments)
    if filters.binding_key is not None:
        key = filters.binding_key
    elif key is None:
        key = "#" if matching_type(exchange) == "topic" else ""
    binding = Binding(tables.vhost, exchange.name, "queue", queue.name, key, arguments)
    require_topic(tables, caller, binding)
    link = AcceptLink(
        attaching.event.request,
        terminus.address,
        queue=queue.name,
        selector=filters.selector,
        no_local=filters.no_local,
        discard=True,
        filters=filters.applied_to_exchange(),
        capabilities=attaching.echo(*CAPABILITIES),
        watch=not queue.auto_delete,
    )
    return Attached(_bind_only(tables, queue, binding), link)


def recall(attaching: Attaching) -> Attached:
    """A link without a source asks for the subscription it had before: how JMS unsubscribes."""
    link = attaching.event.link
    names = bounded_name(f"{attaching.container}_{link}"), bounded_name(link.split(_NAME_DELIMITER)[0])
    for name in names:
        queue = attaching.tables.queues.get(name)
        if queue is not None and queue.subscription and not queue.exclusive:
            attaching.caller.require("configure", "queue", name)
            _require_sources(attaching, name)
            bindings = attaching.tables.bindings.of_destination("queue", name)
            address = next((f"{binding.source}/{binding.routing_key}" for binding in bindings), name)
            return Attached([], AcceptLink(attaching.event.request, address, queue=name, watch=True))
    raise Refused(f"NOT_FOUND - no subscription '{link}' in vhost '{attaching.tables.vhost}'", 404)


def _require_sources(attaching: Attaching, queue: str) -> None:
    """Whoever comes back may read what is waiting, so must be allowed to read where it came from."""
    for binding in attaching.tables.bindings.of_destination("queue", queue):
        attaching.caller.require("read", "exchange", binding.source)


def _choose_queue(attaching: Attaching) -> Queue:
    """The queue of this subscription: as it exists, or as it is to be."""
    tables, terminus, conn = attaching.tables, attaching.terminus, attaching.caller.conn
    is_shared = SHARED in terminus.capabilities
    link = attaching.event.link
    name = bounded_name(link.split(_NAME_DELIMITER)[0] if is_shared else f"{attaching.container}_{link}")
    existing = tables.queues.get(name)
    if is_shared or _outlives_connection(terminus):
        if existing is None:
            return _lasting(tables.vhost, name, terminus)
        if not existing.subscription or existing.exclusive:
            raise Refused(f"RESOURCE_LOCKED - {existing} is not a subscription of this link", 405)
        return existing
    if existing is not None:
        if existing.subscription and existing.exclusive and existing.holder == conn:
            return existing
        name = make_name()
    is_for_link = terminus.expiry != "connection-close"
    return Queue(tables.vhost, name, auto_delete=is_for_link, holder=conn, exclusive=True, subscription=True)


def _outlives_connection(terminus: Terminus) -> bool:
    return terminus.durable > 0 or terminus.expiry == "never" or terminus.timeout_s > 0


def _lasting(vhost: str, name: str, terminus: Terminus) -> Queue:
    if terminus.durable > 0 or terminus.expiry == "never":
        return Queue(vhost, name, durable=True, subscription=True)
    if terminus.timeout_s > 0:
        return Queue(vhost, name, subscription=True, arguments={"x-expires": terminus.timeout_s * 1000})
    return Queue(vhost, name, auto_delete=True, subscription=True)


def _bind_only(tables: Tables, queue: Queue, binding: Binding) -> list[Edit]:
    """Bind the queue this way and no other: who comes back with another filter has changed the subscription."""
    edits: list[Edit] = []
    if queue.name not in tables.queues:
        edits.append(Put(queue, queue.durable))
    if binding not in tables.bindings:
        edits.append(tables.put_binding(binding, queue))
    bound = tables.bindings.of_destination("queue", queue.name)
    others = [other for other in bound if other.identity != binding.identity]
    return [*edits, *tables.drop_bindings(others, keep=binding.source)]
