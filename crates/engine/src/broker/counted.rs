//! How often stored messages came back, remembered over a restart.
//!
//! Owns the counts of failed deliveries that outlive the process: without them a poison message would begin anew with
//! every start, and a delivery limit would never be reached. A failed delivery comes in; once a turn, all that failed
//! in it go to the journal as a few records, under a number that no queue has. Reading a queue back waits until the
//! counts are known. It must never delay a redelivery: a count is as safe as the last write, not more. Rule:
//! docs/guides/durability.md, "What is kept".

use weft_journal::{Messages, Read, Target};

use super::Broker;
use super::stored::{ReadFor, Store};
use crate::hash::{Map, Seeded};
use crate::queue::{Queue, QueueId};

/// The journal's number for records of counts: Python never makes one this large.
const NUMBER: u64 = (1 << 62) + 3;
/// Messages whose counts are remembered: of more than this many that failed and still wait, the others begin anew.
const COUNTS_MAX: usize = 1 << 18;
/// Counts in one record: one that stays may keep that many on disk.
const RECORD_COUNTS: usize = 64;
/// First byte of a record of counts.
const KIND: u8 = 0xF1;
const ROW_BYTES: usize = 20;
const READ_COUNT: usize = 256;
const READ_BYTES: usize = 512 << 10;

/// A message: the number of its queue, and its position there.
type Key = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Count {
    failures: u32,
    /// The record that says so, if it was written.
    record: Option<u64>,
    /// It says less than is true.
    stale: bool,
}

/// Counts of messages that wait.
#[derive(Debug)]
pub(super) struct Counts {
    rows: Map<Key, Count>,
    /// How many rows each record is still needed for.
    records: Map<u64, u32>,
    stale: Vec<Key>,
    next_position: u64,
    /// Where the records end that are read at a start; 0 when they were.
    reads_until: u64,
    /// Queues that were emptied before their counts were read: from this position on.
    gone: Vec<Key>,
    /// Queues that are to be read on when the counts are known.
    waiting: Vec<QueueId>,
}

impl Counts {
    pub(super) fn new(seed: Seeded) -> Self {
        let (rows, records) = (Map::with_hasher(seed), Map::with_hasher(seed));
        let (stale, gone, waiting) = (Vec::new(), Vec::new(), Vec::new());
        Self { rows, records, stale, next_position: 0, reads_until: 0, gone, waiting }
    }

    /// Deliveries of this message that failed, as far as it is remembered.
    #[inline]
    pub(super) fn of(&self, queue_no: u64, position: u64) -> u32 {
        if self.rows.is_empty() { 0 } else { self.rows.get(&(queue_no, position)).map_or(0, |row| row.failures) }
    }

    /// A message has failed so often.
    fn note(&mut self, key: Key, failures: u32) {
        if self.rows.len() >= COUNTS_MAX && !self.rows.contains_key(&key) {
            return;
        }
        let row = self.rows.entry(key).or_insert(Count { failures, record: None, stale: false });
        row.failures = failures;
        if !std::mem::replace(&mut row.stale, true) {
            self.stale.push(key);
        }
    }

    /// A record is needed for one row less; true if for none.
    fn release(&mut self, record: u64) -> bool {
        let Some(left) = self.records.get_mut(&record) else { return false };
        *left -= 1;
        let free = *left == 0;
        if free {
            self.records.remove(&record);
        }
        free
    }

    /// A message is gone; the record that is needed no more.
    fn remove(&mut self, key: Key) -> Option<u64> {
        let record = self.rows.remove(&key)?.record?;
        self.release(record).then_some(record)
    }

