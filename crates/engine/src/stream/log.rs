//! Streams and the journal: appending, reading back, letting go.
//!
//! Owns the broker's part of streams. Messages come in from publishing as one more target of the same record; readers'
//! buffers are filled from disk; retention settles what is too old, too large or too many at the front. It must never
//! wait for a disk: reads go out as jobs and come back. Rules: docs/guides/streams.md, docs/internals/segment.md.

use std::rc::Rc;

use weft_journal::{Messages, Read};

use super::pieces::Excess;
use super::reader::{Lane, Place};
use super::{Retention, Stream};
use crate::broker::{Broker, ReadFor};
use crate::message::Message;
use crate::queue::consumers::{Consumer, ConsumerId, Target};
use crate::queue::ready::NEVER;
use crate::queue::{Queue, QueueId};
use crate::record;

/// What a stream of a node without a disk keeps, if nobody says how much.
const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// All message memory divided by this: the most that one stream may ask for on a node without a disk.
const MEMORY_SHARE: u64 = 8;
/// Retention by age is looked at no more often than this.
const TRIM_PAUSE_MS: u64 = 100;

impl Broker {
    /// A message for a stream: it gets the next offset. Whether the disk has it is seen to by `stored_streams`; nobody
    /// waits for that if the stream only watches.
    pub(crate) fn append(&mut self, id: QueueId, message: &Rc<Message>, watches: bool) -> bool {
        let (now_ms, has_disk) = (self.wall_ns / 1_000_000, self.store.is_some());
        let tight = self.ledger.used() > self.ledger.max() / 2;
        let Some(queue) = self.queues.get_mut(id) else { return false };
        let on_disk = has_disk && queue.settings.number != 0;
        let Some(stream) = queue.stream.as_deref_mut() else { return false };
        let retention = queue.settings.stream.unwrap_or_default();
        let keep = !on_disk || stream.readers > 0 && !tight;
        let begun = stream.append(message, &retention, now_ms, keep);
        queue.counters.published += 1;
        let (number, offset) = (queue.settings.number, stream.next() - 1);
        if on_disk {
            if keep {
                stream.bound_window();
            } else {
                stream.drop_window();
            }
            self.will_append(id, number, offset, watches);
        } else {
            stream.show_all();
            self.show(id);
        }
        if begun || tight && !on_disk {
            self.trim(id);
        }
        true
    }

    /// The disk has more: streams that waited for it show it to their readers.
    pub fn streams_synced(&mut self) {
        let synced = self.synced();
        for id in std::mem::take(&mut self.unsynced_streams) {
            let Some(stream) = self.stream_mut(id) else { continue };
            let more = stream.note_synced(synced);
            if !stream.unsynced.is_empty() {
                self.unsynced_streams.push(id);
            }
            if more {
                self.show(id);
            }
        }
    }

    /// Streams have a message that is in this batch, or none after all.
    pub(crate) fn stored_streams(&mut self, streams: &[QueueId], batch: Option<u64>, bytes: u64) {
        for id in streams {
            let Some(stream) = self.stream_mut(*id) else { continue };
            match batch {
                Some(batch) if stream.note_batch(batch) => self.unsynced_streams.push(*id),
                Some(_) => {}
                None => stream.retract(bytes),
            }
        }
    }

    fn stream_mut(&mut self, id: QueueId) -> Option<&mut Stream> {
        self.queues.get_mut(id)?.stream.as_deref_mut()
    }

    /// There is more to see: readers that were at the end look again, those of the whole stream too.
    fn show(&mut self, id: QueueId) {
        let Some(stream) = self.queues.get(id).and_then(|queue| queue.stream.as_deref()) else { return };
        if stream.wholes.is_empty() {
            return self.wake_readers(id);
        }
        for whole in stream.wholes.clone() {
            self.wake_readers(whole);
        }
        self.wake_readers(id);
    }

    fn wake_readers(&mut self, id: QueueId) {
        if self.queues.get(id).is_some_and(|queue| queue.ring.has_searched()) {
            self.wake_searched(id);
            self.touch(id);
        }
    }

    /// What a stream may keep.
    fn retention(&self, queue: &Queue) -> Retention {
        let asked = queue.settings.stream.unwrap_or_default();
        if self.store.is_some() && queue.settings.number != 0 {
            return asked;
        }
        let most = self.ledger.max() / MEMORY_SHARE;
        // Memory runs short: half of what is there has to do.
        let tight = self.ledger.used() > self.ledger.max() / 2;
        let most = if tight { most.min(queue.bytes() / 2) } else { most };
        Retention { bytes_max: Some(asked.bytes_max.unwrap_or(MEMORY_BYTES_DEFAULT).min(most)), ..asked }
    }

