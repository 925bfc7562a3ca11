//! One queue: what waits in it, who wants it, and its limits.
//!
//! Owns ready entries, the ring of consumers, and the settings Python compiled. Messages come in by `enqueue`, leave by
//! `pop` or for good by limits; what must be dead-lettered is returned to the caller, because a queue does not route.
//! It must never know a session or an exchange. Rules: RabbitMQ's queue arguments (docs/reference/queues.md).

pub mod consumers;
pub mod doubts;
pub mod ready;
pub mod scan;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::barrier::{self, Barrier};
use crate::broker::{ReceiptId, VhostId};
use crate::durability::{Durability, Needs};
use crate::message::{Message, Name};
use crate::slab::Id;
use crate::stats::Latency;
use crate::stream::{Retention, Stream};
use consumers::Ring;
use doubts::Doubts;
use ready::{Entry, NEVER, Ready};

/// Stored messages that a queue keeps in memory; what comes after them is read from disk when its turn comes.
const WINDOW_COUNT: usize = 8_192;
const WINDOW_BYTES: u64 = 8 << 20;

/// A queue reads on from disk when it holds less than this: enough to deliver while the disk thread is at work, and a
/// fraction of the window, because what is read is in memory twice for a moment, and freed memory is not given back at
/// once.
const LOW_COUNT: usize = 2_048;
const LOW_BYTES: u64 = 2 << 20;
/// Messages read from disk at a time, or the first few where only a clock waits for them.
pub const FETCH_COUNT: usize = 1_024;
const FETCH_HEAD_COUNT: usize = 64;

/// Names a queue.
pub type QueueId = Id<Queue>;

/// What happens to a message that finds the queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    #[default]
    DropHead,
    RejectPublish,
    RejectPublishDeadLetter,
}

/// Settings of a queue, as compiled by Python from arguments and policies.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub durable: bool,
    /// What its durable messages survive; without a word of its own, as the node says.
    pub durability: Option<Durability>,
    pub auto_delete: bool,
    /// The connection (raw id) an exclusive queue belongs to; 0, which no connection has, is the node itself.
    pub owner: Option<u64>,
    pub message_ttl_ms: Option<u64>,
    pub expires_ms: Option<u64>,
    pub length_max: Option<u64>,
    pub length_bytes_max: Option<u64>,
    pub overflow: Overflow,
    pub dead_letter_exchange: Option<Name>,
    pub dead_letter_key: Option<Name>,
    pub priority_max: u8,
    pub single_active: bool,
    pub delivery_limit: Option<u32>,
    pub delete_when_empty: bool,
    /// The number of its messages in the journal; 0 for a queue that is not stored.
    pub number: u64,
    /// The stream that gets a copy of whatever this queue is offered.
    pub tap: Option<Name>,
    /// The streams that this one consists of, and the place of this one among its like.
    pub parts: Vec<Name>,
    pub part: Option<u32>,
    /// It is a stream, and keeps this much.
    pub stream: Option<Retention>,
    /// What it holds back as duplicates.
    pub barrier: Option<barrier::Settings>,
    /// Publishers are answered by the consumers of their messages.
    pub end_to_end: bool,
}

/// The part of a queue that is on disk only: everything behind its window.
#[derive(Clone, Copy, Debug)]
pub struct Cold {
    /// Where reading goes on.
    pub next: u64,
    /// Messages that wait there, and the bytes of their bodies.
    pub count: u64,
    pub bytes: u64,
    /// Positions below this were there before the node was started.
    pub known: u64,
    /// A read is under way.
    pub reading: bool,
}

/// Counters since the queue was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub published: u64,
    pub delivered: u64,
    pub settled: u64,
    pub returned: u64,
    pub redelivered: u64,
    pub expired: u64,
    pub dropped: u64,
    pub dead_lettered: u64,
}

