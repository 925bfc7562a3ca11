//! Housekeeping: segments are sealed, emptied, removed and prepared.
//!
//! Owns the choice of what to do next while nothing else is urgent, one job at a time. The table says which segments
//! stirred; jobs go out, outcomes come back. A segment is removed only when nothing in it waits, what it says of
//! older ones is said again later, and the disk has answered for all that. It must never hold up a write. Rule:
//! docs/internals/segment.md, "The life of a segment".

use std::sync::Arc;

use crate::error::Fault;
use crate::format::FLAG_MOVED;
use crate::job::{PrepareWork, ReadWork, RebuildWork, RemoveWork, SealWork, Work};
use crate::journal::{Done, Journal};
use crate::read::{Gathered, Pick};
use crate::record::{Message, Target};
use crate::segment::{Removal, Segment, State};

/// Queues whose checkpoint goes into one batch: more would make the engine wait.
const CHECKPOINTS_PER_BATCH: usize = 512;
/// Messages, and bytes, moved by one step of compaction.
const MOVE_COUNT_MAX: usize = 512;
const MOVE_BYTES_MAX: usize = 1 << 20;
/// Where batches are larger than this on the average, new blocks cost little beside what is written to them, and zeros
/// would cost as much again.
const PREPARE_BATCH_MAX: usize = 128 << 10;
/// Compaction waits while this much is not on disk.
const MOVE_PENDING_MAX: usize = 8 << 20;

/// What housekeeping remembers.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// A job is out.
    pub(crate) busy: bool,
    /// Something waits for a batch to be synced.
    pub(crate) waits: bool,
    /// The disk refused; wait for `retry` or a write that succeeds.
    pub(crate) paused: bool,
    pub(crate) spares: Vec<u32>,
    pub(crate) next_spare: u32,
    /// The spare given to a segment whose first write is under way.
    creating: Option<(u32, Option<u32>)>,
    /// A spare being made, and how far it is.
    preparing: Option<(u32, u64)>,
    /// The size of batches, on the average of some.
    batch_bytes: usize,
    /// The newest segment whose file is there for sure.
    created: u32,
    checkpointing: Option<Checkpointing>,
    /// The segment being emptied.
    moving: Option<u32>,
    pub(crate) now_ms: u64,
    /// A dead segment waits for this time.
    wake_ms: u64,
}

/// A dead segment, the queues whose settled messages must be recorded again before it goes, and a batch that must be
/// synced too.
#[derive(Debug)]
struct Checkpointing {
    segment: u32,
    queues: Vec<u64>,
    batch: u64,
}

impl Keeper {
    pub(crate) fn new(created: u32) -> Self {
        Self {
            busy: false,
            waits: false,
            paused: false,
            spares: Vec::new(),
            next_spare: 1,
            creating: None,
            preparing: None,
            batch_bytes: 0,
            created,
            checkpointing: None,
            moving: None,
            now_ms: 0,
            wake_ms: u64::MAX,
        }
    }

    /// Is it time to look again?
    pub(crate) fn advance(&mut self, now_ms: u64) -> bool {
        self.now_ms = self.now_ms.max(now_ms);
        self.now_ms >= self.wake_ms
    }

    /// The spare file a segment begins with; the same one when its first write is tried again.
    pub(crate) fn spare_for(&mut self, segment: u32) -> Option<u32> {
        match self.creating {
            Some((known, spare)) if known == segment => spare,
            _ => {
                let spare = self.spares.pop();
                self.creating = Some((segment, spare));
                spare
            }
        }
    }

    /// A batch was written.
    pub(crate) fn note_batch(&mut self, bytes: usize) {
        self.batch_bytes = self.batch_bytes - self.batch_bytes / 8 + bytes / 8;
    }

    pub(crate) fn created(&mut self, segment: u32) {
        self.created = segment;
        self.creating = None;
    }
}

impl Journal {
    /// What needs no job: dead segments are brought nearer to their end.
    pub(crate) fn tend(&mut self) {
        if !self.table.stirred {
            return;
        }
        self.keeper.wake_ms = u64::MAX;
        while self.keeper.checkpointing.is_none() {
            let Some(segment) = self.dead_segment() else { return };
            let (queues, batch) = self.table.checkpoints_needed(segment);
            if queues.is_empty() {
                self.await_sync(segment, batch);
            } else {
                self.keeper.checkpointing = Some(Checkpointing { segment, queues, batch });
            }
        }
        // One portion per batch: while a batch is being built with one, the next waits.
        let Some(left) = &mut self.keeper.checkpointing else { return };
        if self.pending.has_checkpoints() {
            return;
        }
        let portion = left.queues.split_off(left.queues.len().saturating_sub(CHECKPOINTS_PER_BATCH));
        let (segment, batch) = (left.segment, left.batch.max(self.writer.number()));
        if left.queues.is_empty() {
            self.keeper.checkpointing = None;
            self.await_sync(segment, batch);
        }
        portion.into_iter().for_each(|queue_no| self.pending.checkpoint(queue_no));
        self.writer.require_sync();
    }

