//! What named readers have settled, remembered by the node.
//!
//! Owns the trackers of streams and their records in the journal: a reader that comes back under its name goes on
//! behind the last message of which it had settled all before. Deliveries and settlements come in; a record per
//! tracker and turn goes to the journal, under a number that no queue has. It must never go past a message that was
//! given back. Rule: docs/guides/streams.md, "Readers with a name".

use std::collections::VecDeque;
use std::ops::Range;

use weft_journal::{Messages, Read, Target};

use super::reader::{Lane, Wanted};
use super::start::Start;
use crate::broker::{Broker, Outcome, ReadFor};
use crate::message::Name;
use crate::queue::QueueId;
use crate::queue::consumers::ConsumerId;
use crate::queue::ready::Entry;

/// The journal's number for records of offsets: Python never makes one this large.
const NUMBER: u64 = (1 << 62) + 1;
/// Names that one stream remembers.
pub const NAMES_MAX: usize = 10_000;
/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;
/// First byte of a record of an offset.
const KIND: u8 = 0xF0;
const READ_COUNT: usize = 1_024;
const READ_BYTES: usize = 256 << 10;

/// What the node knows of one name.
#[derive(Debug)]
pub struct Tracker {
    pub name: Name,
    /// The last offset of which it and all before are settled.
    pub settled: Option<u64>,
    /// The reader that moves it: whoever came last under this name.
    owner: Option<ConsumerId>,
    /// Offsets delivered to the owner, and whether each is settled.
    out: VecDeque<(u64, bool)>,
    /// A message was given back: whoever comes next begins there.
    held: bool,
    /// Its record in the journal, and whether it is an old one.
    position: Option<u64>,
    stale: bool,
}

/// Is everything that was remembered before this start in memory?
#[derive(Debug, Default)]
pub(crate) struct Offsets {
    pub(super) known: bool,
    next_position: u64,
    /// Readers that wait to be told where they were.
    waiting: Vec<ConsumerId>,
    /// Trackers whose record is an old one.
    stale: Vec<(QueueId, u16)>,
}

impl Tracker {
    fn new(name: Name) -> Self {
        Self { name, settled: None, owner: None, out: VecDeque::new(), held: false, position: None, stale: false }
    }

    fn settle(&mut self, offset: u64) {
        if let Ok(at) = self.out.binary_search_by_key(&offset, |out| out.0) {
            self.out[at].1 = true;
        }
        while self.out.front().is_some_and(|out| out.1) {
            self.settled = self.out.pop_front().map(|out| out.0);
        }
    }

    fn give_back(&mut self, offset: u64) {
        let at = self.out.partition_point(|out| out.0 < offset);
        if at < self.out.len() {
            self.out.truncate(at);
            self.held = true;
        }
    }
}

impl Broker {
    /// May a stream remember this name?
    pub fn may_track(&self, id: QueueId, name: &[u8]) -> bool {
        let may = |id: QueueId| {
            let Some(stream) = self.queues.get(id).and_then(|queue| queue.stream.as_deref()) else { return false };
            stream.trackers.len() < NAMES_MAX || stream.trackers.iter().any(|tracker| *tracker.name == *name)
        };
        name.len() <= NAME_BYTES_MAX && !name.is_empty() && self.parts(id).into_iter().all(may)
    }

    /// A reader has a name, and what was settled before this start is not known: it begins when that was read.
    pub(super) fn recall(&mut self, id: ConsumerId) {
        self.offsets.waiting.push(id);
        if self.offsets.waiting.len() == 1 {
            self.read_offsets(0);
        }
    }