/// What became of an offered message.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    Taken,
    /// Refused by `reject-publish`; the flag says that it is to be dead-lettered.
    Rejected {
        dead_letter: bool,
    },
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    pub name: Name,
    pub vhost: VhostId,
    pub settings: Settings,
    pub ready: Ready,
    pub cold: Option<Cold>,
    /// What a search took from disk before its turn: nothing while a consumer has it, itself if it came back.
    pub out_of_turn: BTreeMap<u64, Option<Entry>>,
    /// Its log, if it is a stream: then nothing is ever ready.
    pub stream: Option<Box<Stream>>,
    pub barrier: Option<Box<Barrier>>,
    /// Positions of messages whose publishers wait for their end.
    pub pledges: BTreeMap<u64, ReceiptId>,
    /// Messages that another node may have already.
    pub doubts: Option<Box<Doubts>>,
    pub ring: Ring,
    /// Entries delivered and not settled.
    pub unsettled: usize,
    pub counters: Counters,
    /// How long messages wait in it and with its consumers, from the first delivery on.
    pub latency: Option<Box<Latency>>,
    /// The node has sent an answer to a request here: it delivers even while others do not.
    pub answers: bool,
    /// Waits in the broker's list of queues to pump.
    pub dirty: bool,
    /// The last routing that reached this queue: one copy per publish.
    pub mark: u64,
    /// When it was last used, for `expires`.
    pub used_ns: u64,
    /// The earliest timer set for this queue.
    pub timer_ns: u64,
    next_position: u64,
    last_expires_ns: u64,
    /// From each of these positions on, messages are shown only when the disk is that far.
    gates: VecDeque<(u64, Needs)>,
}

impl Queue {
    pub fn new(vhost: VhostId, name: Name, settings: Settings, now_ns: u64) -> Self {
        Self {
            name,
            vhost,
            ready: Ready::new(settings.priority_max),
            stream: settings.stream.map(|_| Box::default()),
            settings,
            cold: None,
            out_of_turn: BTreeMap::new(),
            barrier: None,
            pledges: BTreeMap::new(),
            doubts: None,
            ring: Ring::default(),
            unsettled: 0,
            counters: Counters::default(),
            latency: None,
            answers: false,
            dirty: false,
            mark: 0,
            used_ns: now_ns,
            timer_ns: NEVER,
            next_position: 0,
            last_expires_ns: NEVER,
            gates: VecDeque::new(),
        }
    }

    /// Goes on as a queue that was stored before.
    pub fn resume(&mut self, next_position: u64, cold: Cold) {
        self.next_position = self.next_position.max(next_position);
        self.cold = Some(cold).filter(|cold| cold.count > 0);
    }

    /// Does it belong to the node itself? Nobody else sees it or takes from it.
    pub fn is_own(&self) -> bool {
        self.settings.owner == Some(0)
    }

