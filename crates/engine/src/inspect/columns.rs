//! The columns of the engine's tables, as data.
//!
//! Owns what can be read of a connection, a consumer, a queue and an exchange: one line per column, by the name that
//! management gives it (schema/management.json). It must never compute what only a page needs for a whole table, nor
//! change anything. Rule: a column reads one thing and allocates at most its own text.

use super::{Cell, Column, Table};
use crate::barrier::Barrier;
use crate::broker::VhostId;
use crate::conn::Conn;
use crate::engine::Engine;
use crate::queue::Queue;
use crate::queue::consumers::{Consumer, Target};
use crate::routing::Exchange;
use crate::slab::Id;
use crate::stats::{Quantiles, Sketch};
use crate::stream::Stream;

/// Every table there is.
pub const TABLES: &[&str] = &["connections", "consumers", "queues", "streams", "exchanges", "links"];

fn text(bytes: &[u8]) -> Cell {
    Cell::Text(String::from_utf8_lossy(bytes).into_owned())
}

fn number(number: usize) -> Cell {
    Cell::Number(number as u64)
}

fn barrier_number(barrier: &Option<Box<Barrier>>, read: fn(&Barrier) -> u64) -> Cell {
    barrier.as_ref().map_or(Cell::Absent, |barrier| Cell::Number(read(barrier)))
}

fn vhost_text(engine: &Engine, id: Option<VhostId>) -> Cell {
    let vhost = id.and_then(|id| engine.broker.vhosts.get(id));
    vhost.map_or_else(|| Cell::Text(String::new()), |vhost| text(&vhost.name))
}

fn vhost_of_conn(engine: &Engine, conn: &Conn) -> Option<VhostId> {
    engine.broker.principal(conn.io.principal).map(|own| own.vhost)
}

fn queue_of<'e>(engine: &'e Engine, consumer: &Consumer) -> Option<&'e Queue> {
    engine.broker.queues.get(consumer.queue)
}

pub(super) const CONNECTIONS: Table<Conn> = Table {
    things: |engine| &engine.conns,
    columns: CONNECTION_COLUMNS,
    shown: |_| true,
    vhost: vhost_of_conn,
    name: |_| &[],
};

const CONNECTION_COLUMNS: &[Column<Conn>] = &[
    ("conn", |_, id, _| Cell::Number(id.raw())),
    ("protocol", |_, _, conn| Cell::Text(conn.session.describe().protocol.to_owned())),
    ("user", |engine, _, conn| {
        engine.broker.principal(conn.io.principal).map_or_else(|| Cell::Text(String::new()), |own| text(&own.user))
    }),
    ("vhost", |engine, _, conn| vhost_text(engine, vhost_of_conn(engine, conn))),
    ("channels", |_, _, conn| number(conn.session.describe().channels)),
    ("consumers", |_, _, conn| number(conn.session.describe().consumers.len())),
    ("tls", |_, _, conn| Cell::Flag(conn.io.tls)),
    ("bytes_in", |_, _, conn| Cell::Number(conn.io.bytes_in)),
    ("bytes_out", |_, _, conn| Cell::Number(conn.io.bytes_out)),
    ("messages_in", |_, _, conn| Cell::Number(conn.io.messages_in)),
    ("messages_out", |_, _, conn| Cell::Number(conn.io.messages_out)),
    ("message_bytes", |_, _, conn| Cell::Number(conn.io.account.used())),
    ("blocked_by", |_, _, conn| match (conn.io.blocked, conn.io.account.under()) {
        (false, _) => Cell::Absent,
        (true, false) => Cell::Text("memory".to_owned()),
        (true, true) => Cell::Text("disk".to_owned()),
    }),
];

pub(super) const CONSUMERS: Table<Consumer> = Table {
    things: |engine| &engine.broker.consumers,
    columns: CONSUMER_COLUMNS,
    shown: |consumer| !matches!(consumer.target, Target::Local { .. }),
    vhost: |engine, consumer| queue_of(engine, consumer).map(|queue| queue.vhost),
    name: |_| &[],
};

