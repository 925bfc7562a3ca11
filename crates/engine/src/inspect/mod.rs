//! Reading the engine: counters, gauges and pages of its tables.
//!
//! Owns what management and Python may see. The name of a table and a question come in, a page of rows of plain cells
//! goes out; a page is found without building the rows that are not on it, and in parts (`scan.rs`), as sums are
//! (`tally.rs`). It must never change what it reads. Rule: columns are data (`columns.rs`);
//! docs/reference/management.md says what each one means.

mod columns;
mod scan;
mod tally;

use std::collections::BTreeMap;

use crate::broker::VhostId;
use crate::change::BindingSpec;
use crate::conn::ConnId;
use crate::engine::Engine;
use crate::session::Part;
use crate::slab::{Id, Slab};
use crate::stats::{Quantiles, SIZES, Sketch, Span};

pub use columns::TABLES;
pub use scan::Scan;
pub use tally::Tally;

/// One value of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cell {
    /// It has no such value, or none yet.
    #[default]
    Absent,
    Flag(bool),
    Number(u64),
    /// A number that may be below zero.
    Integer(i64),
    Text(String),
}

/// A row of a snapshot.
pub type Row = Vec<(&'static str, Cell)>;

/// A column: its name, and how it is read from a thing of the table.
type Column<T> = (&'static str, fn(&Engine, Id<T>, &T) -> Cell);

/// A table: where its things are, what they are called, and their columns.
struct Table<T: 'static> {
    things: fn(&Engine) -> &Slab<T>,
    columns: &'static [Column<T>],
    /// Is it for others to see at all?
    shown: fn(&T) -> bool,
    vhost: fn(&Engine, &T) -> Option<VhostId>,
    name: for<'t> fn(&'t T) -> &'t [u8],
}

/// Which rows of a table are wanted, in which order, and what of them.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Only what is in these virtual hosts.
    pub vhosts: Option<Vec<String>>,
    /// Only what has this in its name, whatever its case.
    pub contains: Option<String>,
    /// Only these.
    pub ids: Option<Vec<u64>>,
    /// A column; without one the order is by virtual host and name.
    pub sort: Option<String>,
    pub descending: bool,
    pub offset: usize,
    pub count: Option<usize>,
    pub columns: Option<Vec<String>>,
}

/// A part of a table.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Rows in the virtual hosts that were asked for; of the ids, where some were given.
    pub total: usize,
    /// Rows that also fit the rest of the question.
    pub matched: usize,
    pub rows: Vec<Row>,
}

impl Engine {
    /// (ready, unsettled, consumers) of a queue.
    pub fn queue_stats(&self, vhost: &str, queue: &str) -> Option<(usize, usize, usize)> {
        if self.broker.is_reply_open(queue.as_bytes()) {
            return Some((0, 0, 1));
        }
        let id = self.broker.find_queue(self.broker.find_vhost(vhost.as_bytes())?, queue.as_bytes())?;
        let ring = self.broker.queues.get(id)?.ring.len();
        let parts = self.broker.parts(id).into_iter().filter_map(|part| self.broker.queues.get(part));
        let (ready, unsettled) = parts.fold((0, 0), |sum, part| (sum.0 + part.len(), sum.1 + part.unsettled));
        Some((ready, unsettled, ring))
    }

    /// The number by which `page` knows a queue.
    pub fn queue_id(&self, vhost: &str, queue: &str) -> Option<u64> {
        let id = self.broker.find_queue(self.broker.find_vhost(vhost.as_bytes())?, queue.as_bytes())?;
        Some(id.raw())
    }

    /// The place of each virtual host among the names of all.
    fn vhost_ranks(&self) -> BTreeMap<VhostId, u32> {
        let mut named: Vec<(VhostId, &[u8])> =
            self.broker.vhosts.iter().map(|(id, vhost)| (id, &*vhost.name)).collect();
        named.sort_unstable_by_key(|one| one.1);
        named.into_iter().enumerate().map(|(rank, (id, _))| (id, rank as u32)).collect()
    }

