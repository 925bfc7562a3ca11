"""The contract of the native kernel; `make check` compares it with the built binary.

The engine owns all connections, tables and queues of one node. It has no socket, clock, thread or file: bytes and time
come in, bytes, signals and events go out. One call at a time. Four kinds of method: world to engine (plain
verbs), engine to world (`poll_*`), decisions (`apply`), reading (`stats`, `inspect`).
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from os import PathLike
from typing import Any, final
from uuid import UUID

from typing_extensions import Buffer

from weft.model.changes import Change
from weft.model.client_events import ClientEvent
from weft.model.events import Event
from weft.model.limits import Limits

__all__ = [
    "DELIVERIES",
    "DISK",
    "EVENTS",
    "FLUSH",
    "LOCAL",
    "MORE",
    "OUTCOMES",
    "OUTPUT",
    "PAUSE",
    "TIMER",
    "ArrowStream",
    "Client",
    "Delivery",
    "DiskJob",
    "DiskThreads",
    "EncodedMessages",
    "Engine",
    "LogReader",
    "Scan",
    "Tally",
    "decode_value",
    "encode_json",
    "encode_messages",
    "encode_value",
    "keep_buffers",
]

OUTPUT: int
FLUSH: int
PAUSE: int
EVENTS: int
TIMER: int
MORE: int
DISK: int
LOCAL: int
DELIVERIES: int
OUTCOMES: int

def keep_buffers() -> None:
    """Let the C library reuse the memory of reads and writes: for a process that is a server."""

def encode_json(value: object) -> bytes:
    """A value as compact JSON; what JSON has no form for becomes its text, and bytes become text."""

def encode_value(value: object) -> bytes:
    """A value as the amqp-value section of an AMQP 1.0 message."""

def decode_value(body: bytes) -> Any:
    """The value in the first body section of an AMQP 1.0 message; ValueError if there is none."""

@final
class DiskJob:
    """A piece of disk work. Run it once, on any thread; then hand it to `Engine.disk_done`."""

    @property
    def kind(self) -> str:
        """`write`, `read` or `background`."""
    @property
    def must_sync(self) -> bool: ...
    def run(self) -> None: ...

@final
class DiskThreads:
    """Threads that run disk jobs without the interpreter's lock; one alone runs them in their order."""

    def __new__(cls, name: str, count: int) -> DiskThreads: ...
    def fileno(self) -> int:
        """The file descriptor that can be read once jobs have run."""
    def start(self, job: DiskJob) -> None:
        """Run a job; another one comes back in its place, after those that were started before it."""
    def finished(self) -> list[DiskJob]:
        """Jobs that have run since the last call, for `Engine.disk_done`."""
    def close(self) -> None:
        """End the threads, after the jobs they have."""

@final
class ArrowStream:
    """Record batches on their way out, to be taken once: give it to pyarrow, polars or whoever reads Arrow's C stream
    interface. Batches are built on the thread that pulls them, without the interpreter's lock.
    """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def first_as_ipc(self) -> bytes:
        """The first batch as an Arrow IPC stream, for a reader elsewhere; empty if there is none. Takes the stream."""

@final
class EncodedMessages:
    """Messages that wait to be sent, by `Client.send_encoded`."""

    def __len__(self) -> int: ...

def encode_messages(
    rows: Any,
    *,
    identity: str | None = None,
    first: int = 0,
    addressed: bool = False,
    headers: dict[str, str] | None = None,
) -> EncodedMessages:
    """Every row of a table (anything with `__arrow_c_stream__`) as an AMQP 1.0 message: docs/reference/columns.md.

    Rows without a `message_id` get `identity:number`, counted from `first`. `addressed`: `address`, or `exchange` and
    `routing_key`, become the `to` of each. ValueError says which column or row is wrong, before anything is sent.
    """

@final
class LogReader:
    """Reads one stream, or what waits in one durable queue, from the files of a store; docs/reference/columns.md.

    The node may be running, stopped or dead. Every call looks at the files again; what it tells is on the disk.
    """

    def __new__(
        cls, path: str | PathLike[str], number: int, *, stream: str = "", shard: int = 0, origin: str = ""
    ) -> LogReader: ...
    def offsets(self) -> tuple[int, int]:
        """The first offset that is kept, and the one after the last; equal if nothing is kept."""
    def extent(self) -> tuple[int, int, int, int]:
        """The same, how many messages are kept (of a queue, those that wait), and about the bytes of their bodies."""
    def times(self) -> tuple[int, int] | None:
        """When the first and the last that are kept arrived, in microseconds since 1970."""
    def find(self, timestamp_us: int) -> int:
        """The first offset whose message arrived at or after a time; the one after the last if none did."""
    def damaged(self) -> list[str]:
        """Stretches of unsealed files that cannot be read, by file and place; messages in them are not seen."""
    def read(
        self,
        start: int = 0,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        batch_rows: int = 4096,
        batch_bytes: int = 4194304,
        whole: bool = False,
    ) -> ArrowStream:
        """Messages from `start` up to `end`, without it, as these columns (all if None), in this order.

        What is kept no longer is left out, unless `whole` makes it an error.
        """

