"""Every limit of a node, with its default and why that number.

Owns the frozen `Limits` value handed to the engine at its birth; configuration fills it, the kernel and the node obey
it.
Nothing here may import the rest of weft or hold behaviour beyond validation.
Rule: each queue, buffer, table and loop of the product has its bound here, unit last.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one node."""

    frame_bytes_max: int = 131_072
    """Largest frame we take or make, both protocols: RabbitMQ's default, so its clients negotiate as they are used
    to.
    """
    channels_max: int = 2_047
    """Channels (0-9-1) or sessions (1.0) on one connection: RabbitMQ's default for channels."""
    links_max: int = 1_024
    """Links on one AMQP 1.0 session (handle-max + 1)."""
    consumers_max: int = 10_000
    """Consumers of one 0-9-1 channel: far more than a program has by design, so that a leak is told early."""
    heartbeat_s: int = 60
    """Suggested heartbeat (0-9-1) and idle time-out (1.0); 0 turns it off."""
    message_bytes_max: int = 134_217_728
    """Largest message: 128 MiB, RabbitMQ's old default; larger ones belong in an object store."""
    memory_bytes_max: int = 0
    """Memory for messages; 0 means 40 % of the machine's."""
    output_bytes_max: int = 262_144
    """Output waiting per connection before delivery to it pauses: a few socket buffers, so memory follows consumers,
    not queues.
    """
    flush_bytes: int = 262_144
    """Output of all connections together after which the node must flush before it reads more (Signal.FLUSH)."""
    work_max: int = 20_000
    """Units of work (a frame, an enqueue, a delivery) one engine call may do before it returns Signal.MORE: about 5
    ms.
    """
    link_credit: int = 1_000
    """Credit a sending 1.0 peer holds: enough to keep a pipe full, small enough to stop a flood quickly."""
    session_window: int = 5_000
    """Transfer frames a 1.0 peer may have in flight per session."""
    unauthenticated_s: int = 10
    """Time a peer has to finish its opening before it is cut (slow-loris)."""
    unfinished_s: int = 120
    """Time in which a message that came in part must bring its end, or 64 KiB more; then it is given up and its channel
    or link closed.
    """
    connections_max: int = 65_536
    """Connections of one node; more are closed at accept."""
    addresses_max: int = 4_096
    """Resolved `to` addresses remembered per principal; the table is emptied when full."""
    transactions_max: int = 64
    """Open AMQP 1.0 transactions per connection."""
    transaction_bytes_max: int = 67_108_864
    """Bytes of messages held by the open transactions of one connection."""
    prepared_max: int = 1_000
    """Prepared transactions of a node that wait to be resolved; more are rolled back when they ask."""
    prepared_bytes_max: int = 268_435_456
    """Bytes of messages that all of them hold in memory."""
    relay_window_s: int = 600
    """How long the node remembers what came by relay links: ten minutes outlast what reconnects by itself."""
    relay_ids_max: int = 1_000_000
    """How many of these it remembers: a million take about 32 MB."""
    doubt_s: int = 60
    """Time that a message which another node may have waits for that node before it goes to others: longer than a node
    takes to start again and be dialled.
    """
    end_to_end_max: int = 8_192
    """Messages of one publisher that may wait for their consumers' answers, in queues whose publishers want these: as
    many as a queue keeps in memory.
    """
