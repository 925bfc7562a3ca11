//! Where a message goes: exchanges and their tables.
//!
//! Owns the compiled bindings of each exchange. Changes from Python add and remove rows; a published message comes in
//! with its key and leaves as a list of destinations. It must never touch a queue or a session.
//! Rules: AMQP 0-9-1 section 3.1.3 (exchange types), RabbitMQ's headers matching and exchange-to-exchange bindings.

pub mod headers;
pub mod selector;
pub mod topic;

use weft_wire::amqp091::table::{Table, Value};

use crate::barrier::Barrier;
use crate::broker::VhostId;
use crate::change::ExchangeKind;
use crate::hash::{Map, Seeded};
use crate::message::Name;
use crate::queue::QueueId;
use crate::slab::Id;
use headers::{FieldRef, HeadersMatch, Mode};
use topic::TopicTable;

/// Names an exchange.
pub type ExchangeId = Id<Exchange>;

/// Where a binding leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dest {
    Queue(QueueId),
    Exchange(ExchangeId),
}

/// Counters since the exchange was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Messages sent to it.
    pub messages_in: u64,
    /// Copies that queues took.
    pub messages_out: u64,
    /// Messages that nobody took.
    pub unroutable: u64,
}

/// An exchange with its bindings.
pub struct Exchange {
    pub name: Name,
    pub vhost: VhostId,
    pub kind: ExchangeKind,
    pub internal: bool,
    pub delayed: bool,
    pub alternate: Option<Name>,
    /// The stream that gets a copy of whatever comes by.
    pub tap: Option<Name>,
    pub barrier: Option<Box<Barrier>>,
    /// The last routing that came by: cycles of exchanges end here.
    pub mark: u64,
    pub counters: Counters,
    table: Bindings,
}

/// One headers binding: what it matches, where it leads, and the raw arguments that name it.
struct HeadersRow {
    rule: HeadersMatch,
    dest: Dest,
    routing_key: Box<[u8]>,
    arguments: Box<[u8]>,
}

/// Rows of bindings; a count tells how many bindings (with other arguments) share a row.
enum Bindings {
    Direct(Map<Box<[u8]>, Vec<(Dest, u32)>>),
    Fanout(Vec<(Dest, u32)>),
    Topic(TopicTable<Dest>, Map<(Box<[u8]>, Dest), u32>),
    Headers(Vec<HeadersRow>),
}

impl Exchange {
    pub fn new(vhost: VhostId, name: Name, kind: ExchangeKind, seed: Seeded) -> Self {
        let table = match kind {
            ExchangeKind::Direct => Bindings::Direct(Map::with_hasher(seed)),
            ExchangeKind::Fanout => Bindings::Fanout(Vec::new()),
            ExchangeKind::Topic => Bindings::Topic(TopicTable::with_hasher(seed), Map::with_hasher(seed)),
            ExchangeKind::Headers => Bindings::Headers(Vec::new()),
        };
        Self {
            name,
            vhost,
            kind,
            internal: false,
            delayed: false,
            alternate: None,
            tap: None,
            barrier: None,
            mark: 0,
            counters: Counters::default(),
            table,
        }
    }

    /// Does the choice depend on more than the routing key?
    pub fn reads_headers(&self) -> bool {
        matches!(self.table, Bindings::Headers(_))
    }

    /// Does the choice depend on the routing key at all?
    pub fn reads_key(&self) -> bool {
        matches!(self.table, Bindings::Direct(_) | Bindings::Topic(..))
    }

    /// Bindings that have to be looked at one by one for each message.
    pub fn rows_read(&self) -> usize {
        if let Bindings::Headers(rows) = &self.table { rows.len() } else { 0 }
    }

    /// bind(self, key, dest).
    pub fn bind(&mut self, routing_key: &[u8], arguments: Table<'_>, dest: Dest) {
        match &mut self.table {
            Bindings::Direct(rows) => count_up(rows.entry(routing_key.into()).or_default(), dest),
            Bindings::Fanout(row) => count_up(row, dest),
            Bindings::Topic(table, counts) => {
                *counts.entry((routing_key.into(), dest)).or_insert(0) += 1;
                table.insert(routing_key, dest);
            }
            Bindings::Headers(rows) => rows.push(HeadersRow {
                rule: headers_rule(arguments),
                dest,
                routing_key: routing_key.into(),
                arguments: arguments.raw().into(),
            }),
        }
    }