    /// How long messages take on this node: name, durations counted, quantiles. Time in queue comes a second time by
    /// the size of the body, with the largest size of each bucket (None: any larger).
    pub fn latencies(&self) -> Vec<(&'static str, Option<u64>, u64, Quantiles)> {
        let latency = &self.broker.latency;
        let in_queue = latency.in_queue();
        let named = [("time_in_queue", &in_queue), ("settle", &latency.to_settle), ("confirm", &latency.to_confirm)];
        let told = |name, size, sketch: &Sketch| Some((name, size, sketch.len(), sketch.quantiles()?));
        let all = named.iter().filter_map(|(name, sketch)| told(*name, None, sketch));
        let sizes = SIZES.iter().copied().map(Some).chain([None]).zip(&latency.by_size);
        all.chain(sizes.filter_map(|(size, sketch)| told("size", size, sketch))).collect()
    }

    /// How long messages of each type wait: its name, durations counted, quantiles. In one queue, or on the node.
    pub fn types(&self, queue: Option<u64>) -> Vec<(String, u64, Quantiles)> {
        let told = |(name, sketch): (&[u8], &Sketch)| {
            Some((String::from_utf8_lossy(name).into_owned(), sketch.len(), sketch.quantiles()?))
        };
        let types = &self.broker.types;
        let Some(queue) = queue else { return types.iter().filter_map(told).collect() };
        let latency = self.broker.queues.get(Id::from_raw(queue)).and_then(|queue| queue.latency.as_ref());
        latency.map(|latency| types.of(&latency.by_type).filter_map(told).collect()).unwrap_or_default()
    }

    /// Takes spans of traced messages away: of each its virtual host and queue, and the span.
    pub fn take_spans(&mut self, count_max: usize) -> Vec<(String, String, Span)> {
        let taken = self.broker.spans.as_mut().map(|spans| spans.take(count_max)).unwrap_or_default();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let named = taken.into_iter().map(|span| {
            let queue = self.broker.queues.get(span.queue);
            let vhost = queue.and_then(|queue| self.broker.vhosts.get(queue.vhost));
            let names = (vhost.map(|vhost| text(&vhost.name)), queue.map(|queue| text(&queue.name)));
            (names.0.unwrap_or_default(), names.1.unwrap_or_default(), span)
        });
        named.collect()
    }

    /// How many messages matched each of these bindings; None for what is not bound.
    pub fn matched(&mut self, bindings: &[BindingSpec]) -> Vec<Option<u64>> {
        self.broker.matches.gather();
        bindings.iter().map(|binding| self.broker.matched(binding)).collect()
    }

    /// All rows of one table; None if there is no such table.
    pub fn inspect(&self, table: &str) -> Option<Vec<Row>> {
        self.page(table, &Question::default()).map(|page| page.rows)
    }

    /// Every channel and session of these connections.
    pub fn sessions(&self, conns: &[u64]) -> Vec<Row> {
        let row = |(conn, part): (u64, Part)| {
            let own = ("conn", Cell::Number(conn));
            std::iter::once(own).chain(SESSIONS.iter().map(|(name, read)| (*name, read(&part)))).collect()
        };
        self.session_parts(conns).map(row).collect()
    }

    /// What they are sorted by: connection, number and one of their columns. It takes far less than their rows.
    pub fn session_keys(&self, conns: &[u64], column: Option<&str>) -> Vec<(u64, u16, Option<u64>)> {
        let column = column.and_then(|name| SESSIONS.iter().find(|column| column.0 == name));
        let key = |part: &Part| match column.map(|column| column.1(part)) {
            Some(Cell::Number(number)) => Some(number),
            Some(Cell::Flag(flag)) => Some(flag.into()),
            _ => None,
        };
        self.session_parts(conns).map(|(conn, part)| (conn, part.number, key(&part))).collect()
    }

    fn session_parts(&self, conns: &[u64]) -> impl Iterator<Item = (u64, Part)> {
        let found = conns.iter().filter_map(|raw| Some((*raw, self.conns.get(ConnId::from_raw(*raw))?)));
        found.flat_map(|(raw, conn)| conn.session.parts().into_iter().map(move |part| (raw, part)))
    }
}

/// A column of a channel or session: its name, and how it is read.
type SessionColumn = (&'static str, fn(&Part) -> Cell);

const SESSIONS: &[SessionColumn] = &[
    ("number", |part| Cell::Number(part.number.into())),
    ("consumers", |part| Cell::Number(part.links as u64)),
    ("unsettled", |part| Cell::Number(part.unsettled as u64)),
    ("prefetch", |part| Cell::Number(part.prefetch.into())),
    ("confirm", |part| Cell::Flag(part.published.is_some())),
    ("published", |part| part.published.map_or(Cell::Absent, Cell::Number)),
    ("transactional", |part| Cell::Flag(part.transactional)),
];