@final
class Scan:
    """A page of a table that is being looked for, a part at a time (`Engine.look`). It owns what it found, so that any
    thread may `choose`, which sorts without the interpreter's lock.
    """

    def __new__(
        cls,
        table: str,
        *,
        vhosts: list[str] | None = None,
        contains: str | None = None,
        ids: list[int] | None = None,
        sort: str | None = None,
        descending: bool = False,
        offset: int = 0,
        count: int | None = None,
        whole: bool = False,
    ) -> Scan:
        """`whole` keeps all that fits, for filters that only Python knows; else what cannot be on the page may go."""
    def held(self) -> int:
        """How many rows `choose` will choose from."""
    def found(self) -> tuple[int, int]:
        """(rows in the virtual hosts asked for, rows that fit), as far as was looked."""
    def names(self, start: int, count: int) -> list[str]:
        """Names of what was found, from one place on, for filters that only Python knows."""
    def keep(self, places: list[int]) -> None:
        """Keeps what was found at these places, which rise, and drops the rest."""
    def choose(self) -> list[int]:
        """The numbers of the rows on the page, in order; the scan is empty then."""

@final
class Tally:
    """Sums over all queues and connections that are being taken, a part at a time."""

    def __new__(cls) -> Tally: ...
    def count(self, engine: Engine, count: int) -> bool:
        """Counts so many more queues or connections; are there more still?"""
    def stats(self, engine: Engine) -> dict[str, int]:
        """Node-wide counters and gauges."""
    def vhosts(self, engine: Engine) -> list[tuple[str, int, int, int, int]]:
        """(name, queues, ready, unsettled, connections) of every virtual host."""