    /// Messages of a queue are gone, from a position on; the records that are needed no more.
    fn remove_from(&mut self, (queue_no, first): Key) -> Vec<u64> {
        if self.reads_until > 0 {
            self.gone.push((queue_no, first));
        }
        let keys = self.rows.keys().filter(|key| key.0 == queue_no && key.1 >= first);
        let keys: Vec<Key> = keys.copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// A record as it was found on disk, of which messages may wait that `waits` knows; the records that are needed no
    /// more, this one perhaps.
    fn restore(&mut self, head: &[u8], record: u64, mut waits: impl FnMut(Key) -> bool) -> Vec<u64> {
        let (mut used, mut free) = (0, Vec::new());
        for (key, failures) in decode(head) {
            let gone = self.gone.iter().any(|gone| gone.0 == key.0 && gone.1 <= key.1);
            if gone || self.rows.len() >= COUNTS_MAX || !waits(key) {
                continue;
            }
            let row = Count { failures, record: Some(record), stale: false };
            // An older record says less of the same message, if its end was not written any more.
            if let Some(old) = self.rows.insert(key, row).and_then(|old| old.record) {
                free.extend(self.release(old).then_some(old));
            }
            used += 1;
        }
        if used > 0 {
            self.records.insert(record, used);
        } else {
            free.push(record);
        }
        free
    }

    /// Writes what changed since the last time.
    fn store(&mut self, store: &mut Store) {
        let stale = std::mem::take(&mut self.stale);
        for keys in stale.chunks(RECORD_COUNTS) {
            let (mut head, position) = (vec![KIND], self.next_position);
            let mut used = 0;
            for key in keys {
                if let Some(row) = self.rows.get_mut(key) {
                    row.stale = false;
                    encode(*key, row.failures, &mut head);
                    used += 1;
                }
            }
            let target = Target { queue_no: NUMBER, position, expires_ms: 0, transient: false };
            if used == 0 || store.journal.append_message(&head, std::iter::empty(), &[target]).is_err() {
                continue;
            }
            self.next_position += 1;
            self.records.insert(position, used);
            for key in keys {
                let Some(row) = self.rows.get_mut(key) else { continue };
                if let Some(old) = row.record.replace(position)
                    && self.release(old)
                {
                    store.journal.ack(NUMBER, old);
                }
            }
        }
    }
}

impl Broker {
    /// A delivery failed, and the message is back in its queue.
    pub(super) fn count_failure(&mut self, queue_no: u64, position: u64, failures: u32) {
        if self.store.is_some() && queue_no != 0 {
            self.counts.note((queue_no, position), failures);
        }
    }

    /// Stores what failed in this turn.
    pub(crate) fn store_counts(&mut self) {
        if let Some(store) = self.store.as_mut().filter(|_| !self.counts.stale.is_empty()) {
            self.counts.store(store);
        }
    }

    /// A message left its queue for good.
    #[inline]
    pub(super) fn forget_count(&mut self, queue_no: u64, position: u64) {
        if !self.counts.rows.is_empty()
            && let Some(record) = self.counts.remove((queue_no, position))
            && let Some(store) = &mut self.store
        {
            store.journal.ack(NUMBER, record);
        }
    }

    /// All messages of a queue are gone from a position on.
    pub(super) fn forget_counts(&mut self, queue_no: u64, first: u64) {
        let records = self.counts.remove_from((queue_no, first));
        let Some(store) = &mut self.store else { return };
        for record in records {
            store.journal.ack(NUMBER, record);
        }
    }

    /// Must a queue wait until the counts are known? It is read on then.
    pub(super) fn awaits_counts(&mut self, id: QueueId) -> bool {
        let awaits = self.counts.reads_until > 0 || self.prepared.coming.is_some();
        if awaits && !self.counts.waiting.contains(&id) {
            self.counts.waiting.push(id);
        }
        awaits
    }

    /// The node has a disk: what was counted before this start counts again.
    pub(super) fn find_counts(&mut self) -> bool {
        let Some(store) = &mut self.store else { return false };
        let Some(at) = store.found.iter().position(|found| found.queue_no == NUMBER) else { return false };
        let found = store.found.swap_remove(at);
        (self.counts.next_position, self.counts.reads_until) = (found.next_position, found.next_position);
        self.read_counts(found.first_position);
        true
    }

    fn read_counts(&mut self, from: u64) {
        let Some(store) = &mut self.store else { return };
        if from >= self.counts.reads_until {
            return self.counts_read();
        }
        match store.journal.read(NUMBER, from, READ_COUNT, READ_BYTES) {
            Read::Empty => self.counts_read(),
            Read::Ready(messages) => self.counts_came(from, &messages),
            Read::Waits(token) => store.reads.push((token, ReadFor::Counts(from))),
        }
    }

