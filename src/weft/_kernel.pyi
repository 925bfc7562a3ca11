"""The contract of the native kernel; `make check` compares it with the built binary.

The engine owns all connections, tables and queues of one node. It has no socket, clock, thread or file: bytes and time
come in, bytes, signals and events go out. One call at a time. Four kinds of method: world to engine (plain
verbs), engine to world
(`poll_*`), decisions (`apply`), reading (`stats`, `inspect`).
"""

from collections.abc import Sequence
from typing import Any, final

from typing_extensions import Buffer

from weft.model.changes import Change
from weft.model.events import Event
from weft.model.limits import Limits

__all__ = [
    "DISK",
    "EVENTS",
    "FLUSH",
    "LOCAL",
    "MORE",
    "OUTPUT",
    "PAUSE",
    "TIMER",
    "DiskJob",
    "Engine",
    "decode_value",
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

def keep_buffers() -> None:
    """Let the C library reuse the memory of reads and writes: for a process that is a server."""

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
    def run(self) -> None: ...

@final
class Engine:
    def __new__(
        cls,
        limits: Limits,
        *,
        node: str,
        version: str,
        seed: int,
        now_ns: int,
        wall_ns: int,
        data_dir: str | None = None,
    ) -> Engine: ...

    # world -> engine; each returns Signal bits
    def open(self, *, tls: bool = False, local: bool = True) -> int:
        """A new connection; returns its id. Both protocols are detected from the first bytes."""
    def connect(
        self,
        *,
        container: str = "",
        hostname: str = "",
        mechanism: str = "ANONYMOUS",
        response: bytes = b"",
        principal: int = 0,
        idle_ms: int = 60_000,
        max_frame: int = 131_072,
        tls: bool = False,
    ) -> int:
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
    def recovered(self) -> dict[str, Any]:
        """What was found on disk at the start."""

    # decisions
    def apply(self, changes: Sequence[Change]) -> int: ...

    # in-process messaging: for Python itself, not for the hot path
    def publish(
        self, vhost: str, exchange: str, routing_key: str, body: Buffer, properties: dict[str, Any] | None = None
    ) -> int:
        """Route a message; returns how many queues took it."""
    def subscribe(self, vhost: str, queue: str, credit: int) -> int:
        """A local consumer; returns its handle."""
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
    def queue_id(self, vhost: str, queue: str) -> int | None:
        """The number by which `page` knows a queue."""
    def names(self, table: str) -> list[tuple[int, str, str]]:
        """(id, virtual host, name) of everything in a table, for filters that only Python knows."""