    /// A reader begins: where it was, if it has a name that was here before.
    pub(super) fn begin_lane(&mut self, id: ConsumerId, wanted: &Wanted, lane: &mut Lane) {
        let Some(stream) = self.queues.get_mut(lane.stream).and_then(|queue| queue.stream.as_deref_mut()) else {
            return;
        };
        let mut start = wanted.start;
        if let Some(name) = wanted.name.clone() {
            let known = stream.trackers.iter().position(|tracker| tracker.name == name);
            let at = known.unwrap_or(stream.trackers.len());
            if known.is_none() {
                stream.trackers.push(Tracker::new(name));
            }
            let tracker = &mut stream.trackers[at];
            let before = tracker.owner.replace(id);
            tracker.held = false;
            tracker.out.clear();
            if let Some(consumer) = before.and_then(|before| self.consumers.get_mut(before)) {
                let lanes = consumer.reader.iter_mut().flat_map(|reader| &mut reader.lanes);
                lanes.filter(|other| other.stream == lane.stream).for_each(|other| other.tracker = 0);
            }
            if let Some(settled) = tracker.settled {
                start = Start::Offset(settled + 1);
            }
            lane.tracker = at as u16 + 1;
        }
        lane.begin(stream, start);
    }

    /// An entry goes to a reader.
    #[inline]
    pub(super) fn track(&mut self, id: QueueId, entry: &Entry) {
        if entry.reader > 1
            && let Some(tracker) = self.tracker(id, entry.reader).filter(|tracker| !tracker.held)
        {
            tracker.out.push_back((entry.position, false));
        }
    }

    fn tracker(&mut self, id: QueueId, reader: u16) -> Option<&mut Tracker> {
        let stream = self.queues.get_mut(id)?.stream.as_deref_mut()?;
        stream.trackers.get_mut(usize::from(reader.checked_sub(2)?))
    }

    /// The same of many that are behind each other.
    #[inline]
    pub(super) fn track_all(&mut self, id: QueueId, reader: u16, offsets: impl Iterator<Item = u64>) {
        if reader > 1
            && let Some(tracker) = self.tracker(id, reader).filter(|tracker| !tracker.held)
        {
            tracker.out.extend(offsets.map(|offset| (offset, false)));
        }
    }

    /// A reader has settled deliveries that are behind each other, or gave them back.
    pub(crate) fn settle_run(&mut self, id: QueueId, reader: u16, offsets: Range<u64>, outcome: Outcome) {
        let count = offsets.end - offsets.start;
        self.totals.settled += if outcome == Outcome::Accepted { count } else { 0 };
        let Some(queue) = self.queues.get_mut(id) else { return };
        queue.unsettled -= count as usize;
        queue.counters.settled += count;
        if reader > 1 {
            offsets.for_each(|offset| self.settle_offset(id, reader, offset, outcome));
        }
    }

    /// A reader has settled an entry, or gave it back.
    pub(crate) fn settle_read(&mut self, id: QueueId, entry: &Entry, outcome: Outcome) {
        self.settle_offset(id, entry.reader, entry.position, outcome);
    }

    fn settle_offset(&mut self, id: QueueId, reader: u16, offset: u64, outcome: Outcome) {
        let Some(tracker) = self.tracker(id, reader) else { return };
        if matches!(outcome, Outcome::Returned { .. }) {
            return tracker.give_back(offset);
        }
        let before = tracker.settled;
        tracker.settle(offset);
        if tracker.settled != before && !std::mem::replace(&mut tracker.stale, true) {
            self.offsets.stale.push((id, reader));
        }
    }

    /// Stores what was settled in this turn: one record per tracker, which takes the place of its last one.
    pub(crate) fn store_offsets(&mut self) {
        if self.offsets.stale.is_empty() {
            return;
        }
        for (id, reader) in std::mem::take(&mut self.offsets.stale) {
            let number = self.queues.get(id).map_or(0, |queue| queue.settings.number);
            let position = self.offsets.next_position;
            let Some(tracker) = self.tracker(id, reader) else { continue };
            tracker.stale = false;
            let head = encode(number, tracker);
            let old = tracker.position;
            let Some(store) = &mut self.store else { continue };
            let target = Target { queue_no: NUMBER, position, expires_ms: 0, transient: false };
            if store.journal.append_message(&head, std::iter::empty(), &[target]).is_err() {
                continue;
            }
            old.map(|old| store.journal.ack(NUMBER, old));
            self.offsets.next_position += 1;
            if let Some(tracker) = self.tracker(id, reader) {
                tracker.position = Some(position);
            }
        }
    }

