//! Readers of streams, each at its own place.
//!
//! Owns where one reader is and what it holds. It comes back after every cut: at the first message, at the offset it
//! remembers itself, or where the node remembers its name. What it sees goes into the ledger with its offset. It must
//! never forgive an offset that goes back, nor a name whose place is ahead of what it settled. Rule: decision 0014;
//! what anybody saw at an offset is there for ever, or gone.

use weft_wire::amqp091::Method;
use weft_wire::amqp091::table::{Table, Value};

use super::ledger::{Ledger, Letter};
use super::wire::Wire;
use crate::client::table;
use crate::{Item, Random, client};

/// Deliveries that a reader holds at most.
const PREFETCH: u16 = 20;

/// Where a reader begins on a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    First,
    /// Behind what it has read.
    Own,
    /// Where the node says.
    Named,
}

/// One reader of one stream.
pub struct Reader {
    pub wire: Wire,
    pub stream: &'static str,
    begin: Begin,
    /// Behind the last message that it got, and behind the last that it settled.
    next: u64,
    settled: u64,
    /// On this connection: the last offset, how many came, and (tag, offset) of those that are not settled.
    pub last: Option<u64>,
    pub count: usize,
    held: Vec<(u64, u64)>,
}

impl Reader {
    pub fn new(stream: &'static str, begin: Begin) -> Self {
        let (wire, held) = (Wire::default(), Vec::new());
        Self { wire, stream, begin, next: 0, settled: 0, last: None, count: 0, held }
    }

    /// Says what a new connection has to say first.
    pub fn open(&mut self) {
        (self.last, self.count) = (None, 0);
        self.held.clear();
        let out = &mut self.wire.out;
        out.extend(client::opening(0, |_| ()));
        Method::ChannelOpen.encode_frame(1, out);
        Method::BasicQos { prefetch_size: 0, prefetch_count: PREFETCH, global: false }.encode_frame(1, out);
        let arguments = table(|table| match self.begin {
            Begin::First => table.str(b"x-stream-offset", b"first"),
            Begin::Own => table.i64(b"x-stream-offset", self.next as i64),
            Begin::Named => {
                table.str(b"x-stream-offset", b"first");
                table.str(b"x-stream-consumer-name", b"reader");
            }
        });
        let consume = Method::BasicConsume {
            queue: self.stream.as_bytes(),
            consumer_tag: b"offsets",
            no_local: false,
            no_ack: false,
            exclusive: false,
            no_wait: false,
            arguments: Table::trusted(&arguments),
        };
        consume.encode_frame(1, out);
    }

    /// Settles all that it holds up to one of them.
    pub fn act(&mut self, random: &mut Random) {
        if self.held.is_empty() || self.wire.conn.is_none() {
            return;
        }
        let count = 1 + random.below(self.held.len());
        let Some((delivery_tag, offset)) = self.held.drain(..count).next_back() else { return };
        Method::BasicAck { delivery_tag, multiple: true }.encode_frame(1, &mut self.wire.out);
        self.settled = self.settled.max(offset + 1);
    }

    /// Reads what has arrived; false if the node said something that ends the connection.
    pub fn read(&mut self, ledger: &mut Ledger) -> bool {
        let (items, used) = client::parse(&self.wire.unread);
        self.wire.unread.drain(..used);
        for item in &items {
            match item.method() {
                Method::BasicDeliver { delivery_tag, .. } => self.take(delivery_tag, item, ledger),
                Method::ConnectionClose { .. } | Method::ChannelClose { .. } | Method::BasicCancel { .. } => {
                    return false;
                }
                _ => {}
            }
        }
        true
    }

    fn take(&mut self, tag: u64, item: &Item, ledger: &mut Ledger) {
        let headers = item.properties().headers;
        let offset = match headers.and_then(|headers| headers.get(b"x-stream-offset")) {
            Some(Value::I64(offset)) => offset as u64,
            other => return ledger.mistake(format!("{}: {other:?} is no offset", self.stream)),
        };
        let least = match (self.last, self.begin) {
            (Some(last), _) => last + 1,
            (None, Begin::Own) => self.next,
            (None, _) => 0,
        };
        if offset < least {
            ledger.mistake(format!("{}: offset {offset} came where {least} was due", self.stream));
        }
        let most = if self.begin == Begin::Named && self.last.is_none() { self.settled } else { u64::MAX };
        if offset > most && !ledger.is_trimmed(self.stream) {
            ledger.mistake(format!("{}: begins at {offset}, but settled {most} only", self.stream));
        }
        self.held.push((tag, offset));
        (self.last, self.next) = (Some(offset), self.next.max(offset + 1));
        self.count += 1;
        match Letter::parse(&item.body) {
            Some(letter) => ledger.seen(self.stream, offset, letter),
            None => ledger.mistake(format!("{}: no letter at {offset}", self.stream)),
        }
    }
}