fn tap(engine: &Engine, consumer: &Consumer) -> Option<(String, bool, u16)> {
    engine.conns.get(Id::from_raw(consumer.conn))?.session.tap(consumer.target)
}

const CONSUMER_COLUMNS: &[Column<Consumer>] = &[
    ("consumer", |_, id, _| Cell::Number(id.raw())),
    ("conn", |_, _, consumer| Cell::Number(consumer.conn)),
    ("vhost", |engine, _, consumer| vhost_text(engine, queue_of(engine, consumer).map(|queue| queue.vhost))),
    ("queue", |engine, _, consumer| {
        queue_of(engine, consumer).map_or_else(|| Cell::Text(String::new()), |queue| text(&queue.name))
    }),
    ("exclusive", |_, _, consumer| Cell::Flag(consumer.exclusive)),
    ("browse", |_, _, consumer| Cell::Flag(consumer.browse)),
    ("priority", |_, _, consumer| Cell::Integer(consumer.priority.into())),
    ("filtered", |_, _, consumer| Cell::Flag(consumer.filter.is_some())),
    ("session", |_, _, consumer| match consumer.target {
        Target::Amqp091 { channel, .. } => number(channel.into()),
        Target::Amqp10 { session, .. } => number(session.into()),
        Target::Local { .. } => Cell::Absent,
    }),
    ("tag", |engine, _, consumer| tap(engine, consumer).map_or(Cell::Absent, |tap| Cell::Text(tap.0))),
    ("acknowledges", |engine, _, consumer| tap(engine, consumer).map_or(Cell::Absent, |tap| Cell::Flag(tap.1))),
    ("prefetch", |engine, _, consumer| tap(engine, consumer).map_or(Cell::Absent, |tap| number(tap.2.into()))),
    ("delivered", |_, _, consumer| Cell::Number(consumer.delivered)),
];

pub(super) const QUEUES: Table<Queue> = Table {
    things: |engine| &engine.broker.queues,
    columns: QUEUE_COLUMNS,
    shown: |queue| !queue.is_own(),
    vhost: |_, queue| Some(queue.vhost),
    name: |queue| &queue.name,
};

fn in_queue(queue: &Queue, read: fn(Quantiles) -> u64) -> Cell {
    quantile(queue.latency.as_ref().map(|latency| &latency.in_queue), read)
}

fn to_settle(queue: &Queue, read: fn(Quantiles) -> u64) -> Cell {
    quantile(queue.latency.as_ref().map(|latency| &latency.to_settle), read)
}

fn quantile(sketch: Option<&Sketch>, read: fn(Quantiles) -> u64) -> Cell {
    sketch.and_then(Sketch::quantiles).map_or(Cell::Absent, |found| Cell::Number(read(found)))
}