    /// Lets go what is beyond the stream's limits.
    pub(crate) fn trim(&mut self, id: QueueId) {
        let now_ms = self.wall_ns / 1_000_000;
        let Some(queue) = self.queues.get(id) else { return };
        let retention = self.retention(queue);
        let Some(stream) = self.stream_mut(id) else { return };
        match stream.pieces.excess(&retention, stream.next, now_ms) {
            Excess::None => {}
            Excess::Until(first) => {
                let old = stream.first();
                stream.cut(first);
                let number = self.queues.get(id).map_or(0, |queue| queue.settings.number);
                if let Some(store) = self.store.as_mut().filter(|_| number != 0) {
                    store.journal.ack_range(number, old, first - 1);
                }
            }
            Excess::Ask(offset) => self.ask(id, offset),
        }
        self.schedule(id);
    }

    /// When retention by age has to be looked at next.
    pub(crate) fn trim_at_ns(&self, id: QueueId) -> u64 {
        let Some(queue) = self.queues.get(id) else { return NEVER };
        let (Some(stream), Some(retention)) = (&queue.stream, &queue.settings.stream) else { return NEVER };
        let Some(at_ms) = stream.pieces.deadline_ms(retention) else { return NEVER };
        let wait_ms = at_ms.saturating_sub(self.wall_ns / 1_000_000).max(TRIM_PAUSE_MS);
        self.now_ns.saturating_add(wait_ms.saturating_mul(1_000_000))
    }

    /// Finds out when the message at an offset arrived.
    fn ask(&mut self, id: QueueId, offset: u64) {
        let number = self.queues.get(id).map_or(0, |queue| queue.settings.number);
        let Some(store) = &mut self.store else { return };
        match store.journal.read(number, offset, 1, 1) {
            Read::Empty => self.asked(id, offset, None),
            Read::Ready(messages) => self.asked(id, offset, Some(&messages)),
            Read::Waits(token) => store.reads.push((token, ReadFor::Retention(id, offset))),
        }
    }

    /// The answer to `ask`.
    pub(crate) fn asked(&mut self, id: QueueId, offset: u64, messages: Option<&Messages>) {
        let now_ms = self.wall_ns / 1_000_000;
        let found = messages.map(|messages| messages.iter().next().map(|stored| record::arrived_us(stored.head)));
        let Some(stream) = self.stream_mut(id) else { return };
        match found {
            // A sidecar had to be made first: once more, later.
            Some(None) => stream.pieces.tell(u64::MAX, 0),
            Some(Some(arrived_us)) => stream.pieces.tell(offset, arrived_us.map_or(now_ms, |us| us / 1_000)),
            None => stream.pieces.tell(offset, now_ms),
        }
        self.trim(id);
    }

    /// A reader joins its stream: where does it begin, in each part?
    pub(crate) fn begin_reading(&mut self, id: ConsumerId) {
        let Some(consumer) = self.consumers.get(id) else { return };
        let whole = consumer.queue;
        // A session of 0-9-1 keeps no message of a stream that it has written: settling needs its place only.
        let shares = matches!(consumer.target, Target::Amqp091 { .. });
        let parts = self.parts(whole);
        let count = parts.len();
        let lanes: Vec<Lane> = parts.into_iter().map(|part| Lane::new(part, count, shares)).collect();
        for lane in &lanes {
            let Some(stream) = self.stream_mut(lane.stream) else { continue };
            stream.readers += 1;
            if lane.stream != whole && !stream.wholes.contains(&whole) {
                stream.wholes.push(whole);
            }
        }
        let Some(reader) = self.consumers.get_mut(id).and_then(|consumer| consumer.reader.as_deref_mut()) else {
            return;
        };
        reader.lanes = lanes;
        if reader.wanted.name.is_none() || self.offsets.known || self.store.is_none() {
            return self.begin_lanes(id);
        }
        reader.lanes.iter_mut().for_each(|lane| lane.place = Place::Recalling);
        self.recall(id);
    }