    /// Records of counts have come from disk; more may wait behind them.
    pub(super) fn counts_came(&mut self, from: u64, messages: &Messages) {
        let (mut next, until) = (from, self.counts.reads_until);
        let Some(store) = &mut self.store else { return };
        for stored in messages.iter().take_while(|stored| stored.position < until) {
            next = stored.position + 1;
            let waits = |(queue_no, position): Key| store.journal.waits(queue_no, position);
            for record in self.counts.restore(stored.head, stored.position, waits) {
                store.journal.ack(NUMBER, record);
            }
        }
        self.read_counts(next);
    }

    /// Everything is known: queues are read on.
    fn counts_read(&mut self) {
        (self.counts.reads_until, self.counts.gone) = (0, Vec::new());
        self.read_prepared();
    }

    /// Counts and promises of the last life are known.
    pub(super) fn recovered(&mut self) {
        for id in std::mem::take(&mut self.counts.waiting) {
            if self.queues.get(id).is_some_and(Queue::is_cold) {
                self.arrived.push(id);
            }
            self.touch(id);
        }
    }
}

fn encode(key: Key, failures: u32, head: &mut Vec<u8>) {
    head.extend_from_slice(&key.0.to_le_bytes());
    head.extend_from_slice(&key.1.to_le_bytes());
    head.extend_from_slice(&failures.to_le_bytes());
}

/// The counts of a record; bytes that are none give none.
fn decode(head: &[u8]) -> impl Iterator<Item = (Key, u32)> {
    let rows = head.strip_prefix(&[KIND]).unwrap_or_default().chunks_exact(ROW_BYTES);
    rows.filter_map(|row| {
        let (queue_no, row) = row.split_first_chunk()?;
        let (position, row) = row.split_first_chunk()?;
        let failures = row.first_chunk()?;
        let key = (u64::from_le_bytes(*queue_no), u64::from_le_bytes(*position));
        Some((key, u32::from_le_bytes(*failures)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        Counts::new(Seeded(1))
    }

    fn record(rows: &[(Key, u32)]) -> Vec<u8> {
        let mut head = vec![KIND];
        rows.iter().for_each(|(key, failures)| encode(*key, *failures, &mut head));
        head
    }

    #[test]
    fn a_record_is_needed_as_long_as_one_of_its_messages_waits() {
        let mut own = counts();
        assert_eq!(
            own.restore(&record(&[((1, 5), 2), ((1, 6), 3), ((2, 5), 4), ((3, 5), 4)]), 9, |key| key.0 != 3),
            []
        );
        assert_eq!((own.of(1, 5), own.of(1, 6), own.of(2, 5), own.of(2, 6), own.of(3, 5)), (2, 3, 4, 0, 0));
        assert_eq!(own.remove((1, 5)), None);
        assert_eq!(own.remove((1, 5)), None);
        assert_eq!(own.remove_from((1, 0)), []);
        assert_eq!(own.remove((2, 5)), Some(9));
        assert!(own.rows.is_empty() && own.records.is_empty());
    }

    #[test]
    fn what_was_emptied_before_it_was_read_does_not_come_back() {
        let mut own = counts();
        own.reads_until = 10;
        assert_eq!(own.remove_from((1, 6)), []);
        assert_eq!(own.restore(&record(&[((1, 5), 2), ((1, 6), 3)]), 8, |_| true), []);
        assert_eq!((own.of(1, 5), own.of(1, 6)), (2, 0));
        assert_eq!(own.restore(&record(&[((1, 7), 2)]), 9, |_| true), [9]);
    }

    #[test]
    fn a_later_record_takes_the_place_of_one_whose_end_was_not_written() {
        let mut own = counts();
        assert_eq!(own.restore(&record(&[((1, 5), 2), ((1, 6), 2)]), 3, |_| true), []);
        assert_eq!(own.restore(&record(&[((1, 5), 3)]), 4, |_| true), []);
        assert_eq!(own.restore(&record(&[((1, 6), 3)]), 5, |_| true), [3]);
        assert_eq!((own.of(1, 5), own.of(1, 6), own.records.len()), (3, 3, 2));
    }

    #[test]
    fn bytes_that_rotted_count_nothing() {
        let head = record(&[((1, 5), 2)]);
        assert_eq!(decode(&head).collect::<Vec<_>>(), [((1, 5), 2)]);
        (0..head.len()).for_each(|len| assert_eq!(decode(&head[..len]).count(), 0, "{len}"));
        assert_eq!(decode(&[0; 21]).count(), 0);
    }
}