const QUEUE_COLUMNS: &[Column<Queue>] = &[
    ("id", |_, id, _| Cell::Number(id.raw())),
    ("vhost", |engine, _, queue| vhost_text(engine, Some(queue.vhost))),
    ("name", |_, _, queue| text(&queue.name)),
    ("ready", |_, _, queue| number(queue.len())),
    ("ready_bytes", |_, _, queue| Cell::Number(queue.bytes())),
    ("unsettled", |_, _, queue| number(queue.unsettled)),
    ("consumers", |_, _, queue| number(queue.ring.len())),
    ("published", |_, _, queue| Cell::Number(queue.counters.published)),
    ("delivered", |_, _, queue| Cell::Number(queue.counters.delivered)),
    ("settled", |_, _, queue| Cell::Number(queue.counters.settled)),
    ("returned", |_, _, queue| Cell::Number(queue.counters.returned)),
    ("redelivered", |_, _, queue| Cell::Number(queue.counters.redelivered)),
    ("expired", |_, _, queue| Cell::Number(queue.counters.expired)),
    ("dropped", |_, _, queue| Cell::Number(queue.counters.dropped)),
    ("dead_lettered", |_, _, queue| Cell::Number(queue.counters.dead_lettered)),
    ("duplicate", |_, _, queue| barrier_number(&queue.barrier, |barrier| barrier.duplicates)),
    ("barrier_ids", |_, _, queue| barrier_number(&queue.barrier, |barrier| barrier.len() as u64)),
    ("barrier_forgotten", |_, _, queue| barrier_number(&queue.barrier, |barrier| barrier.forgotten)),
    ("oldest_ms", |engine, _, queue| {
        queue
            .oldest_us()
            .map_or(Cell::Absent, |us| Cell::Number((engine.broker.wall_ns / 1_000).saturating_sub(us) / 1_000))
    }),
    ("time_in_queue_p50_us", |_, _, queue| in_queue(queue, |found| found.p50_us)),
    ("time_in_queue_p90_us", |_, _, queue| in_queue(queue, |found| found.p90_us)),
    ("time_in_queue_p99_us", |_, _, queue| in_queue(queue, |found| found.p99_us)),
    ("time_in_queue_max_us", |_, _, queue| in_queue(queue, |found| found.max_us)),
    ("types", |_, _, queue| number(queue.latency.as_ref().map_or(0, |latency| latency.by_type.len()))),
    ("settle_p50_us", |_, _, queue| to_settle(queue, |found| found.p50_us)),
    ("settle_p90_us", |_, _, queue| to_settle(queue, |found| found.p90_us)),
    ("settle_p99_us", |_, _, queue| to_settle(queue, |found| found.p99_us)),
    ("settle_max_us", |_, _, queue| to_settle(queue, |found| found.max_us)),
];

pub(super) const STREAMS: Table<Queue> = Table {
    things: |engine| &engine.broker.queues,
    columns: STREAM_COLUMNS,
    shown: |queue| queue.stream.is_some(),
    vhost: |_, queue| Some(queue.vhost),
    name: |queue| &queue.name,
};

fn stream_number(queue: &Queue, read: fn(&Stream) -> u64) -> Cell {
    queue.stream.as_ref().map_or(Cell::Absent, |stream| Cell::Number(read(stream)))
}

const STREAM_COLUMNS: &[Column<Queue>] = &[
    ("vhost", |engine, _, queue| vhost_text(engine, Some(queue.vhost))),
    ("name", |_, _, queue| text(&queue.name)),
    ("first_offset", |_, _, queue| stream_number(queue, Stream::first)),
    ("next_offset", |_, _, queue| stream_number(queue, Stream::next)),
    ("safe_offset", |_, _, queue| stream_number(queue, Stream::visible)),
    ("bytes", |_, _, queue| stream_number(queue, Stream::bytes)),
    ("readers", |_, _, queue| number(queue.ring.len())),
    ("appended", |_, _, queue| Cell::Number(queue.counters.published)),
    ("read", |_, _, queue| Cell::Number(queue.counters.delivered)),
];

pub(super) const EXCHANGES: Table<Exchange> = Table {
    things: |engine| &engine.broker.exchanges,
    columns: EXCHANGE_COLUMNS,
    shown: |_| true,
    vhost: |_, exchange| Some(exchange.vhost),
    name: |exchange| &exchange.name,
};

const EXCHANGE_COLUMNS: &[Column<Exchange>] = &[
    ("vhost", |engine, _, exchange| vhost_text(engine, Some(exchange.vhost))),
    ("name", |_, _, exchange| text(&exchange.name)),
    ("type", |_, _, exchange| Cell::Text(format!("{:?}", exchange.kind).to_lowercase())),
    ("internal", |_, _, exchange| Cell::Flag(exchange.internal)),
    ("duplicate", |_, _, exchange| barrier_number(&exchange.barrier, |barrier| barrier.duplicates)),
    ("barrier_ids", |_, _, exchange| barrier_number(&exchange.barrier, |barrier| barrier.len() as u64)),
    ("barrier_forgotten", |_, _, exchange| barrier_number(&exchange.barrier, |barrier| barrier.forgotten)),
    ("messages_in", |_, _, exchange| Cell::Number(exchange.counters.messages_in)),
    ("messages_out", |_, _, exchange| Cell::Number(exchange.counters.messages_out)),
    ("unroutable", |_, _, exchange| Cell::Number(exchange.counters.unroutable)),
];