@final
class Engine:
    def __new__(
        cls, limits: Limits, *, node: str, version: str, seed: int, now_ns: int, wall_ns: int,
        data_dir: str | None = None, durability: str = "sync", first_number: int = 0,
    ) -> Engine: ...  # fmt: skip

    # world -> engine; each returns Signal bits
    def open(self, *, tls: bool = False, local: bool = True) -> int:
        """A new connection; returns its id. Both protocols are detected from the first bytes."""
    def connect(
        self, *, container: str = "", hostname: str = "", mechanism: str = "ANONYMOUS", response: bytes = ...,
        principal: int = 0, idle_ms: int = 60_000, max_frame: int = 131_072, tls: bool = False,
    ) -> int:  # fmt: skip
        """A connection that this node opens by AMQP 1.0; returns its id. The caller has dialled the socket.

        `container` is the node's name by default. An empty mechanism leaves SASL out. `principal` is who the peer is
        here, for links that it attaches itself; 0 refuses them.
        """
    def receive(self, conn: int, data: Buffer, now_ns: int) -> int: ...
    def writable(self, conn: int, yes: bool) -> int: ...
    def close(self, conn: int, cause: str) -> int:
        """The socket is gone."""
    def advance(self, now_ns: int, wall_ns: int) -> int:
        """Time passes: heartbeats, expiry, delays, and what a budget left over."""

    # engine -> world
    def poll_transmit(self, bytes_max: int) -> list[tuple[int, bytes]]: ...
    def poll_events(self) -> list[Event]: ...
    def poll_timeout(self) -> int | None:
        """When `advance` wants to be called next, in the clock of `now_ns`."""

    # disk
    def poll_disk(self) -> list[DiskJob]:
        """Jobs to be run, writes in their order; each goes back by `disk_done`."""
    def disk_done(self, job: DiskJob) -> int: ...
    def finish(self) -> int:
        """Nothing more comes: bring the store into the shape that opens fastest. Then run jobs until none is left."""
    def rest(self) -> None:
        """The disk had nothing to do for a while: give memory back that is kept for a flood."""
    def recovered(self) -> dict[str, Any]:
        """What was found on disk at the start."""
    def unclaimed(self) -> list[tuple[int, int]]:
        """Queues on disk that nobody has declared: (number, messages)."""
    def drop_unclaimed(self, deleted: Sequence[int]) -> None:
        """Everything that exists has been declared, and queues with these numbers were deleted: what they have goes."""

    def prepared(self) -> list[tuple[bytes, str, str, int, int, int, int]]:
        """Prepared transactions: (global id, virtual host, user, ms since 1970, messages, deliveries, bytes)."""
    def is_recovering(self) -> bool:
        """Are prepared transactions of the last life still being read?"""
    def resolve(self, global_id: bytes, commit: bool) -> bool:
        """Carry a prepared transaction out, or undo it; False if there is none of this id (now)."""

    # decisions
    def apply(self, changes: Sequence[Change]) -> int: ...

    # in-process messaging: for Python itself, not for the hot path
    def at(self, now_ns: int) -> None:
        """It is this late: said before a call below, which do not carry the time."""
    def publish(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        body: Buffer,
        properties: dict[str, Any] | None = None,
        *,
        answer: bool = False,
    ) -> int:
        """Route a message; returns how many queues took it. Queues of an `answer` deliver even when quiesced."""
    def stored(self) -> tuple[int, int] | None:
        """How far the disk must be, in batches written and synced, until the last `publish` is safe; None if it is."""
    def reached(self) -> tuple[int, int]:
        """How far the disk is, in batches written and synced."""
    def subscribe(self, vhost: str, queue: str, credit: int, offset: int | str | None = None) -> int:
        """A local consumer; returns its handle. Of a stream it reads from `offset` on, by default what comes now."""
    def unsubscribe(self, handle: int) -> None: ...
    def take(self, handle: int, count_max: int) -> list[tuple[int, str, str, bool, dict[str, Any], bytes, int]]:
        """Deliveries so far: (tag, exchange, routing key, redelivered, properties, body, connection it came by)."""
    def settle(self, handle: int, tag: int, outcome: str) -> int:
        """`accepted`, `rejected` or `released`; gives one credit back."""
    def poll_local(self) -> list[int]:
        """Handles of local consumers that have deliveries to take."""

    def purge(self, vhost: str, queue: str) -> int:
        """Drop what is ready in a queue; how many."""
    def move_messages(self, vhost: str, queue: str, to: tuple[str, str] | None, count: int) -> tuple[int, bool, bool]:
        """Move ready messages to an exchange and key, or (None) back to the queue they died in first.

        Answers (how many went, is the next one on its way from disk, did nobody take the next one); at most 1000 go in
        one call.
        """

    # reading
    def queue_stats(self, vhost: str, queue: str) -> tuple[int, int, int] | None:
        """(ready, unsettled, consumers), or None if there is no such queue."""
    def stats(self) -> dict[str, int]:
        """Node-wide counters and gauges."""
    def read_log(
        self,
        vhost: str,
        stream: str,
        start: int = 0,
        end: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        batch_rows: int = 4096,
        batch_bytes: int = 4194304,
        whole: bool = False,
    ) -> ArrowStream:
        """The messages of a stream, or those that wait in a durable queue, as they are at this moment: what is on disk,
        and what is still on its way there. As `LogReader.read`; the files are read by whoever pulls.
        """
    def inspect(self, table: str) -> list[dict[str, Any]]:
        """Every row of `connections`, `consumers`, `queues` or `exchanges`."""
    def page(
        self,
        table: str,
        *,
        vhosts: list[str] | None = None,
        contains: str | None = None,
        ids: list[int] | None = None,
        sort: str | None = None,
        descending: bool = False,
        offset: int = 0,
        count: int | None = None,
        columns: list[str] | None = None,
    ) -> tuple[int, int, list[dict[str, Any]]]:
        """A page of a table: (rows in these virtual hosts, rows that also fit, rows of the page).

        The order is by `sort`, a column, then by virtual host and name.
        """
    def sessions(self, conns: list[int]) -> list[dict[str, Any]]:
        """Every channel and session of these connections."""
    def session_keys(self, conns: list[int], column: str | None = None) -> list[tuple[int, int, int | None]]:
        """What they are sorted by: (connection, number, a column of theirs, if it has a number)."""
    def latencies(self) -> list[tuple[str, int | None, int, tuple[int, int, int, int]]]:
        """How long messages take: (name, size up to, durations counted, (p50, p90, p99, max) in microseconds).

        Names are `time_in_queue`, `settle` and `confirm`; rows named `size` tell time in queue by the size of the body,
        the last one without a bound.
        """
    def types(self, queue: int | None = None) -> list[tuple[str, int, tuple[int, int, int, int]]]:
        """How long messages of each type wait, in a queue or on the node: (type, durations counted, quantiles)."""
    def matched(self, bindings: Sequence[object]) -> list[int | None]:
        """How many messages matched each of these bindings (with the attributes of `Bind`); None: there is none."""
    def trace(self, one_in: int) -> None:
        """Note spans of messages whose trace context says that it is recorded, of one in so many traces; 0: of none."""
    def spans(self, count_max: int) -> list[tuple[str, str, str, str, str, str, int, int, int]]:
        """Takes spans away: (trace id, parent span, virtual host, queue, exchange, routing key, when the message came
        here and when it left the queue in microseconds since 1970, bytes of its body).
        """
    def watch(self, yes: bool) -> None:
        """Tell of every session and consumer from now on, or no longer."""
    def queue_id(self, vhost: str, queue: str) -> int | None:
        """The number by which `page` knows a queue."""
    def look(self, scan: Scan, count: int) -> bool:
        """Looks at so many more rows for a page; are there more still?"""
    def rows(self, table: str, ids: list[int], columns: list[str] | None = None) -> list[dict[str, Any]]:
        """The rows of these numbers that are still there, in the same order."""