    /// A stream is gone, and with it what was remembered of its readers.
    pub(crate) fn forget_offsets(&mut self, trackers: &[Tracker]) {
        if let Some(store) = &mut self.store {
            for position in trackers.iter().filter_map(|tracker| tracker.position) {
                store.journal.ack(NUMBER, position);
            }
        }
    }

    /// Reads what was remembered before this start, from a position on.
    fn read_offsets(&mut self, from: u64) {
        let Some(store) = &mut self.store else { return };
        if let Some(at) = store.found.iter().position(|found| found.queue_no == NUMBER) {
            self.offsets.next_position = store.found.swap_remove(at).next_position;
        }
        match store.journal.read(NUMBER, from, READ_COUNT, READ_BYTES) {
            Read::Empty => self.offsets_read(),
            Read::Ready(messages) => self.offsets_came(from, &messages),
            Read::Waits(token) => store.reads.push((token, ReadFor::Offsets(from))),
        }
    }

    /// Records of offsets have come from disk.
    pub(crate) fn offsets_came(&mut self, from: u64, messages: &Messages) {
        let mut next = from;
        for stored in messages.iter() {
            next = stored.position + 1;
            let known = decode(stored.head).filter(|record| self.remember(record, stored.position));
            if known.is_none()
                && let Some(store) = &mut self.store
            {
                // Its stream is gone.
                store.journal.ack(NUMBER, stored.position);
            }
        }
        self.read_offsets(next);
    }

    /// Puts a record back into its stream; false if there is no such stream.
    fn remember(&mut self, record: &(u64, u64, Name), position: u64) -> bool {
        let Some(queue) = self.queues.iter_mut().find(|queue| queue.settings.number == record.0) else { return false };
        let Some(stream) = queue.stream.as_deref_mut() else { return false };
        let mut tracker = Tracker::new(Name::clone(&record.2));
        (tracker.settled, tracker.position) = (Some(record.1), Some(position));
        stream.trackers.push(tracker);
        true
    }

    /// Everything is known: readers with a name begin.
    fn offsets_read(&mut self) {
        self.offsets.known = true;
        for id in std::mem::take(&mut self.offsets.waiting) {
            self.begin_lanes(id);
        }
    }
}

fn encode(number: u64, tracker: &Tracker) -> Vec<u8> {
    let mut head = vec![KIND];
    head.extend_from_slice(&number.to_le_bytes());
    head.extend_from_slice(&tracker.settled.unwrap_or(0).to_le_bytes());
    head.extend_from_slice(&tracker.name);
    head
}

/// (stream, offset, name) of a record.
fn decode(head: &[u8]) -> Option<(u64, u64, Name)> {
    let rest = head.strip_prefix(&[KIND])?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let (offset, name) = rest.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), u64::from_le_bytes(*offset), Name::from(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker(out: &[u64]) -> Tracker {
        let mut tracker = Tracker::new(Name::from(&b"one"[..]));
        tracker.out = out.iter().map(|offset| (*offset, false)).collect();
        tracker
    }

    #[test]
    fn it_moves_only_over_what_is_settled_without_a_gap() {
        let mut own = tracker(&[4, 5, 7, 9]);
        own.settle(5);
        assert_eq!(own.settled, None);
        own.settle(4);
        assert_eq!(own.settled, Some(5));
        own.settle(9);
        own.settle(100);
        assert_eq!(own.settled, Some(5));
        own.settle(7);
        assert_eq!((own.settled, own.out.len()), (Some(9), 0));
    }

    #[test]
    fn what_is_given_back_holds_it() {
        let mut own = tracker(&[4, 5, 7, 9]);
        own.give_back(7);
        own.settle(9);
        own.settle(4);
        own.settle(5);
        assert_eq!((own.settled, own.held), (Some(5), true));
        own.give_back(100);
        assert_eq!(own.settled, Some(5));
    }

    #[test]
    fn records_come_back() {
        let mut own = tracker(&[]);
        own.settled = Some(77);
        let (number, offset, name) = decode(&encode(5, &own)).expect("it is one");
        assert_eq!((number, offset, &*name), (5, 77, &b"one"[..]));
        for len in 0..17 {
            assert!(decode(&encode(5, &own)[..len]).is_none(), "{len}");
        }
    }
}
