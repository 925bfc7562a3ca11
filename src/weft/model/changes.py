"""What Python tells the engine: answers to requests, and rows of its tables.

Owns the closed set of frozen change classes that `Engine.apply` takes; controllers build them, the kernel reads them.
Each change compiles to a table row that then serves every message without asking again.
Nothing here may import the rest of weft or hold behaviour.
Rule: `apply` takes a list, in order; a change that names something unknown raises LocalProtocolError and applies
nothing after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weft.model.events import Table


@dataclass(frozen=True, slots=True)
class Accept:
    """Yes, to AuthRequested, OpenRequested (with `principal`) or TopologyRequested (with the reply's numbers)."""

    request: int
    principal: int = 0
    name: str = ""
    messages: int = 0
    consumers: int = 0
    proof: bytes = b""
    """What the outcome of SASL carries to a peer of AMQP 1.0: the node's own proof, where the mechanism has one."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """One more step of a SASL exchange."""

    request: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """No, to any request. `code` is an AMQP 0-9-1 reply code; for 1.0 peers it becomes the matching error condition."""

    request: int
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class AcceptLink:
    """Yes, to AttachRequested. Exactly one of queue, exchange, anonymous, coordinator names what the link ends at."""

    request: int
    address: str | None
    """The address the node answers with (the made-up one of a dynamic node)."""
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    """With `exchange`: the fixed key; None takes each message's subject."""
    anonymous: bool = False
    browse: bool = False
    selector: str | None = None
    """JMS selector, evaluated per message in the kernel."""
    subject_filter: str | None = None
    """Topic pattern that a message's subject / routing key must match (legacy topic and direct filters on a queue)."""
    no_local: bool = False
    discard: bool = False
    """What the filters do not let through is dropped: the queue is this link's own subscription."""
    filters: tuple[str, ...] = ()
    """Symbols of the requested filters really applied, echoed to the peer."""
    capabilities: tuple[str, ...] = ()
    """Capabilities echoed on the terminus."""
    watch: bool = False
    """Report LinkClosed when this link goes."""
    report: bool = False
    """With `watch`: report LinkFlow when a receiver says how much it may be sent, and Settled when a message ended."""


@dataclass(frozen=True, slots=True)
class SetPrincipal:
    """A user in a virtual host: what grants hang on. Setting it again forgets its grants."""

    principal: int
    user: str
    vhost: str
    impersonate: bool = False
    """May set any user-id on messages (the `impersonator` tag)."""
    topics: tuple[tuple[str, str], ...] = ()
    """(exchange, pattern): keys of its messages to these topic exchanges must match; others are open."""
    channels_max: int | None = None
    """Channels and sessions of the user, in all its virtual hosts together; those that are open stay."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Forget every grant of a principal: the next use asks again."""

    principal: int


@dataclass(frozen=True, slots=True)
class Grant:
    """May a principal do this? Answers AccessRequested (any number of connections may wait for it)."""

    principal: int
    operation: Literal["configure", "write", "read"]
    kind: Literal["queue", "exchange"]
    name: str
    allowed: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class SetAddress:
    """Where messages with this `to` go. Answers AddressRequested; `exchange` None means nowhere (`code`, `text` say
    why).
    """

    principal: int
    address: str
    exchange: str | None
    routing_key: str | None = None
    code: int = 404
    text: str = ""


@dataclass(frozen=True, slots=True)
class CreateVhost:
    """A virtual host, with the default exchange only; the predeclared ones are ordinary declarations."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteVhost:
    """Drop a virtual host with everything in it; its connections are closed."""

    name: str


@dataclass(frozen=True, slots=True)
class Barrier:
    """What an exchange or a queue holds back as duplicates."""

    key: str
    """`message-id`, `header:<name>`, `body` or `fabric` (the identity of a message that came from another node)."""
    window_ms: int
    """How long an id is remembered."""
    ids_max: int
    """How many are remembered; the oldest goes first."""
    or_body: bool = False
    """A message without the key is known by its body; otherwise it passes."""
    number: int = field(default=0, compare=False)
    """Names its ids in the journal for ever; 0 keeps them in memory."""


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Make an exchange, or change the settings of one that exists."""

    vhost: str
    name: str
    type: Literal["direct", "fanout", "topic", "headers"]
    internal: bool = False
    delayed: bool = False
    """An `x-delayed-message` exchange: messages wait for their `x-delay` before they are routed."""
    alternate: str | None = None
    barrier: Barrier | None = None
    tap: str | None = None
    """The stream that gets a copy of whatever comes by."""


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """Drop an exchange and all bindings from and to it."""

    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class Stream:
    """What a stream keeps; its last message stays in any case."""

    age_ms_max: int | None = None
    bytes_max: int | None = None
    count_max: int | None = None


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Make a queue, or change the settings of one that exists."""

    vhost: str
    name: str
    durable: bool = False
    durability: Literal["sync", "write", "memory"] | None = None
    """What its durable messages survive: the end of the power, of the process, or neither; None as the node says."""
    auto_delete: bool = False
    owner: int | None = None
    """The connection an exclusive queue belongs to; 0 is the node itself, and nobody else sees such a queue."""
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    length_max: int | None = None
    length_bytes_max: int | None = None
    overflow: Literal["drop-head", "reject-publish", "reject-publish-dlx"] = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    priority_max: int = 0
    single_active: bool = False
    delivery_limit: int | None = None
    number: int = field(default=0, compare=False)
    """Names its messages in the journal for ever; 0 keeps them in memory."""
    barrier: Barrier | None = None
    ack: Literal["node", "end-to-end"] = "node"
    """Who answers publishers: this node when a message is safe here, or the consumer that takes it."""
    delete_when_empty: bool = False
    """A dynamic node with lifetime delete-on-no-messages: report QueueUnused("empty") once it ran empty."""
    tap: str | None = None
    """The stream that gets a copy of whatever the queue is offered."""
    parts: tuple[str, ...] = ()
    """Names of the streams that this one consists of: each message goes to one of them."""
    part: int | None = None
    """The place of this stream among those that another one consists of."""
    stream: Stream | None = None
    """It is a stream: nothing leaves it but by its age and size, and every consumer reads at its own offset."""


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Drop a queue, its messages and its bindings; its consumers are cancelled."""

    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class Bind:
    """bind(source, topic, target)."""

    vhost: str
    source: str
    kind: Literal["queue", "exchange"]
    destination: str
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unbind:
    """unbind(source, topic, target): reverses the bind with the same fields."""

    vhost: str
    source: str
    kind: Literal["queue", "exchange"]
    destination: str
    routing_key: str = ""
    arguments: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenLink:
    """Attach a link of ours on a 1.0 connection that is open, whoever dialled it. LinkAttached or LinkDetached answers.

    pull: we receive from `address` at the peer and publish here; the peer is told that a message is accepted only
    when it is safe here. push: the messages of `queue` are sent to `address`, and settled by the peer's outcome.
    """

    conn: int
    link: int
    """Names the link in events and in CloseLink: the caller's choice, unique on its connection."""
    name: str
    """Its name on the wire, unique on its connection."""
    direction: Literal["pull", "push"]
    address: str
    """The peer's end: an address as the peer knows it."""
    vhost: str = "/"
    queue: str | None = None
    """push: the queue that is drained. pull: the queue that messages go straight into, under the exchange and routing
    key they were published with.
    """
    exchange: str | None = None
    """pull: the exchange that messages are published to."""
    routing_key: str | None = None
    """With `exchange`: the key of all messages; None keeps each message's own, else takes its subject."""
    credit: int = 1_000
    """pull: messages that the peer may have on the way."""
    backlog_max: int | None = None
    """pull: no credit while this many of the link's messages wait here for their consumers."""
    bytes_per_s_max: int | None = None
    """Bytes of messages that may cross it in a second; over a tenth of a second it may be more."""
    filters: Mapping[str, str | int] = field(default_factory=dict)
    """pull: filters of the peer's source by descriptor symbol, such as `apache.org:selector-filter:string`."""
    capabilities: tuple[str, ...] = ()
    """Capabilities asked of the peer's end, such as Artemis's `queue` and `topic`."""
    durable: bool = False
    """The peer's end shall outlive the link: a durable subscription, if the address is an exchange or topic."""
    priority: int = 0
    """Among the consumers of the queue, at whichever end it is."""
    relay: bool = False
    """Messages carry their identity and the nodes they passed (docs/reference/links.md); none passes a node twice."""
    circles: bool = False
    """relay: a message may come back to a node, because only one node has it at a time: for routes of queues."""
    first_hand: bool = False
    """relay: nothing that other nodes brought to the sender: what a complete graph needs."""
    discard: bool = False
    """push: what the peer has seen already is dropped, since the queue serves this link alone; else it stays."""
    refusal: Literal["modify", "release", "reject", "accept"] = "modify"
    """pull: what the peer is told of a message that no queue here took: try elsewhere (counted as failed, or not), a
    dead letter, or that it may be forgotten.
    """


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Detach a link of ours; what is unsettled goes back. LinkDetached follows. Unknown ids are ignored."""

    conn: int
    link: int
    closed: bool = True
    """For good; False leaves a durable subscription at the peer as it is."""


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close a connection with the protocol's own close (320 and the text by default)."""

    conn: int
    code: int = 320
    text: str = "CONNECTION_FORCED"


@dataclass(frozen=True, slots=True)
class Quiesce:
    """Stop (`on`) or resume delivery from all queues; publishing goes on and queues grow."""

    on: bool


@dataclass(frozen=True, slots=True)
class SetMechanisms:
    """The SASL mechanisms that peers are offered from now on, the best first. AMQPLAIN is for AMQP 0-9-1 only, and AMQP
    1.0 peers are offered EXTERNAL over TLS only.
    """

    names: tuple[str, ...]


Change = (
    Accept
    | Challenge
    | Refuse
    | AcceptLink
    | SetPrincipal
    | Revoke
    | Grant
    | SetAddress
    | CreateVhost
    | DeleteVhost
    | DeclareExchange
    | DeleteExchange
    | DeclareQueue
    | DeleteQueue
    | Bind
    | Unbind
    | OpenLink
    | CloseLink
    | CloseConnection
    | Quiesce
    | SetMechanisms
)