    /// unbind(self, key, dest): reverses the bind with the same fields.
    pub fn unbind(&mut self, routing_key: &[u8], arguments: Table<'_>, dest: Dest) {
        match &mut self.table {
            Bindings::Direct(rows) => {
                if let Some(row) = rows.get_mut(routing_key) {
                    count_down(row, dest);
                    if row.is_empty() {
                        rows.remove(routing_key);
                    }
                }
            }
            Bindings::Fanout(row) => count_down(row, dest),
            Bindings::Topic(table, counts) => {
                let key = (Box::from(routing_key), dest);
                if let Some(count) = counts.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        counts.remove(&key);
                        table.remove(routing_key, dest);
                    }
                }
            }
            Bindings::Headers(rows) => {
                let same = |row: &HeadersRow| {
                    row.dest == dest && *row.routing_key == *routing_key && *row.arguments == *arguments.raw()
                };
                if let Some(at) = rows.iter().position(same) {
                    rows.remove(at);
                }
            }
        }
    }

    /// Tells every destination of a message with this key; one may be told more than once.
    #[inline]
    pub fn find<'m>(
        &self,
        routing_key: &[u8],
        mut header: impl FnMut(&[u8]) -> Option<FieldRef<'m>>,
        found: &mut impl FnMut(Dest),
    ) {
        match &self.table {
            Bindings::Direct(rows) => {
                if let Some(row) = rows.get(routing_key) {
                    row.iter().for_each(|(dest, _)| found(*dest));
                }
            }
            Bindings::Fanout(row) => row.iter().for_each(|(dest, _)| found(*dest)),
            Bindings::Topic(table, _) => table.matches(routing_key, found),
            Bindings::Headers(rows) => {
                for row in rows {
                    if row.rule.matches(&mut header) {
                        found(row.dest);
                    }
                }
            }
        }
    }
}

fn count_up(row: &mut Vec<(Dest, u32)>, dest: Dest) {
    match row.iter_mut().find(|(other, _)| *other == dest) {
        Some((_, count)) => *count += 1,
        None => row.push((dest, 1)),
    }
}

fn count_down(row: &mut Vec<(Dest, u32)>, dest: Dest) {
    if let Some(at) = row.iter().position(|(other, _)| *other == dest) {
        row[at].1 -= 1;
        if row[at].1 == 0 {
            row.swap_remove(at);
        }
    }
}

fn headers_rule(arguments: Table<'_>) -> HeadersMatch {
    let mode = match arguments.get(b"x-match").and_then(|value| value.as_bytes()) {
        Some(b"any") => Mode::Any,
        Some(b"all-with-x") => Mode::AllWithX,
        Some(b"any-with-x") => Mode::AnyWithX,
        _ => Mode::All,
    };
    let pairs = arguments.iter().map(|(key, value)| (key.into(), field_ref(value).to_owned())).collect();
    HeadersMatch { mode, pairs }
}

/// A 0-9-1 value as the headers exchange compares it.
pub fn field_ref(value: Value<'_>) -> FieldRef<'_> {
    match value {
        Value::Bool(yes) => FieldRef::Bool(yes),
        Value::F32(number) => FieldRef::Float(f64::from(number)),
        Value::F64(number) => FieldRef::Float(number),
        Value::LongString(text) => FieldRef::Str(text),
        Value::Bytes(bytes) => FieldRef::Bytes(bytes),
        Value::Timestamp(seconds) => FieldRef::Timestamp(seconds),
        Value::Void => FieldRef::Void,
        Value::Decimal { scale, value } => FieldRef::Float(f64::from(value) / 10_f64.powi(i32::from(scale))),
        other => other.as_i64().map_or(FieldRef::Nested(other), FieldRef::Int),
    }
}