    /// A reader begins in every lane.
    pub(super) fn begin_lanes(&mut self, id: ConsumerId) {
        let Some(mut reader) = self.consumers.get_mut(id).and_then(|consumer| consumer.reader.take()) else { return };
        for lane in &mut reader.lanes {
            self.begin_lane(id, &reader.wanted, lane);
        }
        let count = reader.lanes.len();
        if let Some(consumer) = self.consumers.get_mut(id) {
            consumer.reader = Some(reader);
        }
        (0..count).for_each(|lane| self.seek(id, lane));
    }

    /// Looks for the place of a reader that wants a time, step by step.
    fn seek(&mut self, id: ConsumerId, at: usize) {
        while let Some(consumer) = self.consumers.get_mut(id) {
            let lane = consumer.reader.as_deref_mut().and_then(|reader| reader.lanes.get_mut(at));
            let Some(lane) = lane.filter(|lane| !lane.is_reading()) else { return };
            let Some(middle) = lane.middle() else { break };
            let Some(queue) = self.queues.get(lane.stream) else { return };
            let Some(stream) = &queue.stream else { return };
            if let Some(message) = stream.recent(middle.max(stream.first())) {
                lane.narrow(Some((middle.max(stream.first()), message.traits.arrived_us / 1_000)));
                continue;
            }
            let Some(store) = &mut self.store else {
                lane.narrow(None);
                continue;
            };
            match store.journal.read(queue.settings.number, middle, 1, 1) {
                Read::Empty => lane.narrow(None),
                Read::Ready(messages) => lane.narrow(stamp(&messages)),
                Read::Waits(token) => {
                    lane.ask(middle..middle);
                    store.reads.push((token, ReadFor::Reader(id, at, middle)));
                    return;
                }
            }
        }
        self.wake(id);
    }

    /// Reads on for a lane that runs low.
    pub(super) fn read_ahead(&mut self, id: ConsumerId, at: usize, lane: &mut Lane) {
        let (Some(store), Some(queue)) = (&mut self.store, self.queues.get(lane.stream)) else { return };
        let Some(stream) = &queue.stream else { return };
        lane.drop_spent();
        let number = queue.settings.number;
        while let Some(offsets) = lane.wants_more(stream) {
            let (from, count) = (offsets.start, offsets.end - offsets.start);
            // What is in memory comes at once, and not before what the disk was asked for.
            if lane.is_reading() && !store.journal.is_on_disk(number, from) {
                return;
            }
            match store.journal.read(number, from, count as usize, lane.read_bytes) {
                // Retention took what was left: the reader goes on where the stream does.
                Read::Empty => return lane.next = lane.next.max(stream.window_first()),
                Read::Ready(messages) => return lane.push(messages, &self.own_account),
                Read::Waits(token) => {
                    lane.ask(offsets);
                    store.reads.push((token, ReadFor::Reader(id, at, from)));
                }
            }
        }
    }

    /// A read for a reader has come back, if the reader is still there.
    pub(crate) fn read_came(&mut self, id: ConsumerId, (at, from): (usize, u64), messages: Messages) {
        let Some(mut reader) = self.consumers.get_mut(id).and_then(|consumer| consumer.reader.take()) else { return };
        if let Some(lane) = reader.lanes.get_mut(at)
            && lane.answered(from)
        {
            match lane.place {
                Place::Seeking { .. } => stamp(&messages).into_iter().for_each(|found| lane.narrow(Some(found))),
                _ => lane.came(messages, &self.own_account),
            }
        }
        if let Some(consumer) = self.consumers.get_mut(id) {
            consumer.reader = Some(reader);
        }
        self.seek(id, at);
    }

    /// A reader has left: streams that nobody reads need nothing in memory.
    pub(crate) fn end_reading(&mut self, consumer: &Consumer) {
        let has_disk = self.store.is_some();
        for lane in consumer.reader.iter().flat_map(|reader| &reader.lanes) {
            let Some(queue) = self.queues.get_mut(lane.stream) else { continue };
            let on_disk = has_disk && queue.settings.number != 0;
            let Some(stream) = queue.stream.as_deref_mut() else { continue };
            stream.readers -= 1;
            if stream.readers == 0 && on_disk {
                stream.drop_window();
            }
        }
    }
}

/// Offset and arrival of the first of these.
fn stamp(messages: &Messages) -> Option<(u64, u64)> {
    let stored = messages.iter().next()?;
    Some((stored.position, record::arrived_us(stored.head)? / 1_000))
}
