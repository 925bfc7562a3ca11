//! Acknowledgements of the batch being built.
//!
//! Owns what is settled since the last batch, merged per queue, and the queues that need a checkpoint: a record of
//! everything settled in them. They become ACKS records when the batch ends, so a thousand acknowledgements in order
//! cost one record. It must never outlive its batch. Rule: docs/internals/segment.md, "ACKS".

use crate::format::Kind;
use crate::hash::Map;
use crate::journal::Journal;
use crate::ranges::Ranges;

/// A checkpoint is cut into records of about this many ranges.
const RANGES_PER_RECORD: usize = 64 << 10;

/// Ids of a barrier are cut into records of about this size.
const IDS_BYTES_PER_RECORD: usize = 1 << 20;
/// Most batches hold ids of one barrier or a few; of many, some are begun again.
const BARRIERS_SEARCHED: usize = 8;

/// What the batch being built must say at its end.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    acks: Vec<(u64, Ranges)>,
    index: Map<usize>,
    checkpoints: Vec<u64>,
    /// Ids of barriers: number, end, and the ids one after the other.
    ids: Vec<(u64, u64, Vec<u8>)>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.checkpoints.is_empty() && self.ids.is_empty()
    }

    #[inline]
    pub(crate) fn note(&mut self, queue_no: u64, first: u64, last: u64) {
        let at = *self.index.entry(queue_no).or_insert_with(|| {
            self.acks.push((queue_no, Ranges::default()));
            self.acks.len() - 1
        });
        self.acks[at].1.push(first, last);
    }

    /// An id of a barrier, until a time.
    pub(crate) fn remember(&mut self, barrier_no: u64, until_ms: u64, id: &[u8]) {
        let place =
            self.ids.iter_mut().rev().take(BARRIERS_SEARCHED).find(|ids| (ids.0, ids.1) == (barrier_no, until_ms));
        match place {
            Some((_, _, ids)) if ids.len() < IDS_BYTES_PER_RECORD => ids.extend_from_slice(id),
            _ => self.ids.push((barrier_no, until_ms, id.to_vec())),
        }
    }

    /// A deleted queue has nothing more to say.
    pub(crate) fn forget(&mut self, queue_no: u64) {
        if let Some(at) = self.index.get(&queue_no) {
            self.acks[*at].1 = Ranges::default();
        }
    }

    /// The batch being built shall record everything settled in this queue.
    pub(crate) fn checkpoint(&mut self, queue_no: u64) {
        self.checkpoints.push(queue_no);
    }

    pub(crate) fn has_checkpoints(&self) -> bool {
        !self.checkpoints.is_empty()
    }
}

impl Journal {
    /// Writes what is pending at the end of the batch being built.
    pub(crate) fn flush_pending(&mut self) {
        let mut acks = std::mem::take(&mut self.pending.acks);
        self.pending.index.clear();
        for (queue_no, ranges) in &mut acks {
            if !ranges.is_empty() {
                ranges.normalize();
                self.put_acks(*queue_no, ranges);
            }
        }
        // The list is used again: its room is that of a busy batch.
        acks.clear();
        self.pending.acks = acks;
        for (barrier_no, until_ms, ids) in std::mem::take(&mut self.pending.ids) {
            self.put_barrier(barrier_no, until_ms, &ids);
        }
        for queue_no in std::mem::take(&mut self.pending.checkpoints) {
            self.put_checkpoint(queue_no);
        }
    }

    fn put_acks(&mut self, queue_no: u64, ranges: &Ranges) {
        let put = self.writer.put(Kind::Acks, 0, |out| {
            out.extend_from_slice(&queue_no.to_le_bytes());
            ranges.encode(out);
        });
        if let Some(segment) = self.table.segments.get_mut(&put.segment) {
            segment.note_settled(queue_no, ranges);
        }
    }

    fn put_checkpoint(&mut self, queue_no: u64) {
        let Some(queue) = self.table.queues.get_mut(&queue_no) else { return };
        queue.checkpoint = (self.writer.segment(), self.writer.number());
        if queue.deleted {
            self.put_deleted(queue_no);
            return;
        }
        let (mut from, mut next) = (0, queue.next);
        if let Some(segment) = self.table.segments.get_mut(&self.writer.segment()) {
            segment.note_checkpoint(queue_no, false);
        }
        while from < next {
            let Some(queue) = self.table.queues.get(&queue_no) else { return };
            let (ranges, end) = queue.settled(from, RANGES_PER_RECORD);
            (from, next) = (end, queue.next);
            if !ranges.is_empty() {
                self.put_acks(queue_no, &ranges);
            }
        }
    }
}
