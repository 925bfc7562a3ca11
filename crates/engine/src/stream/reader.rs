//! One reader of a stream: where it is, and what was read ahead for it.
//!
//! Owns a reader's lanes, one for each stream it reads: the next offset, the bounded buffer of messages that came
//! from disk, and the search for the place where it begins. `log.rs` fills them, `serve.rs` empties them. It must
//! never hold more than a few reads of messages ahead. Rule: offsets rise; what retention removed is passed over.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use weft_journal::{Messages, Stored};

use super::Stream;
use super::start::Start;
use crate::memory::{Account, Charge};
use crate::message::{Message, Name};
use crate::queue::{Queue, QueueId};
use crate::record;
use crate::slab::Slab;

/// Messages and bytes that one read brings from disk. Readers of many streams at once have less of each.
const READ_COUNT: usize = 2_048;
const READ_BYTES: usize = 2_000 << 10;
const READ_BYTES_MIN: usize = 16 << 10;
/// What one read of each of a reader's streams brings together.
const READ_BYTES_ALL: usize = 8 * READ_BYTES;
/// Reads under way for a reader: the disk goes on with the second while we have not yet seen that the first is there.
const READS_MAX: usize = 2;
/// What was read is kept as it is if it is at most so many times as large as the bodies in it.
const KEEP_FACTOR: usize = 2;

/// What a consumer of a stream asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub start: Start,
    /// The name under which the node remembers what was settled.
    pub name: Option<Name>,
}

/// A reader: its place in a stream, or in each part of one.
#[derive(Debug)]
pub struct Reader {
    pub(super) wanted: Wanted,
    pub(super) lanes: Vec<Lane>,
    /// The lane whose turn it is.
    pub(super) turn: usize,
}

/// A reader's place in one stream.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) stream: QueueId,
    pub(super) place: Place,
    pub(super) next: u64,
    /// Messages from disk, in order, from `next` on, with the sums of their counts and of their bodies.
    ahead: VecDeque<Chunk>,
    ahead_count: usize,
    ahead_bytes: usize,
    /// What was read is passed on without a copy: nobody keeps it longer than this lane.
    shares: bool,
    /// Which offsets the reads under way are meant to bring, in order.
    asked: VecDeque<Range<u64>>,
    /// What one of them brings at most.
    pub(super) read_bytes: usize,
    /// Reads under way, with those whose answer nobody wants any more.
    reads: usize,
    /// What a message took of the last read; 0 before the first.
    bytes_each: usize,
    /// Where settled offsets are noted, one more than its index; 0 for nowhere.
    pub(super) tracker: u16,
}

/// Messages as they came from disk together; those before `at` are delivered.
#[derive(Debug)]
struct Chunk {
    messages: Messages,
    at: usize,
    names: record::Names,
    _charge: Charge,
}

/// Does a reader know where it is?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// What the node remembers of its name is being read.
    Recalling,
    /// The first message that arrived at a time is in `low..=high`.
    Seeking {
        time_ms: u64,
        low: u64,
        high: u64,
    },
    Found,
}

impl Reader {
    /// A reader that has not begun.
    pub fn new(wanted: Wanted) -> Self {
        Self { wanted, lanes: Vec::new(), turn: 0 }
    }

    /// Has it seen everything there is to see?
    pub fn is_at_end(&self, queues: &Slab<Queue>) -> bool {
        let stream = |lane: &Lane| queues.get(lane.stream).and_then(|queue| queue.stream.as_deref());
        self.lanes.iter().all(|lane| stream(lane).is_none_or(|stream| lane.is_at_end(stream)))
    }
}

impl Lane {
    /// One of so many lanes.
    pub(super) fn new(stream: QueueId, lanes: usize, shares: bool) -> Self {
        Self {
            stream,
            place: Place::Found,
            next: 0,
            ahead: VecDeque::new(),
            ahead_count: 0,
            ahead_bytes: 0,
            shares,
            asked: VecDeque::new(),
            read_bytes: (READ_BYTES_ALL / lanes.max(1)).clamp(READ_BYTES_MIN, READ_BYTES),
            reads: 0,
            bytes_each: 0,
            tracker: 0,
        }
    }

