//! One segment file, as the journal remembers it.
//!
//! Owns a segment's counts and where it stands between being written and being removed. The table changes the counts,
//! housekeeping moves it on. It must never hold anything per message once its sidecar is written. Rule:
//! docs/internals/segment.md, "The life of a segment".

use std::sync::Arc;

use crate::digest::{BarrierAt, Digest};
use crate::format::{FILE_HEADER_BYTES, span};
use crate::hash::Map;
use crate::ranges::Ranges;

/// A segment with fewer than one live message in this many is sparse.
const SPARSE: u64 = 4;

/// Acknowledged ranges that an open segment notes one by one: 4 MiB of them.
const NOTED_RANGES_MAX: usize = 256 << 10;

/// Where a segment stands.
#[derive(Debug)]
pub(crate) enum State {
    /// Batches are still added.
    Open(Box<Settled>),
    /// Complete; its digest waits to become a sidecar.
    Closed(Arc<Digest>),
    /// It has a sidecar.
    Sealed,
}

/// What an open segment records about messages in itself and in older segments.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) queues: Map<Noted>,
    /// Ranges noted in all of them.
    ranges: usize,
    pub(crate) barriers: Vec<BarrierAt>,
}

/// What an open segment records about one queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    pub(crate) deleted: bool,
    /// Too much to note, or a checkpoint: whatever is settled when the segment is closed.
    pub(crate) everything: bool,
    pub(crate) ranges: Ranges,
}

impl Settled {
    pub(crate) fn split(&self, barriers: Vec<BarrierAt>) -> Self {
        Self { queues: self.queues.clone(), ranges: self.ranges, barriers }
    }

    fn note(&mut self, queue_no: u64, ranges: &Ranges) {
        let noted = self.queues.entry(queue_no).or_default();
        if noted.everything {
            return;
        }
        let before = noted.ranges.count();
        noted.ranges.extend(ranges);
        self.ranges += noted.ranges.count() - before;
        if self.ranges > NOTED_RANGES_MAX {
            self.ranges = 0;
            for noted in self.queues.values_mut() {
                *noted = Noted { deleted: noted.deleted, everything: true, ranges: Ranges::default() };
            }
        }
    }
}

/// How far the removal of a dead segment has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Alive,
    /// Its last facts are being written again, in this batch or an earlier one.
    Awaits(u64),
    /// A job is at it.
    Out,
}

/// A segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) state: State,
    /// Where its valid bytes end.
    pub(crate) bytes: u32,
    pub(crate) last_batch: u64,
    /// (message, queue) pairs ever written to it, and those that wait.
    pub(crate) refs: u64,
    pub(crate) live: u64,
    /// The batch in which its last message was settled or moved.
    pub(crate) dead_batch: u64,
    pub(crate) removal: Removal,
    /// Queues with a row here.
    pub(crate) queues: Vec<u64>,
    /// Queues whose settled messages are recorded here, once it is closed.
    pub(crate) settled: Vec<u64>,
    /// Ids of an idempotency barrier count until then.
    pub(crate) keep_until_ms: u64,
    /// Bytes of their records.
    pub(crate) ids_bytes: u64,
    /// Jobs that read it.
    pub(crate) readers: u32,
    /// Its sidecar was found wrong and must be written again.
    pub(crate) index_damaged: bool,
    /// It has damage that could not be copied, or an end that is not on the disk for sure: neither its log nor its lack
    /// of a sidecar may be touched.
    pub(crate) held: bool,
}

impl Segment {
    pub(crate) fn open() -> Self {
        Self {
            state: State::Open(Box::default()),
            bytes: FILE_HEADER_BYTES as u32,
            last_batch: 0,
            refs: 0,
            live: 0,
            dead_batch: 0,
            removal: Removal::Alive,
            queues: Vec::new(),
            settled: Vec::new(),
            keep_until_ms: 0,
            ids_bytes: 0,
            readers: 0,
            index_damaged: false,
            held: false,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Few of its messages wait.
    pub(crate) fn is_sparse(&self) -> bool {
        self.live * SPARSE < self.refs
    }

    /// What could be won by moving its live messages elsewhere.
    pub(crate) fn dead_bytes(&self) -> u64 {
        let dead = u128::from(self.refs - self.live.min(self.refs));
        (u128::from(self.bytes) * dead / u128::from(self.refs.max(1))) as u64
    }

    /// Notes that positions of a queue are settled, by a record in this segment.
    pub(crate) fn note_settled(&mut self, queue_no: u64, ranges: &Ranges) {
        if let State::Open(settled) = &mut self.state {
            settled.note(queue_no, ranges);
        }
    }

    /// Notes that everything settled in a queue is recorded in this segment.
    pub(crate) fn note_checkpoint(&mut self, queue_no: u64, deleted: bool) {
        if let State::Open(settled) = &mut self.state {
            *settled.queues.entry(queue_no).or_default() =
                Noted { deleted, everything: true, ranges: Ranges::default() };
        }
    }

    pub(crate) fn note_barrier(&mut self, barrier: BarrierAt) {
        self.keep_until_ms = self.keep_until_ms.max(barrier.until_ms);
        self.ids_bytes += span(barrier.length as usize) as u64;
        if let State::Open(settled) = &mut self.state {
            settled.barriers.push(barrier);
        }
    }
}