@final
class Client:
    """One AMQP 1.0 client, through all its connections: `crates/client`. Calls may come from any thread, one at a time.

    Numbers of links and messages stay when a connection is lost: `start` attaches links, and sends what has no outcome,
    again. Verbs return signal bits that say what to poll: OUTPUT, EVENTS, TIMER, DELIVERIES (`poll_filled`), OUTCOMES.
    """

    def __new__(
        cls,
        container: str,
        *,
        properties: dict[str, Any] | None = None,
        idle_ms: int = 30_000,
        frame_bytes_max: int = 131_072,
        message_bytes_max: int = 134_217_728,
        held_max: int = 65_536,
    ) -> Client: ...

    # world -> client; each returns signal bits
    def start(
        self,
        now_ns: int,
        *,
        hostname: str | None = None,
        mechanisms: Sequence[str] | None = None,
        user: str = "",
        password: str = "",
        nonce: str = "",
    ) -> int:
        """Connected: log in by the first mechanism that the peer has (none: no SASL), open, attach all links."""
    def prove(self, key: bytes) -> int: ...  # what PBKDF2 makes of the password, after KeyRequested
    def receive(self, data: Buffer, now_ns: int) -> int: ...
    def lost(self) -> int:
        """The transport is gone: what was not settled is to be sent or received again."""
    def advance(self, now_ns: int) -> int: ...
    def close(self, condition: str = "", description: str = "") -> int:
        """Say goodbye; `Closed` comes when the peer answers."""
    def signals(self) -> int:
        """What there is to poll, after calls that return something else."""

    # client -> world
    def poll_transmit(self) -> bytes:
        """Bytes for the transport; poll again until there are none, or until it is full."""
    def poll_timeout(self) -> int | None: ...
    def poll_events(self) -> list[ClientEvent]: ...
    def poll_outcomes(self) -> list[tuple[int, int, int, str, Any]]:
        """(link, first, last, outcome, detail): messages first to last of a link, with one outcome.

        `accepted`, `released`, `rejected` (condition, description), `modified` (failed, undeliverable here), `declared`
        (transaction id), `unknown` (settled without an outcome), `lost` (condition, description).
        """
    def poll_filled(self) -> list[int]:
        """Links that got deliveries since the last call."""
    def poll_deliveries(self, link: int, count_max: int) -> list[Delivery]: ...
    def poll_columns(
        self,
        link: int,
        count_max: int,
        columns: Sequence[str] | None = None,
        *,
        stream: str = "",
        shard: int = 0,
        origin: str = "",
    ) -> tuple[int, int, ArrowStream] | None:
        """What came from a stream, as columns (docs/reference/columns.md), with the first and last number to settle."""

    # sessions and links; session 0 is always there
    def begin(self) -> int: ...
    def end(self, session: int) -> int: ...
    def attach_sender(
        self,
        name: str,
        address: str | None,
        *,
        session: int = 0,
        settled: bool = False,
        dynamic: bool = False,
        coordinator: bool = False,
        durable: int = 0,
        expiry: str = "session-end",
        timeout_s: int = 0,
        capabilities: Sequence[str] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> int:
        """A link to send on; without an address each message says `to`."""
    def attach_receiver(
        self,
        name: str,
        address: str | None,
        *,
        session: int = 0,
        window: int = 0,
        settled: bool = False,
        dynamic: bool = False,
        browse: bool = False,
        durable: int = 0,
        expiry: str = "session-end",
        timeout_s: int = 0,
        capabilities: Sequence[str] | None = None,
        filters: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> int:
        """A link to receive on; `window` deliveries may be under way, waiting or unsettled, 0 leaves credit to `grant`.

        Filters are named by their symbols, such as `apache.org:selector-filter:string`.
        """
    def detach(self, link: int, *, closed: bool = True, condition: str = "", description: str = "") -> int: ...
    def load(self, link: int) -> tuple[int, int] | None:
        """(messages without an outcome or waiting to be taken, credit) of a link, or None if it is gone."""

    # messages
    def send(
        self,
        link: int,
        bodies: Sequence[Buffer | str] | Sequence[Any],
        properties: dict[str, Any] | None = None,
        settled: bool = False,
        as_value: bool = False,
        identify: bool = False,
        txn: bytes | None = None,
        sign: Callable[[bytes], dict[str, Any] | None] | None = None,
        batchable: bool = False,
    ) -> int:
        """Send a batch with the same properties; the number of its first message, the others follow.

        Properties: durable, priority, ttl_ms, message_id, user_id, to, subject, reply_to, correlation_id, content_type,
        content_encoding, expires_at, created_at, group_id, group_sequence, reply_to_group_id, headers, annotations.
        `identify` gives each an id that no other message has; `as_value` sends one AMQP value in place of bytes;
        `sign` makes a footer of each bare message; `batchable` says that nobody waits for the outcome, so that the peer
        may tell it later, with other frames.
        """
    def send_encoded(self, link: int, messages: EncodedMessages, count_max: int, *, settled: bool = False) -> int:
        """Send the next of some messages, at most `count_max`; the number of the first, the others follow."""
    def declare(self, link: int) -> int: ...
    def discharge(self, link: int, txn: bytes, fail: bool) -> int: ...
    def prepare(self, link: int, txn: bytes, global_id: bytes) -> int: ...
    def resolve(self, link: int, global_id: bytes, fail: bool) -> int: ...
    def forget(self, link: int, number: int) -> bool:
        """Give a message up; True if it was never sent."""
    def settle(
        self,
        link: int,
        first: int,
        last: int,
        outcome: str = "accepted",
        *,
        condition: str = "",
        description: str = "",
        failed: bool = False,
        undeliverable_here: bool = False,
        txn: bytes | None = None,
    ) -> None:
        """Decide on deliveries first to last; those of a lost connection are the peer's again."""
    def grant(self, link: int, count: int) -> None: ...
    def set_window(self, link: int, window: int) -> None: ...
    def set_filters(self, link: int, filters: dict[str, Any]) -> None:
        """Other filters for a link, from its next attach on."""
    def drain(self, link: int) -> int: ...

@final
class Delivery:
    """A message that was received; each getter decodes its own section when it is asked."""

    @property
    def number(self) -> int: ...
    @property
    def tag(self) -> bytes: ...
    @property
    def settled(self) -> bool: ...
    @property
    def body(self) -> Any:
        """Bytes, or the value of a message that holds one."""
    @property
    def body_kind(self) -> str:
        """`data`, `value`, `sequence` or `none`."""
    @property
    def message_id(self) -> str | bytes | int | UUID | None: ...
    @property
    def correlation_id(self) -> str | bytes | int | UUID | None: ...
    @property
    def user_id(self) -> str | None: ...
    @property
    def to(self) -> str | None: ...
    @property
    def subject(self) -> str | None: ...
    @property
    def reply_to(self) -> str | None: ...
    @property
    def content_type(self) -> str | None: ...
    @property
    def content_encoding(self) -> str | None: ...
    @property
    def expires_at(self) -> datetime | None: ...
    @property
    def expires_s(self) -> float | None: ...
    @property
    def created_at(self) -> datetime | None: ...
    @property
    def group_id(self) -> str | None: ...
    @property
    def group_sequence(self) -> int | None: ...
    @property
    def reply_to_group_id(self) -> str | None: ...
    @property
    def durable(self) -> bool: ...
    @property
    def priority(self) -> int: ...
    @property
    def ttl_ms(self) -> int | None: ...
    @property
    def delivery_count(self) -> int: ...
    @property
    def first_acquirer(self) -> bool: ...
    @property
    def headers(self) -> dict[str, Any]: ...
    @property
    def annotations(self) -> dict[str, Any]: ...
    @property
    def delivery_annotations(self) -> dict[str, Any]: ...
    @property
    def footer(self) -> dict[str, Any]: ...
    @property
    def bare(self) -> bytes:
        """Properties, application properties and body, as their sender wrote them."""
    @property
    def encoded(self) -> bytes:
        """The whole message as it came."""
