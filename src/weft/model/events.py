"""What the engine tells Python: requests that want a decision, and things that happened.

Owns the closed set of frozen event classes that `Engine.poll_events` returns; the kernel builds them, controllers match
on them.
They come out of the engine per connection, link or change of topology, never per message.
Nothing here may import the rest of weft or hold behaviour.
Rule: every request carries a `request` number and is answered by exactly one change naming it (see
`weft.model.changes`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Table = dict[str, object]
"""An AMQP field table or map as Python values: bool, int, float, str, bytes, None, list, dict, datetime."""


@dataclass(frozen=True, slots=True)
class AuthRequested:
    """A peer wants to enter. Answer: Accept, Challenge or Refuse(403). Later steps of one exchange repeat the event
    with step + 1.
    """

    request: int
    conn: int
    wire: Literal["0-9-1", "1.0"]
    mechanism: str
    response: bytes
    step: int


@dataclass(frozen=True, slots=True)
class OpenRequested:
    """An authenticated peer opens a virtual host. Answer: Accept(principal=…) or Refuse(530)."""

    request: int
    conn: int
    wire: Literal["0-9-1", "1.0"]
    vhost: str
    """0-9-1: as sent. 1.0: the part after `vhost:` in open.hostname, else the empty string (the default virtual
    host).
    """
    container: str
    properties: Table


@dataclass(frozen=True, slots=True)
class AccessRequested:
    """First use of a resource by a principal. Answer: Grant (which serves every later use by the same principal)."""

    request: int
    conn: int
    principal: int
    operation: Literal["configure", "write", "read"]
    kind: Literal["queue", "exchange"]
    name: str


@dataclass(frozen=True, slots=True)
class ExchangeDeclare:
    """exchange.declare."""

    name: str
    type: str
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table


@dataclass(frozen=True, slots=True)
class ExchangeDelete:
    """exchange.delete."""

    name: str
    if_unused: bool


@dataclass(frozen=True, slots=True)
class QueueDeclare:
    """queue.declare; an empty name asks for a server-made one (or, passive, was replaced by the channel's last
    queue).
    """

    name: str
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Table


@dataclass(frozen=True, slots=True)
class QueueDelete:
    """queue.delete."""

    name: str
    if_unused: bool
    if_empty: bool


@dataclass(frozen=True, slots=True)
class BindingChange:
    """queue.bind, queue.unbind, exchange.bind, exchange.unbind."""

    action: Literal["bind", "unbind"]
    kind: Literal["queue", "exchange"]
    source: str
    destination: str
    routing_key: str
    arguments: Table


Operation = ExchangeDeclare | ExchangeDelete | QueueDeclare | QueueDelete | BindingChange


@dataclass(frozen=True, slots=True)
class TopologyRequested:
    """A peer changes or checks the topology of its virtual host. Answer: Accept(name=, messages=, consumers=) or
    Refuse.
    """

    request: int
    conn: int
    principal: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class Terminus:
    """The node's end of an AMQP 1.0 link as the peer asked for it: its source when it receives, its target when it
    sends.
    """

    address: str | None
    dynamic: bool = False
    durable: int = 0
    expiry: str = "session-end"
    timeout_s: int = 0
    distribution: str = ""
    capabilities: tuple[str, ...] = ()
    lifetime: str = ""
    """Lifetime policy of a dynamic node: delete-on-close, delete-on-no-links, delete-on-no-messages,
    delete-on-no-links-or-messages.
    """
    filters: Table = field(default_factory=dict)
    """Filters by descriptor symbol (e.g. `apache.org:selector-filter:string`), values decoded."""


@dataclass(frozen=True, slots=True)
class AttachRequested:
    """An AMQP 1.0 peer attaches a link. Answer: AcceptLink or Refuse (the code becomes the link's error condition)."""

    request: int
    conn: int
    principal: int
    link: str
    peer_sends: bool
    """True: the peer sends to us (its target is `terminus`); False: it receives from us (its source is `terminus`)."""
    terminus: Terminus
    relay: str = ""
    """The peer's node name, if it asks for a relay link (docs/reference/links.md)."""


@dataclass(frozen=True, slots=True)
class AddressRequested:
    """A message on an anonymous link names an unknown address in `to`. Answer: SetAddress."""

    request: int
    conn: int
    principal: int
    address: str


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """A link whose acceptance asked for it (AcceptLink.watch) is gone; `closed` tells detach with close from
    suspension.

    With `conn` 0 it is a local consumer (`link` is its handle) whose queue was deleted.
    """

    conn: int
    vhost: str
    queue: str
    link: str
    closed: bool


@dataclass(frozen=True, slots=True)
class LinkFlow:
    """The receiver on a link whose acceptance asked for it (AcceptLink.report) may be sent `credit` messages from now
    on; with `drain` it wants what is there now, and no more.
    """

    conn: int
    vhost: str
    queue: str
    link: str
    credit: int
    drain: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """A message that left such a link has an end: the receiver's word, or accepted since it was sent settled.

    What a lost link leaves behind has none yet: it is sent again.
    """

    vhost: str
    queue: str
    message_id: str
    """As text, whatever its type; empty if the message has none."""
    outcome: Literal["accepted", "rejected", "released", "modified"]


@dataclass(frozen=True, slots=True)
class Dialled:
    """The socket of a Dial is connected; PeerOpened or ConnectionClosed says how the opening ends."""

    dial: int
    conn: int


@dataclass(frozen=True, slots=True)
class DialFailed:
    """A Dial reached nobody; the text says why."""

    dial: int
    text: str


@dataclass(frozen=True, slots=True)
class PeerOpened:
    """A connection that we made (Engine.connect) is open: links may be attached. If it cannot be opened,
    ConnectionClosed says why.
    """

    conn: int
    container: str
    node: str
    """The peer's node name if it is a weft node, else empty."""
    properties: Table


@dataclass(frozen=True, slots=True)
class LinkAttached:
    """A link of ours works."""

    conn: int
    link: int
    address: str
    """The peer's end as the peer names it."""
    node: str
    """The peer's node name if both ends relay, else empty."""


@dataclass(frozen=True, slots=True)
class LinkDetached:
    """A link of ours is over: refused, ended by the peer (`condition` and `text` say why) or by CloseLink (both
    empty).

    When the connection goes, only ConnectionClosed is told.
    """

    conn: int
    link: int
    condition: str
    text: str
    closed: bool


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection is over; its id will not be used again. Exclusive queues of it are Python's to delete."""

    conn: int
    principal: int
    cause: str


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """A channel or session was begun, or is over. Told while `Engine.watch` says so."""

    conn: int
    number: int
    begun: bool


@dataclass(frozen=True, slots=True)
class ConsumerChanged:
    """A consumer or receiving link joined a queue, or left it. Told while `Engine.watch` says so."""

    conn: int
    consumer: int
    vhost: str
    queue: str
    joined: bool


@dataclass(frozen=True, slots=True)
class HangUp:
    """Everything is said: flush what is pending and close the socket."""

    conn: int


@dataclass(frozen=True, slots=True)
class ReadingResumed:
    """A connection that got Signal.PAUSE may be read again."""

    conn: int


@dataclass(frozen=True, slots=True)
class QueueUnused:
    """The last consumer of an auto-delete queue left, or an `expires` queue was idle for long enough, or a dynamic node
    is due.
    """

    vhost: str
    queue: str
    cause: Literal["auto-delete", "expired", "empty"]


@dataclass(frozen=True, slots=True)
class DiskAlarm:
    """The disk refused a write (`raised`, with its words), so that publishers of stored messages wait; or it works."""

    raised: bool
    text: str


@dataclass(frozen=True, slots=True)
class ReadAlarm:
    """The disk refused to give a stored message back (`raised`, with its words), so that its consumer waits; or it gave
    one again."""

    raised: bool
    text: str


@dataclass(frozen=True, slots=True)
class DoubtEnded:
    """Messages of a queue that another node may have were waited for long enough (`limits.doubt_s`): they go to anybody
    now, and may be delivered twice.
    """

    vhost: str
    queue: str
    messages: int


@dataclass(frozen=True, slots=True)
class MemoryAlarm:
    """The node's message memory passed (`raised`) or fell below its high watermark."""

    raised: bool
    used_bytes: int
    max_bytes: int


Event = (
    AuthRequested
    | OpenRequested
    | AccessRequested
    | TopologyRequested
    | AttachRequested
    | AddressRequested
    | LinkClosed
    | LinkFlow
    | Settled
    | Dialled
    | DialFailed
    | PeerOpened
    | LinkAttached
    | LinkDetached
    | ConnectionClosed
    | SessionChanged
    | ConsumerChanged
    | HangUp
    | ReadingResumed
    | QueueUnused
    | DiskAlarm
    | ReadAlarm
    | DoubtEnded
    | MemoryAlarm
)
