//! Ids of barriers that outlive the messages beside them.
//!
//! Owns the way of ids out of segments that are kept for nothing else. Such a segment is read by a job; its ids that
//! still count are appended again, close to each other, and it may go. It must never move ids that are most of their
//! segment already: they would be moved for ever. Rule: docs/internals/segment.md, "The life of a segment".

use std::sync::Arc;

use crate::aside::set_aside;
use crate::digest::{BarrierAt, Digest};
use crate::error::Fault;
use crate::format::Opened;
use crate::job::{RebuildWork, Work};
use crate::journal::Journal;
use crate::record::decode_barrier;
use crate::scan::Log;
use crate::segment::{Removal, Segment, State};
use crate::sidecar;
use crate::storage::Storage;

/// Ids are moved out of a segment of which they are less than one part in so many: at most this many times their own
/// size is kept on disk for them, and what is moved in all stays a small part of what is written.
const THIN: u64 = 16;

/// Reads the ids of a segment.
#[derive(Debug)]
pub(crate) struct IdsWork {
    pub(crate) segment: u32,
    log_bytes: u32,
    /// Where they are, if no sidecar says so.
    digest: Option<Arc<Digest>>,
    now_ms: u64,
    pub(crate) outcome: Option<Result<Vec<Ids>, Fault>>,
}

/// Ids of one barrier with the same end.
#[derive(Debug)]
pub(crate) struct Ids {
    barrier_no: u64,
    until_ms: u64,
    bytes: Vec<u8>,
}

impl IdsWork {
    pub(crate) fn run(&self, storage: &dyn Storage) -> Result<Vec<Ids>, Fault> {
        let mut log = Log::new(storage, self.segment, u64::from(self.log_bytes));
        let mut found = Vec::new();
        for place in self.places(storage)?.iter().filter(|place| place.until_ms > self.now_ms) {
            match log.record(place.offset)?.and_then(decode_barrier) {
                Some((barrier_no, until_ms, ids)) => found.push(Ids { barrier_no, until_ms, bytes: ids.to_vec() }),
                // The segment goes, and these bytes with it.
                None => drop(set_aside(storage, self.segment, &place.stretch())?),
            }
        }
        Ok(found)
    }

    /// Where the ids are; a sidecar that does not tell is made again, since nobody else reads this segment.
    fn places(&self, storage: &dyn Storage) -> Result<Vec<BarrierAt>, Fault> {
        if let Some(digest) = &self.digest {
            return Ok(digest.barriers.clone());
        }
        match sidecar::load(storage, self.segment, u64::from(u32::MAX)) {
            Ok(Opened::Known(digest)) => Ok(digest.barriers),
            _ => Ok(RebuildWork::new(self.segment, self.log_bytes, false).run(storage)?.barriers),
        }
    }
}

impl Segment {
    /// Is it here for the sake of a few ids alone?
    fn is_thin(&self, now_ms: u64) -> bool {
        let dead = self.live == 0 && self.removal == Removal::Alive && !self.is_open() && !self.held;
        dead && self.keep_until_ms > now_ms && self.ids_bytes * THIN < u64::from(self.bytes) && !self.index_damaged
    }
}

impl Journal {
    /// The next segment whose ids are worth moving, once there is enough to be won.
    pub(crate) fn gather_ids(&mut self) -> Option<Work> {
        let (now_ms, synced) = (self.keeper.now_ms, self.writer.synced());
        let thin = || {
            let thin = |segment: &Segment| segment.is_thin(now_ms) && segment.last_batch <= synced;
            self.table.segments.iter().filter(move |(_, segment)| thin(segment))
        };
        if thin().map(|(_, segment)| u64::from(segment.bytes)).sum::<u64>() < self.config.compact_bytes.max(1) {
            return None;
        }
        let (&number, segment) = thin().next()?;
        let digest = match &segment.state {
            State::Closed(digest) => Some(Arc::clone(digest)),
            _ => None,
        };
        let work = IdsWork { segment: number, log_bytes: segment.bytes, digest, now_ms, outcome: None };
        self.pin(&[number]);
        Some(Work::Ids(work))
    }

    /// Appends what was found; the segment goes when that is synced.
    pub(crate) fn gathered_ids(&mut self, work: IdsWork) -> Result<(), Fault> {
        self.unpin(&[work.segment]);
        let found = work.outcome.unwrap_or_else(|| Err(Fault::not_run()))?;
        let now_ms = self.keeper.now_ms;
        for Ids { barrier_no, until_ms, bytes } in found.into_iter().filter(|ids| ids.until_ms > now_ms) {
            // Those with the same end become one record.
            self.remember(barrier_no, until_ms, &bytes);
        }
        let batch = self.writer.number();
        if let Some(segment) = self.table.segments.get_mut(&work.segment) {
            segment.keep_until_ms = 0;
            segment.dead_batch = segment.dead_batch.max(batch);
        }
        Ok(())
    }
}
