//! Browsers and selectors go through a backlog on disk without taking it into memory.
//!
//! Owns the search behind a queue's window. A consumer that has looked at everything in memory comes in; the next
//! message that it wants comes out, read from disk a piece at a time, or nothing while a piece is on its way. What a
//! selector takes there leaves the queue out of turn: the rest keeps its order and its place. It must never fill the
//! window, which belongs to those that take messages as they come. Rule: docs/guides/durability.md, "Long queues".

use weft_journal::{Messages, Read};

use super::Broker;
use super::reading::Reading;
use super::stored::ReadFor;
use crate::queue::QueueId;
use crate::queue::consumers::ConsumerId;
use crate::queue::ready::Entry;
use crate::queue::scan::{SCAN_BYTES, SCAN_COUNT, Scan};

/// What a search came to.
pub enum Searched {
    /// The next message that is wanted; it was taken, unless the consumer browses.
    Found(Entry),
    /// The steps were spent.
    Spent,
    /// There is nothing more now.
    Nothing,
}

impl Broker {
    /// The next message on disk that a searching consumer wants, looking at most at `steps` messages.
    pub fn search_cold(&mut self, id: QueueId, consumer: ConsumerId, steps: &mut u32) -> Searched {
        let Some(mut scan) = self.consumers.get_mut(consumer).map(|consumer| consumer.scan.take().unwrap_or_default())
        else {
            return Searched::Nothing;
        };
        let searched = loop {
            match self.search_piece(id, consumer, &mut scan, steps) {
                Searched::Nothing if self.read_piece(id, consumer, &mut scan) => {}
                searched => break searched,
            }
        };
        if let Some(consumer) = self.consumers.get_mut(consumer) {
            consumer.scan = Some(scan);
        }
        searched
    }

    /// Looks through what was read ahead.
    fn search_piece(&mut self, id: QueueId, consumer: ConsumerId, scan: &mut Scan, steps: &mut u32) -> Searched {
        let (Some(queue), Some(consumer)) = (self.queues.get_mut(id), self.consumers.get_mut(consumer)) else {
            return Searched::Nothing;
        };
        let (Some(cold), Some(store)) = (queue.cold, &mut self.store) else {
            scan.ahead.clear();
            return Searched::Nothing;
        };
        let number = queue.settings.number;
        while let Some(position) = scan.ahead.front().map(|entry| entry.position) {
            if *steps == 0 {
                return Searched::Spent;
            }
            *steps -= 1;
            let Some(entry) = scan.ahead.pop_front() else { break };
            // What is in the window by now was looked at there; what is settled, or with somebody else, is gone.
            if position < cold.next.max(consumer.cursor.position()) || !store.journal.waits(number, position) {
                continue;
            }
            consumer.cursor.pass(position);
            let entry = match queue.out_of_turn.get(&position) {
                None => entry,
                Some(Some(returned)) => returned.copy(),
                Some(None) => continue,
            };
            let wanted = consumer.filter.as_deref().is_none_or(|filter| filter.wants(&entry));
            if !wanted || entry.expires_ns < self.now_ns {
                continue;
            }
            if !consumer.browse {
                queue.take_out_of_turn(position, entry.message.body_len() as u64);
                queue.unsettled += 1;
                consumer.delivered += 1;
            }
            return Searched::Found(entry);
        }
        Searched::Nothing
    }

    /// Reads the next piece for a search. False if it is yet to come, or if there is none.
    fn read_piece(&mut self, id: QueueId, consumer: ConsumerId, scan: &mut Scan) -> bool {
        if self.awaits_counts(id) {
            return false;
        }
        let (Some(store), Some(queue)) = (&mut self.store, self.queues.get(id)) else { return false };
        let Some(cold) = queue.cold.filter(|_| !scan.reading) else { return false };
        let passed = self.consumers.get_mut(consumer).map_or(0, |consumer| consumer.cursor.position());
        scan.from = scan.from.max(cold.next).max(passed);
        let end = queue.next_position();
        if scan.from >= end {
            return false;
        }
        match store.journal.read(queue.settings.number, scan.from, SCAN_COUNT, SCAN_BYTES) {
            Read::Empty => scan.from = end,
            // Nothing that can be read now: the next that comes into the queue makes it look again.
            Read::Ready(messages) if messages.is_empty() => return false,
            Read::Ready(messages) => self.keep_piece(id, scan, &messages),
            Read::Waits(token) => {
                scan.reading = true;
                store.reads.push((token, ReadFor::Search(consumer, scan.from)));
                return false;
            }
        }
        true
    }

    fn keep_piece(&self, id: QueueId, scan: &mut Scan, messages: &Messages) {
        let Some(queue) = self.queues.get(id) else { return };
        let known = queue.cold.map_or(0, |cold| cold.known);
        let mut reading = Reading::new(self.now_ns, self.wall_ns, &self.own_account, &self.counts);
        for stored in messages.iter() {
            scan.from = stored.position + 1;
            // What rotted is found, and settled, when its turn comes.
            scan.ahead.extend(reading.entry(queue.settings.number, known, &stored));
        }
    }

    /// A piece has come from disk, if its reader is still there.
    pub(super) fn piece_came(&mut self, consumer: ConsumerId, from: u64, messages: &Messages, damaged: u64) {
        let Some(found) = self.consumers.get_mut(consumer) else { return };
        let (id, scan) = (found.queue, found.scan.take());
        let mut scan = scan.unwrap_or_default();
        scan.reading = false;
        if scan.from == from {
            self.keep_piece(id, &mut scan, messages);
        }
        if let Some(consumer) = self.consumers.get_mut(consumer) {
            consumer.scan = Some(scan);
        }
        if let Some(cold) = self.queues.get_mut(id).and_then(|queue| queue.cold.as_mut()) {
            cold.count = cold.count.saturating_sub(damaged);
        }
        self.wake_searched(id);
        self.touch(id);
    }
}
