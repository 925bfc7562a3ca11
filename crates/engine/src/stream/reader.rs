//! One reader of a stream: where it is, and what was read ahead for it.
//!
//! Owns a reader's lanes, one for each stream it reads: the next offset, the bounded buffer of messages that came
//! from disk, and the search for the place where it begins. `log.rs` fills them, `serve.rs` empties them. It must
//! never hold more than a read or two of messages ahead. Rule: offsets rise; what retention removed is passed over.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::Stream;
use super::start::Start;
use crate::message::{Message, Name};
use crate::queue::{Queue, QueueId};
use crate::slab::Slab;

/// Messages and bytes that are read from disk for a reader at a time.
pub(super) const READ_COUNT: usize = 1_024;
pub(super) const READ_BYTES: usize = 1 << 20;
/// More is read once fewer messages and bytes are there: enough to go on with while the disk is asked.
const AHEAD_COUNT: usize = 1_024;
const AHEAD_BYTES: usize = 768 << 10;

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
    /// Messages from disk, in order, from `next` on.
    ahead: VecDeque<(u64, Rc<Message>)>,
    ahead_bytes: usize,
    /// What messages ahead lie in, with the last offset in each.
    buffers: VecDeque<(u64, Arc<Vec<u8>>)>,
    /// What was read is passed on without a copy: nobody keeps it longer than this lane.
    pub(super) shares: bool,
    /// A read is under way.
    pub(super) reading: bool,
    /// Where settled offsets are noted, one more than its index; 0 for nowhere.
    pub(super) tracker: u16,
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
            ahead_bytes: 0,
            buffers: VecDeque::new(),
            shares,
            reading: false,
            tracker: 0,
        }
    }

    /// A message has come from disk.
    #[inline]
    pub(super) fn push(&mut self, offset: u64, message: Message) {
        self.ahead_bytes += message.body_len();
        self.ahead.push_back((offset, Rc::new(message)));
    }

    /// What was pushed since the last call lies in these bytes.
    pub(super) fn hold(&mut self, bytes: &Arc<Vec<u8>>) {
        let last = self.ahead.back().map_or(self.next, |last| last.0);
        self.buffers.push_back((last, Arc::clone(bytes)));
    }

    /// Bytes of which every message has been delivered, unless somebody else still has one.
    #[inline]
    pub(super) fn spent(&mut self) -> Option<Vec<u8>> {
        self.buffers.front().filter(|(last, _)| *last < self.next)?;
        Arc::into_inner(self.buffers.pop_front()?.1)
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
        if self.reading || self.ahead.len() >= AHEAD_COUNT || self.ahead_bytes >= AHEAD_BYTES {
            return None;
        }
        let from = self.ahead.back().map_or(self.next, |last| last.0 + 1);
        (from < stream.visible() && from < stream.window_first()).then_some(from)
    }

    /// The next message, if it is in memory. What is passed over is gone.
    #[inline]
    pub(super) fn take(&mut self, stream: &Stream) -> Option<(u64, Rc<Message>)> {
        if let Some((offset, _)) = self.ahead.front() {
            if *offset >= stream.visible() {
                return None;
            }
            let (offset, message) = self.ahead.pop_front()?;
            self.next = offset + 1;
            self.ahead_bytes -= message.body_len();
            return Some((offset, message));
        }
        if self.next >= stream.visible() {
            return None;
        }
        let message = Rc::clone(stream.recent(self.next)?);
        self.next += 1;
        Some((self.next - 1, message))
    }
}