    /// A segment in which nothing waits and whose removal was not begun.
    fn dead_segment(&mut self) -> Option<u32> {
        let (created, now_ms) = (self.keeper.created, self.keeper.now_ms);
        let mut wake_ms = self.keeper.wake_ms;
        let mut need_newer = false;
        let found = self.table.segments.iter().find(|(number, segment)| {
            let dead = segment.live == 0 && segment.removal == Removal::Alive && !segment.is_open() && !segment.held;
            if dead && segment.keep_until_ms > now_ms {
                wake_ms = wake_ms.min(segment.keep_until_ms);
                return false;
            }
            // The newest file stays until there is a newer one: numbers are never given out twice.
            need_newer |= dead && **number >= created;
            dead && **number < created
        });
        let found = found.map(|(number, _)| *number);
        self.keeper.wake_ms = wake_ms;
        if need_newer && found.is_none() && self.writer.is_idle() {
            self.writer.require_sync();
        }
        found
    }

    /// The segment goes once the batches that settled its messages, and those that say so again, are synced.
    fn await_sync(&mut self, number: u32, batch: u64) {
        let Some(segment) = self.table.segments.get_mut(&number) else { return };
        let batch = batch.max(segment.dead_batch);
        segment.removal = Removal::Awaits(batch);
        if batch > self.writer.synced() {
            self.writer.require_sync();
        }
    }

    /// The next housekeeping job.
    pub(crate) fn poll_background(&mut self) -> Option<Work> {
        if self.keeper.busy || self.keeper.paused || !self.table.stirred {
            return None;
        }
        let work = self.remove().or_else(|| self.seal()).or_else(|| self.prepare());
        let work = work.or_else(|| self.compact()).or_else(|| self.gather_ids());
        self.keeper.busy = work.is_some();
        self.table.stirred = work.is_some();
        let unfinished =
            |segment: &Segment| matches!(segment.state, State::Closed(_)) || segment.removal != Removal::Alive;
        let waits = work.is_none() && self.table.segments.values().any(unfinished);
        self.keeper.waits = waits || self.keeper.moving.is_some() || self.keeper.checkpointing.is_some();
        work
    }

    fn remove(&mut self) -> Option<Work> {
        let synced = self.writer.synced();
        let ready = |segment: &Segment| {
            segment.readers == 0 && matches!(segment.removal, Removal::Awaits(batch) if batch <= synced)
        };
        let (number, segment) = self.table.segments.iter_mut().find(|(_, segment)| ready(segment))?;
        segment.removal = Removal::Out;
        let full = self.config.segment_bytes - self.config.segment_bytes / 8;
        let usual = (full..=self.config.segment_bytes + self.config.segment_bytes / 8).contains(&segment.bytes);
        let spare = (usual && self.keeper.spares.len() < self.config.spares_max).then_some(self.keeper.next_spare);
        self.keeper.next_spare += u32::from(spare.is_some());
        Some(Work::Remove(RemoveWork { segment: *number, spare, outcome: None }))
    }

    fn seal(&mut self) -> Option<Work> {
        // Whoever finds a sidecar looks at no log: what must be cut from one would stay.
        if !self.cuts.is_empty() {
            return None;
        }
        let synced = self.writer.synced();
        let full = self.config.segment_bytes - self.config.segment_bytes / 8;
        self.table.segments.values().find_map(|segment| match &segment.state {
            State::Closed(digest) if segment.live > 0 && !segment.held && segment.last_batch <= synced => {
                let trim = digest.log_bytes < full;
                Some(Work::Seal(SealWork { digest: Arc::clone(digest), trim, outcome: None }))
            }
            _ => None,
        })
    }

    /// A spare for the next segment, made while this one fills, unless a dead segment's file can be used.
    fn prepare(&mut self) -> Option<Work> {
        let total = u64::from(self.config.segment_bytes);
        if !self.wants_spare() {
            return None;
        }
        if self.keeper.preparing.is_none() {
            self.keeper.preparing = Some((self.keeper.next_spare, 0));
            self.keeper.next_spare += 1;
        }
        let (spare, offset) = self.keeper.preparing?;
        let bytes = (self.config.prepare_bytes as u64).min(total - offset) as usize;
        let last = offset + bytes as u64 == total;
        Some(Work::Prepare(PrepareWork { spare, offset, bytes, last, outcome: None }))
    }

    /// The open segment has begun to fill, no file is there for the next, and batches are small enough to gain by one.
    pub(crate) fn wants_spare(&self) -> bool {
        let keeper = &self.keeper;
        let filled = |bytes: u32| bytes > self.config.segment_bytes / 4;
        let begun = keeper.preparing.is_some()
            || self.table.segments.last_key_value().is_some_and(|(_, open)| filled(open.bytes));
        let wanted = self.config.prepare_bytes > 0 && self.config.spares_max > 0;
        wanted && begun && keeper.spares.is_empty() && keeper.batch_bytes <= PREPARE_BATCH_MAX
    }