    /// Is a read under way for it?
    pub(super) fn is_reading(&self) -> bool {
        !self.asked.is_empty()
    }

    /// A read is under way that is meant to bring these.
    pub(super) fn ask(&mut self, offsets: Range<u64>) {
        self.asked.push_back(offsets);
        self.reads += 1;
    }

    /// A read from this offset on has come back: is it the next? If not, what it brought is asked for again.
    pub(super) fn answered(&mut self, from: u64) -> bool {
        self.reads -= 1;
        let Some(at) = self.asked.iter().position(|offsets| offsets.start == from) else { return false };
        if at > 0 {
            self.asked.truncate(at);
            return false;
        }
        self.asked.pop_front();
        true
    }

    /// Messages have come from disk. Where they end elsewhere than they were meant to, the reads after them are for
    /// nothing: some were damaged or gone, larger than those before, or the disk refused.
    pub(super) fn came(&mut self, messages: Messages, account: &Rc<Account>) {
        self.push(messages, account);
        if self.asked.front().is_some_and(|offsets| offsets.start != self.end()) {
            self.asked.clear();
        }
    }

    /// Adds messages that follow those that are there.
    pub(super) fn push(&mut self, messages: Messages, account: &Rc<Account>) {
        // The disk refused, or a sidecar has to be made first: it is asked again.
        if messages.is_empty() {
            return;
        }
        let useful: usize = messages.iter().map(|stored| stored.body.len()).sum();
        // Where most of what was read belongs to others, it is not kept for the sake of a few.
        let messages = if messages.bytes_read() <= KEEP_FACTOR * useful { messages } else { alone(&messages) };
        self.bytes_each = (messages.bytes_read() / messages.len()).max(1);
        self.ahead_count += messages.len();
        self.ahead_bytes += useful;
        let charge = account.charge(messages.bytes_read() as u64);
        self.ahead.push_back(Chunk { messages, at: 0, names: record::Names::default(), _charge: charge });
    }

    /// Lets the memory go that messages were read into, once all of them are delivered.
    #[inline]
    pub(super) fn drop_spent(&mut self) {
        while self.ahead.front().is_some_and(|chunk| chunk.at >= chunk.messages.len()) {
            self.ahead.pop_front();
        }
    }

