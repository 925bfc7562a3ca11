"""Dynamic nodes: queues and topics made for an AMQP 1.0 link, and when they end.

Owns the making of a node on demand and the four lifetime policies.
An attach with `dynamic` comes in, later the ends of links and of messages; a node with a made-up name and its end go
out.
It must not delete anything that was not made here.
Rule: AMQP 1.0 sections 3.5.3 and 3.5.10 to 3.5.13; without a policy a node lives as long as the link that made it.
Making one needs configure on its name, as for a queue named by the server.
"""

from __future__ import annotations

from weft.broker.addresses import DEFAULT_EXCHANGE, TOPIC_EXCHANGE
from weft.broker.attaching import TOPIC_CAPABILITIES, Attached, Attaching
from weft.broker.names import make_name
from weft.broker.tables import Put
from weft.model.changes import AcceptLink
from weft.store import Queue

ON_CLOSE = "delete-on-close"
ON_NO_LINKS = "delete-on-no-links"
ON_NO_MESSAGES = "delete-on-no-messages"
ON_NO_LINKS_OR_MESSAGES = "delete-on-no-links-or-messages"
_LIFETIMES = {ON_CLOSE, ON_NO_LINKS, ON_NO_MESSAGES, ON_NO_LINKS_OR_MESSAGES}


class Ends:
    """Links whose end may be the end of a queue: those to nodes that live as long as they have links."""

    def __init__(self) -> None:
        self._by_queue: dict[tuple[str, str], set[tuple[int, str]]] = {}
        self._by_conn: dict[int, set[tuple[str, str, str]]] = {}

    def add(self, conn: int, vhost: str, queue: str, link: str) -> None:
        self._by_queue.setdefault((vhost, queue), set()).add((conn, link))
        self._by_conn.setdefault(conn, set()).add((vhost, queue, link))

    def remove(self, conn: int, vhost: str, queue: str, link: str) -> None:
        self._by_queue.get((vhost, queue), set()).discard((conn, link))
        self._by_conn.get(conn, set()).discard((vhost, queue, link))

    def forget_queue(self, vhost: str, queue: str) -> None:
        for conn, link in self._by_queue.pop((vhost, queue), ()):
            self._by_conn.get(conn, set()).discard((vhost, queue, link))

    def pop_conn(self, conn: int) -> list[tuple[str, str, str]]:
        """(virtual host, queue, link) of every link a connection had."""
        return sorted(self._by_conn.pop(conn, ()))

    def count(self, vhost: str, queue: str) -> int:
        return len(self._by_queue.get((vhost, queue), ()))


def attach(attaching: Attaching) -> Attached:
    """Attach a link to a node made for it."""
    if attaching.wants_topic and attaching.event.peer_sends:
        return _attach_topic(attaching)
    event, caller, vhost = attaching.event, attaching.caller, attaching.tables.vhost
    name = make_name()
    caller.require("configure", "queue", name)
    if event.peer_sends:
        caller.require("write", "exchange", DEFAULT_EXCHANGE)
    else:
        caller.require("read", "queue", name)
    lifetime = event.terminus.lifetime if event.terminus.lifetime in _LIFETIMES else ON_CLOSE
    dies_with_link = lifetime == ON_CLOSE
    queue = Queue(
        vhost,
        name,
        holder=caller.conn if dies_with_link else None,
        exclusive=dies_with_link and not event.peer_sends,
        lifetime=lifetime,
    )
    link = AcceptLink(
        event.request,
        name,
        queue=name,
        capabilities=attaching.echo("queue", "temporary-queue"),
        watch=dies_with_link or is_watched(queue),
    )
    return Attached([Put(queue, durable=False)], link)


def is_watched(queue: Queue | None) -> bool:
    """Does every link to this queue count for its life?"""
    return queue is not None and queue.lifetime in {ON_NO_LINKS, ON_NO_LINKS_OR_MESSAGES}


def ends_with_link(queue: Queue, *, links: int, messages: int) -> bool:
    """Is it over, now that a link is gone and so many links and messages are left?"""
    match queue.lifetime:
        case "delete-on-close":
            return True
        case "delete-on-no-links":
            return links == 0
        case "delete-on-no-links-or-messages":
            return links == 0 and messages == 0
        case _:
            return False


def ends_empty(queue: Queue, *, links: int) -> bool:
    """Is it over, now that it ran empty?"""
    return queue.lifetime == ON_NO_MESSAGES or (queue.lifetime == ON_NO_LINKS_OR_MESSAGES and links == 0)


def _attach_topic(attaching: Attaching) -> Attached:
    """A temporary topic is nothing but a key nobody else has."""
    key = make_name()
    attaching.caller.require("write", "exchange", TOPIC_EXCHANGE)
    link = AcceptLink(
        attaching.event.request,
        f"{TOPIC_EXCHANGE}/{key}",
        exchange=TOPIC_EXCHANGE,
        routing_key=key,
        capabilities=attaching.echo(*TOPIC_CAPABILITIES),
    )
    return Attached([], link)