    /// Messages that wait, in memory and on disk.
    #[inline]
    pub fn len(&self) -> usize {
        let stream = self.stream.as_ref().map_or(0, |stream| stream.len());
        self.ready.len() + self.cold.map_or(0, |cold| cold.count as usize) + stream
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When its first message came to this node, in microseconds since 1970; None if it is empty, or if that is on
    /// disk only.
    pub fn oldest_us(&self) -> Option<u64> {
        self.ready.peek().map(|entry| entry.message.traits.arrived_us)
    }

    /// Bytes of all bodies, in memory and on disk.
    #[inline]
    pub fn bytes(&self) -> u64 {
        let stream = self.stream.as_ref().map_or(0, |stream| stream.bytes());
        self.ready.bytes() + self.cold.map_or(0, |cold| cold.bytes) + stream
    }

    /// Does the next message have to come from disk? A queue with priorities knows its next only once it has read them
    /// all.
    #[inline]
    pub fn is_cold(&self) -> bool {
        self.cold.is_some() && (self.ready.is_empty() || self.ready.has_priorities())
    }

    /// How many should it read on from disk? Many where a consumer or a limit waits for them, else a few: the clock of
    /// the first one runs even if nobody asks for it.
    #[inline]
    pub fn wants_more(&self) -> Option<usize> {
        let low = self.ready.len() < LOW_COUNT && self.ready.bytes() < LOW_BYTES;
        let low = low || self.ready.has_priorities();
        self.cold.as_ref().filter(|cold| low && !cold.reading)?;
        let priorities_wanted = self.ready.has_priorities() && self.ring.has_searched();
        if self.ring.next().is_some() || priorities_wanted || self.is_limited() {
            return Some(FETCH_COUNT);
        }
        self.ready.is_empty().then_some(FETCH_HEAD_COUNT)
    }

    /// Number, position and end of the message that was offered last.
    #[inline]
    pub fn last_offered(&self) -> (u64, u64, u64) {
        (self.settings.number, self.next_position - 1, self.last_expires_ns)
    }

    /// The position the next message will get: where a browser that only wants new ones starts.
    pub fn next_position(&self) -> u64 {
        self.next_position
    }

    /// The message at this position passed a barrier: it is shown only once it is safe, with all that come after it.
    pub fn hide(&mut self, position: u64, needs: Needs) {
        if self.gates.back().is_none_or(|last| last.1 != needs) {
            self.gates.push_back((position, needs));
        }
    }

    /// Nothing at all is shown until the disk is that far, which is farther than whatever was waited for so far.
    pub fn hide_all(&mut self, needs: Needs) {
        self.gates.clear();
        self.gates.push_back((0, needs));
    }

    /// Is there something that is not to be seen yet?
    #[inline]
    pub fn hides(&self) -> bool {
        !self.gates.is_empty()
    }

    /// The first position that is not to be seen while the disk is where it is.
    pub fn first_hidden(&mut self, reached: Needs) -> Option<u64> {
        while self.gates.front().is_some_and(|gate| gate.1.are_met(reached)) {
            self.gates.pop_front();
        }
        self.gates.front().map(|gate| gate.0)
    }

    /// Is this message there after a restart?
    #[inline]
    pub fn keeps(&self, message: &Message) -> bool {
        message.traits.durable && self.settings.durable && self.settings.durability != Some(Durability::Memory)
    }

    /// Takes a message in, or refuses it; not one that `must` in. What is too much then is left for `pop_excess`, after
    /// delivery.
    #[inline]
    pub fn offer(&mut self, message: &Rc<Message>, now_ns: u64, stored: bool, must: bool) -> Offer {
        if self.settings.overflow != Overflow::DropHead && !must && self.is_full(message.body_len()) {
            self.counters.dropped += 1;
            return Offer::Rejected { dead_letter: self.settings.overflow == Overflow::RejectPublishDeadLetter };
        }
        let ttl_ms = match (self.settings.message_ttl_ms, message.traits.ttl_ms) {
            (Some(queue), Some(own)) => Some(queue.min(own)),
            (one, other) => one.or(other),
        };
        let expires_ns = ttl_ms.map_or(NEVER, |ms| now_ns.saturating_add(ms.saturating_mul(1_000_000)));
        let position = self.next_position;
        self.next_position += 1;
        self.last_expires_ns = expires_ns;
        self.counters.published += 1;
        if stored && self.stays_cold(position, message.body_len() as u64) {
            return Offer::Taken;
        }
        let entry = Entry {
            message: Rc::clone(message),
            position,
            expires_ns,
            since_ns: now_ns,
            failures: message.traits.delivery_count,
            redelivered: message.traits.delivery_count > 0,
            stored,
            reader: 0,
        };
        self.ready.push_back(entry);
        Offer::Taken
    }

    /// A stored message behind a full window is left on disk until its turn comes. Lanes of priority are kept whole.
    fn stays_cold(&mut self, position: u64, bytes: u64) -> bool {
        if !self.spills() {
            return false;
        }
        if let Some(cold) = &mut self.cold {
            cold.count += 1;
            cold.bytes += bytes;
            return true;
        }
        self.cold = Some(Cold { next: position, count: 1, bytes, known: 0, reading: false });
        true
    }

    /// Do new messages wait on disk? Yes behind a full window, and behind others that wait there, or they would
    /// overtake.
    #[inline]
    pub fn spills(&self) -> bool {
        let full = self.ready.len() >= WINDOW_COUNT || self.ready.bytes() >= WINDOW_BYTES;
        self.cold.is_some() || full && !self.ready.has_priorities()
    }

    /// A search has taken a message behind the window.
    pub fn take_out_of_turn(&mut self, position: u64, bytes: u64) {
        self.out_of_turn.insert(position, None);
        let Some(cold) = &mut self.cold else { return };
        cold.count = cold.count.saturating_sub(1);
        cold.bytes = cold.bytes.saturating_sub(bytes);
        if cold.count == 0 {
            self.end_cold();
        }
    }

    /// Nothing waits on disk any more.
    pub fn end_cold(&mut self) {
        self.cold = None;
        self.out_of_turn.clear();
    }

    /// A message that came back, at its old place; which lane that is.
    pub fn put_back(&mut self, entry: Entry) -> usize {
        let (position, bytes) = (entry.position, entry.message.body_len() as u64);
        match (&mut self.cold, self.out_of_turn.get_mut(&position)) {
            (Some(cold), Some(place)) if position >= cold.next => {
                cold.count += 1;
                cold.bytes += bytes;
                *place = Some(entry);
                0
            }
            _ => self.ready.put_back(entry),
        }
    }

    fn is_full(&self, more_bytes: usize) -> bool {
        self.settings.length_max.is_some_and(|max| self.len() as u64 >= max)
            || self.settings.length_bytes_max.is_some_and(|max| self.bytes() + more_bytes as u64 > max)
    }

    /// Is there a limit on its length?
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.settings.length_max.is_some() || self.settings.length_bytes_max.is_some()
    }