    /// What came from disk and may be seen, as it was stored; `pass` steps over those that were delivered.
    #[inline]
    pub(super) fn run(&mut self, visible: u64) -> impl Iterator<Item = Stored<'_>> {
        self.drop_spent();
        let rest = self.ahead.front().into_iter().flat_map(|chunk| chunk.messages.iter_from(chunk.at));
        rest.take_while(move |stored| stored.position < visible)
    }

    /// So many of `run` are delivered.
    pub(super) fn pass(&mut self, count: usize) {
        let Some(chunk) = self.ahead.front_mut() else { return };
        for stored in chunk.messages.iter_from(chunk.at).take(count) {
            self.ahead_bytes -= stored.body.len();
            self.next = stored.position + 1;
        }
        self.ahead_count -= count;
        chunk.at += count;
    }

    /// Begins at the place that is wanted.
    pub(super) fn begin(&mut self, stream: &Stream, start: Start) {
        self.place = Place::Found;
        self.next = match start {
            Start::First => stream.first(),
            Start::Last => stream.visible().saturating_sub(1).max(stream.first()),
            Start::Next => stream.next(),
            Start::Offset(offset) => offset.max(stream.first()),
            Start::Time(time_ms) => {
                let (low, high) = stream.pieces.around(time_ms);
                let (low, high) = (low.unwrap_or(stream.first()), high.unwrap_or(stream.visible()));
                self.place = Place::Seeking { time_ms, low, high };
                low
            }
        };
    }

    /// The search goes on: the message at `found`, the first at or after the middle of what is left, arrived then. None
    /// says that there is no message from the middle on.
    pub(super) fn narrow(&mut self, found: Option<(u64, u64)>) {
        let Place::Seeking { time_ms, low, high } = self.place else { return };
        let middle = low + (high - low) / 2;
        let (low, high) = match found {
            Some((offset, arrived_ms)) if arrived_ms < time_ms => (offset + 1, high),
            _ => (low, middle),
        };
        self.place = Place::Seeking { time_ms, low, high };
        self.check_found();
    }

    /// Where the search has to look next; None when it is over.
    pub(super) fn middle(&mut self) -> Option<u64> {
        self.check_found();
        match self.place {
            Place::Seeking { low, high, .. } => Some(low + (high - low) / 2),
            _ => None,
        }
    }

    fn check_found(&mut self) {
        if let Place::Seeking { low, high, .. } = self.place
            && low >= high
        {
            (self.place, self.next) = (Place::Found, low);
        }
    }

    fn is_at_end(&self, stream: &Stream) -> bool {
        self.place == Place::Found && self.next >= stream.visible()
    }

    /// The offset after those that are there.
    fn end(&self) -> u64 {
        let last = self.ahead.back().and_then(|chunk| chunk.messages.get(chunk.messages.len() - 1));
        last.map_or(self.next, |last| last.position + 1)
    }

    /// What should be read for it? Nothing while it follows what is in memory.
    #[inline]
    pub(super) fn wants_more(&self, stream: &Stream) -> Option<Range<u64>> {
        // What one read brought is being sent while others are under way. Where the second has to begin is known once
        // the first has told how large messages are.
        let out = self.asked.len();
        let count = self.ahead_count + out * READ_COUNT;
        let bytes = self.ahead_bytes + out * self.read_bytes.max(self.bytes_each);
        let enough = count >= READS_MAX * READ_COUNT || bytes >= READS_MAX * self.read_bytes;
        if enough || self.reads == READS_MAX || out > 0 && self.bytes_each == 0 {
            return None;
        }
        // A little less than there is room for: messages differ in size, and a read should end where it was meant to.
        let meant = (self.read_bytes / 16 * 15).checked_div(self.bytes_each);
        let count = meant.map_or(READ_COUNT, |count| count.clamp(1, READ_COUNT));
        let from = self.asked.back().map_or_else(|| self.end(), |offsets| offsets.end);
        (from < stream.visible() && from < stream.window_first()).then_some(from..from + count as u64)
    }

    /// The next message, if it is in memory. What is passed over is gone.
    #[inline]
    pub(super) fn take(&mut self, stream: &Stream, account: &Rc<Account>) -> Option<(u64, Rc<Message>)> {
        self.drop_spent();
        while let Some(chunk) = self.ahead.front_mut() {
            let stored = chunk.messages.get(chunk.at)?;
            if stored.position >= stream.visible() {
                return None;
            }
            let (offset, message) = (stored.position, chunk.decode(self.shares, account));
            self.pass(1);
            self.drop_spent();
            // What cannot be read is passed over.
            if let Some(message) = message {
                return Some((offset, Rc::new(message)));
            }
        }
        if self.next >= stream.visible() {
            return None;
        }
        let message = Rc::clone(stream.recent(self.next)?);
        self.next += 1;
        Some((self.next - 1, message))
    }
}

impl Chunk {
    /// The next message; it lies in the chunk if it may.
    fn decode(&mut self, shares: bool, account: &Rc<Account>) -> Option<Message> {
        let (start, stored) = (self.messages.place(self.at)?, self.messages.get(self.at)?);
        match shares {
            true => record::share(self.messages.bytes(), (start, stored), account, &mut self.names),
            false => record::decode(stored.head, stored.body, account, &mut self.names),
        }
    }
}

/// The same messages without what was read between them.
fn alone(messages: &Messages) -> Messages {
    let mut alone = Messages::default();
    for stored in messages.iter() {
        alone.add(stored.position, stored.head, std::iter::once(stored.body));
    }
    alone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_of_many_streams_holds_no_more_than_one_of_a_few() {
        let lane = |lanes| Lane::new(QueueId::from_raw(1), lanes, true).read_bytes;
        assert_eq!([1, 8, 80].map(lane), [READ_BYTES, READ_BYTES, READ_BYTES / 10]);
        assert!((1..=1_000).all(|lanes| lanes * lane(lanes) <= READ_BYTES_ALL), "together");
    }
}
