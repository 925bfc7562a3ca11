//! Where a message goes: exchanges and their tables.
//!
//! Owns the compiled bindings of each exchange. Changes from Python add and remove rows; a published message comes in
//! with its key and leaves as a list of destinations. It must never touch a queue or a session.
//! Rules: AMQP 0-9-1 section 3.1.3 (exchange types), RabbitMQ's headers matching and exchange-to-exchange bindings.

pub mod headers;
pub mod matches;
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
use matches::{MatchId, Matches};
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
    matched: MatchId,
}

/// A row of another table: where it leads, and how many bindings (with other arguments) share it.
#[derive(Clone, Copy)]
struct Row {
    dest: Dest,
    matched: MatchId,
    count: u32,
}

/// Rows of bindings.
enum Bindings {
    Direct(Map<Box<[u8]>, Vec<Row>>),
    Fanout(Vec<Row>),
    Topic(TopicTable<(Dest, MatchId)>, Map<(Box<[u8]>, Dest), Row>),
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
    pub fn bind(&mut self, matches: &mut Matches, routing_key: &[u8], arguments: Table<'_>, dest: Dest) {
        match &mut self.table {
            Bindings::Direct(rows) => count_up(matches, rows.entry(routing_key.into()).or_default(), dest),
            Bindings::Fanout(row) => count_up(matches, row, dest),
            Bindings::Topic(table, rows) => {
                let new = || Row { dest, matched: matches.add(), count: 0 };
                let row = rows.entry((routing_key.into(), dest)).or_insert_with(new);
                row.count += 1;
                table.insert(routing_key, (dest, row.matched));
            }
            Bindings::Headers(rows) => rows.push(HeadersRow {
                rule: headers_rule(arguments),
                dest,
                routing_key: routing_key.into(),
                arguments: arguments.raw().into(),
                matched: matches.add(),
            }),
        }
    }

    /// unbind(self, key, dest): reverses the bind with the same fields.
    pub fn unbind(&mut self, matches: &mut Matches, routing_key: &[u8], arguments: Table<'_>, dest: Dest) {
        match &mut self.table {
            Bindings::Direct(rows) => {
                if let Some(row) = rows.get_mut(routing_key) {
                    count_down(matches, row, dest);
                    if row.is_empty() {
                        rows.remove(routing_key);
                    }
                }
            }
            Bindings::Fanout(row) => count_down(matches, row, dest),
            Bindings::Topic(table, rows) => {
                let key = (Box::from(routing_key), dest);
                if let Some(row) = rows.get_mut(&key) {
                    row.count -= 1;
                    if row.count == 0 {
                        matches.remove(row.matched);
                        table.remove(routing_key, (dest, row.matched));
                        rows.remove(&key);
                    }
                }
            }
            Bindings::Headers(rows) => {
                if let Some(at) = rows.iter().position(|row| row.is(routing_key, arguments, dest)) {
                    matches.remove(rows.remove(at).matched);
                }
            }
        }
    }

    /// The counter of a binding.
    pub fn match_id(&self, routing_key: &[u8], arguments: Table<'_>, dest: Dest) -> Option<MatchId> {
        let of = |rows: &[Row]| rows.iter().find(|row| row.dest == dest).map(|row| row.matched);
        match &self.table {
            Bindings::Direct(rows) => of(rows.get(routing_key)?),
            Bindings::Fanout(rows) => of(rows),
            Bindings::Topic(_, rows) => rows.get(&(Box::from(routing_key), dest)).map(|row| row.matched),
            Bindings::Headers(rows) => {
                rows.iter().find(|row| row.is(routing_key, arguments, dest)).map(|row| row.matched)
            }
        }
    }

    /// Tells every row that a message with this key matches; a destination may be told more than once.
    #[inline]
    pub fn find<'m>(
        &self,
        routing_key: &[u8],
        mut header: impl FnMut(&[u8]) -> Option<FieldRef<'m>>,
        found: &mut impl FnMut(Dest, MatchId),
    ) {
        match &self.table {
            Bindings::Direct(rows) => {
                if let Some(row) = rows.get(routing_key) {
                    row.iter().for_each(|row| found(row.dest, row.matched));
                }
            }
            Bindings::Fanout(row) => row.iter().for_each(|row| found(row.dest, row.matched)),
            Bindings::Topic(table, _) => table.matches(routing_key, &mut |(dest, matched)| found(dest, matched)),
            Bindings::Headers(rows) => {
                for row in rows {
                    if row.rule.matches(&mut header) {
                        found(row.dest, row.matched);
                    }
                }
            }
        }
    }
}

impl HeadersRow {
    fn is(&self, routing_key: &[u8], arguments: Table<'_>, dest: Dest) -> bool {
        self.dest == dest && *self.routing_key == *routing_key && *self.arguments == *arguments.raw()
    }
}

fn count_up(matches: &mut Matches, rows: &mut Vec<Row>, dest: Dest) {
    match rows.iter_mut().find(|row| row.dest == dest) {
        Some(row) => row.count += 1,
        None => rows.push(Row { dest, matched: matches.add(), count: 1 }),
    }
}

fn count_down(matches: &mut Matches, rows: &mut Vec<Row>, dest: Dest) {
    if let Some(at) = rows.iter().position(|row| row.dest == dest) {
        rows[at].count -= 1;
        if rows[at].count == 0 {
            matches.remove(rows.swap_remove(at).matched);
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