    /// Moves live messages out of a sparse segment, a few at a time.
    fn compact(&mut self) -> Option<Work> {
        self.keeper.moving = self.sparse_segment();
        let number = self.keeper.moving?;
        if self.writer.pending_bytes() > MOVE_PENDING_MAX {
            return None;
        }
        let segment = self.table.segments.get(&number)?;
        if segment.index_damaged {
            return Some(Work::Rebuild(RebuildWork::new(number, segment.bytes, false)));
        }
        let queues = &self.table.queues;
        let rows = segment.queues.iter().filter_map(|queue_no| Some((*queue_no, queues.get(queue_no)?)));
        let rows = rows.flat_map(|(queue_no, queue)| {
            queue.rows.iter().filter(move |row| row.segment == number).map(move |row| (queue_no, row))
        });
        let picks = rows.flat_map(|(queue_no, row)| {
            let positions = row.live.runs().flat_map(|(first, last)| first..=last);
            positions.filter_map(move |position| {
                let at = row.at(position)?;
                Some(Pick { queue_no, position, segment: number, at })
            })
        });
        let picks: Vec<Pick> = picks.take(MOVE_COUNT_MAX).collect();
        if picks.is_empty() {
            return None;
        }
        self.pin(&[number]);
        let pages = self.pages.clone();
        Some(Work::Move(ReadWork { picks, bytes_max: MOVE_BYTES_MAX, shared: false, pages, outcome: None }))
    }

    /// The segment being emptied, or the one that is worth it most, if all that could be won is worth beginning.
    fn sparse_segment(&self) -> Option<u32> {
        let segments = &self.table.segments;
        let movable = |segment: &Segment| matches!(segment.state, State::Sealed) && segment.live > 0;
        let moving = self.keeper.moving.filter(|number| segments.get(number).is_some_and(movable));
        if moving.is_some() {
            return moving;
        }
        let sparse = || segments.iter().filter(|(_, segment)| movable(segment) && segment.is_sparse());
        if sparse().map(|(_, segment)| segment.dead_bytes()).sum::<u64>() < self.config.compact_bytes.max(1) {
            return None;
        }
        sparse().max_by_key(|(number, segment)| (segment.dead_bytes(), u32::MAX - **number)).map(|(number, _)| *number)
    }

    /// A housekeeping job came back.
    pub(crate) fn background_done(&mut self, work: Work) -> Done {
        self.keeper.busy = false;
        self.table.stirred = true;
        let outcome = match work {
            Work::Seal(work) => work.outcome.map(|outcome| outcome.map(|place| self.table.place(&work.digest, &place))),
            Work::Remove(work) => {
                self.removed(&work);
                work.outcome
            }
            Work::Prepare(work) => {
                self.prepared(&work);
                work.outcome
            }
            Work::Move(work) => Some(self.moved(work)),
            Work::Ids(work) => Some(self.gathered_ids(work)),
            _ => None,
        };
        let fault = outcome.unwrap_or_else(|| Err(Fault::not_run())).err();
        self.keeper.paused |= fault.is_some();
        Done::Background(fault)
    }

    fn removed(&mut self, work: &RemoveWork) {
        if matches!(work.outcome, Some(Ok(()))) {
            self.table.forget_segment(work.segment);
            self.keeper.spares.extend(work.spare);
        } else if let Some(segment) = self.table.segments.get_mut(&work.segment) {
            segment.removal = Removal::Awaits(0);
        }
    }

    fn prepared(&mut self, work: &PrepareWork) {
        if matches!(work.outcome, Some(Ok(()))) {
            self.keeper.preparing = Some((work.spare, work.offset + work.bytes as u64)).filter(|_| !work.last);
            self.keeper.spares.extend(Some(work.spare).filter(|_| work.last));
        }
    }

    /// Appends what compaction has read, as far as it still waits in the old place.
    fn moved(&mut self, work: ReadWork) -> Result<(), Fault> {
        let gathered =
            work.outcome.unwrap_or_else(|| Gathered { fault: Some(Fault::not_run()), ..Gathered::default() });
        let number = work.picks.first().map_or(0, |pick| pick.segment);
        self.unpin(&[number]);
        if let Some(segment) = self.table.segments.get_mut(&number) {
            segment.index_damaged |= gathered.wrong_index.is_some();
        }
        for found in &gathered.found {
            let Some(message) = Message::decode(&gathered.bytes[found.payload.clone()]) else { continue };
            let waits = |target: &Target| self.table.holds(number, target.queue_no, target.position);
            let targets: Vec<Target> = message.targets().filter(waits).collect();
            if !targets.is_empty() {
                // It fitted once, and has not grown.
                let _ = self.append(message.head, std::iter::once(message.body), &targets, FLAG_MOVED);
            }
        }
        self.forget_damaged(number, &gathered.damaged);
        gathered.fault.map_or(Ok(()), Err)
    }
}