    /// Is it longer than it may be, and drops its head then?
    #[inline]
    fn is_over(&self) -> bool {
        let over = self.settings.length_max.is_some_and(|max| self.len() as u64 > max)
            || self.settings.length_bytes_max.is_some_and(|max| self.bytes() > max);
        over && self.settings.overflow == Overflow::DropHead
    }

    /// Must it be pumped before it gets another message? Who waits takes one before the limit is looked at; and what
    /// becomes the head by the limit may have died of its time already, and leaves its place to another.
    #[inline]
    pub fn wants_pump(&mut self) -> bool {
        self.is_limited() && (self.ring.next().is_some() || self.ready.is_timed() && self.is_over())
    }

    /// The head, if the queue is longer than it may be and drops heads.
    #[inline]
    pub fn pop_excess(&mut self) -> Option<Entry> {
        if !self.is_over() {
            return None;
        }
        let entry = self.ready.pop_front()?;
        self.counters.dropped += 1;
        Some(entry)
    }

    /// The head, if its time is over. A message with no time at all may still be delivered in the turn it came in.
    #[inline]
    pub fn pop_expired(&mut self, now_ns: u64) -> Option<Entry> {
        if self.ready.front()?.expires_ns >= now_ns {
            return None;
        }
        self.counters.expired += 1;
        self.ready.pop_front()
    }

    /// When this queue next wants to be looked at: the head expires, or the queue itself does.
    pub fn deadline_ns(&mut self) -> u64 {
        let head = self.ready.front().map_or(NEVER, |entry| entry.expires_ns.saturating_add(1));
        let idle = match self.settings.expires_ms {
            Some(ms) if self.ring.is_empty() => self.used_ns.saturating_add(ms.saturating_mul(1_000_000)),
            _ => NEVER,
        };
        let doubts = self.doubts.as_ref().map_or(NEVER, |doubts| doubts.next_ns());
        head.min(idle).min(doubts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::message;

    #[test]
    fn a_few_large_messages_are_enough_to_hold() {
        let settings = Settings { length_max: Some(1_000), ..Settings::default() };
        let mut queue = Queue::new(VhostId::from_raw(0), Rc::from(&b"q"[..]), settings, 0);
        queue.cold = Some(Cold { next: 0, count: 100, bytes: 100 << 20, known: 0, reading: false });
        assert_eq!(queue.wants_more(), Some(FETCH_COUNT));
        let large = vec![0; 1 << 20];
        for position in 0..2 {
            let entry = Entry {
                message: message(&large, 0),
                position,
                expires_ns: NEVER,
                since_ns: 0,
                failures: 0,
                redelivered: false,
                stored: true,
                reader: 0,
            };
            queue.ready.push_back(entry);
        }
        assert_eq!(queue.wants_more(), None);
    }
}
