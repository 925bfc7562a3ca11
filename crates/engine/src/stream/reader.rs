//! One reader of a stream: where it is, and what was read ahead for it.
//!
//! Owns a reader's lanes, one for each stream it reads: the next offset, the bounded buffer of messages that came
//! from disk, and the search for the place where it begins. `log.rs` fills them, `serve.rs` empties them. It must
//! never hold more than a read or two of messages ahead. Rule: offsets rise; what retention removed is passed over.

use std::collections::VecDeque;
use std::rc::Rc;

use weft_journal::{Messages, Stored};

use super::Stream;
use super::start::Start;
use crate::memory::{Account, Charge};
use crate::message::{Message, Name};
use crate::queue::{Queue, QueueId};
use crate::record;
use crate::slab::Slab;

/// Messages and bytes that are read from disk for a reader at a time.
pub(super) const READ_COUNT: usize = 2_048;
pub(super) const READ_BYTES: usize = 2_000 << 10;
/// More is read once fewer messages and bytes are there: what one read brings is being sent while the disk is asked for
/// the next.
const AHEAD_COUNT: usize = READ_COUNT;
const AHEAD_BYTES: usize = READ_BYTES;
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
    /// A read is under way.
    pub(super) reading: bool,
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
    pub(super) fn new(stream: QueueId, shares: bool) -> Self {
        Self {
            stream,
            place: Place::Found,
            next: 0,
            ahead: VecDeque::new(),
            ahead_count: 0,
            ahead_bytes: 0,
            shares,
            reading: false,
            tracker: 0,
        }
    }

    /// Messages have come from disk.
    pub(super) fn push(&mut self, messages: Messages, account: &Rc<Account>) {
        // The disk refused, or a sidecar has to be made first: it is asked again.
        if messages.is_empty() {
            return;
        }
        let useful: usize = messages.iter().map(|stored| stored.body.len()).sum();
        // Where most of what was read belongs to others, it is not kept for the sake of a few.
        let messages = if messages.bytes_read() <= KEEP_FACTOR * useful { messages } else { alone(&messages) };
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

    /// Should more be read for it? Not while it follows what is in memory.
    #[inline]
    pub(super) fn wants_more(&self, stream: &Stream) -> Option<u64> {
        if self.reading || self.ahead_count >= AHEAD_COUNT || self.ahead_bytes >= AHEAD_BYTES {
            return None;
        }
        let last = self.ahead.back().and_then(|chunk| chunk.messages.get(chunk.messages.len() - 1));
        let from = last.map_or(self.next, |last| last.position + 1);
        (from < stream.visible() && from < stream.window_first()).then_some(from)
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
