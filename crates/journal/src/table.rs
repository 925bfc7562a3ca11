//! What waits where: queues, their rows, and the segments that hold them.
//!
//! Owns the journal's memory: for each queue and segment one row with the positions that live there. Messages and
//! acknowledgements change it at once, whatever the disk does; recovery builds it again. It must never read a file or
//! know a batch's bytes. Rule: docs/internals/segment.md, "Memory": it grows with segments × queues in them, never
//! with messages that wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use crate::digest::{Digest, DigestRow, Drops};
use crate::hash::Map;
use crate::positions::Positions;
use crate::ranges::Ranges;
use crate::read::At;
use crate::segment::{Segment, State};

/// Why a message is in a segment. Each class of a queue has a row of its own, so that positions rise within a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Fresh = 0,
    /// Copied from an older segment.
    Moved = 1,
    /// Here for want of memory; gone after a restart.
    Transient = 2,
}

impl Class {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Fresh, Self::Moved, Self::Transient].into_iter().find(|class| *class as u8 == byte)
    }
}

/// One message of one queue in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) position: u64,
    /// As in `Target::expires`.
    pub(crate) expires: u64,
    pub(crate) offset: u32,
    /// The payload's bytes.
    pub(crate) length: u32,
    /// The body's bytes.
    pub(crate) body: u32,
}

/// Where the entries of a row are.
#[derive(Clone, Debug)]
pub(crate) enum Entries {
    /// In memory, by position: the segment has no sidecar yet.
    Memory(Arc<Vec<Entry>>),
    /// In the sidecar.
    File { start: u32, count: u32 },
}

/// What one segment holds of one queue.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) segment: u32,
    pub(crate) class: Class,
    /// Bounds of all positions that were ever in the row.
    first: u64,
    last: u64,
    pub(crate) live: Positions,
    pub(crate) entries: Entries,
}

impl Row {
    pub(crate) fn new(segment: u32, class: Class, live: Positions, entries: Entries) -> Self {
        let (first, last) = live.runs().fold((u64::MAX, 0), |(first, last), run| (first.min(run.0), last.max(run.1)));
        Self { segment, class, first, last, live, entries }
    }

    /// A row with these entries, some of which may be settled.
    pub(crate) fn spanning(segment: u32, class: Class, live: Positions, entries: Arc<Vec<Entry>>) -> Self {
        let mut row = Self::new(segment, class, live, Entries::Memory(Arc::clone(&entries)));
        row.first = entries.first().map_or(row.first, |entry| entry.position);
        row.last = entries.last().map_or(row.last, |entry| entry.position);
        row
    }

    fn digest(&self, queue_no: u64) -> Option<DigestRow> {
        match &self.entries {
            Entries::Memory(entries) => DigestRow::new(queue_no, self.class, self.live.clone(), Arc::clone(entries)),
            Entries::File { .. } => None,
        }
    }

    fn push(&mut self, entry: Entry) {
        self.first = self.first.min(entry.position);
        self.last = self.last.max(entry.position);
        self.live.insert(entry.position);
        let Entries::Memory(entries) = &mut self.entries else { return };
        let entries = Arc::make_mut(entries);
        match entries.last() {
            Some(last) if last.position >= entry.position => {
                let at = entries.partition_point(|known| known.position < entry.position);
                match entries.get_mut(at) {
                    Some(known) if known.position == entry.position => *known = entry,
                    _ => entries.insert(at, entry),
                }
            }
            _ => entries.push(entry),
        }
    }

    /// Where the entry of a position is.
    pub(crate) fn at(&self, position: u64) -> Option<At> {
        match &self.entries {
            Entries::File { start, count } => Some(At::Sidecar { start: *start, count: *count }),
            Entries::Memory(entries) => {
                let found = entries.binary_search_by_key(&position, |entry| entry.position).ok()?;
                entries.get(found).map(|entry| At::Known(*entry))
            }
        }
    }

    /// Messages that wait whose records lie at a place or behind it.
    pub(crate) fn live_from(&self, floor: (u32, u32)) -> u64 {
        let Entries::Memory(entries) = &self.entries else { return 0 };
        let behind = |entry: &&Entry| (self.segment, entry.offset) >= floor && self.live.contains(entry.position);
        if self.segment < floor.0 { 0 } else { entries.iter().filter(behind).count() as u64 }
    }

    #[inline]
    fn holds(&self, position: u64) -> bool {
        self.first <= position && position <= self.last && self.live.contains(position)
    }
}

/// Everything the journal holds of one queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// By segment; a row stays when all its messages are settled, until its segment goes.
    pub(crate) rows: Vec<Row>,
    /// The row that was settled in last.
    hot: usize,
    /// One more than the largest position seen.
    pub(crate) next: u64,
    pub(crate) deleted: bool,
    /// The segment and batch that hold the newest record of everything settled in this queue.
    pub(crate) checkpoint: (u32, u64),
}

impl Queue {
    /// Messages that wait.
    pub(crate) fn len(&self) -> u64 {
        self.rows.iter().map(|row| row.live.len()).sum()
    }

    /// The row of this segment and class.
    fn row(&mut self, segment: u32, class: Class) -> (&mut Row, bool) {
        let found = self.rows.iter().rposition(|row| row.segment <= segment);
        let known = self.rows.iter().rposition(|row| row.segment == segment && row.class == class);
        let first_of_segment = found.is_none_or(|at| self.rows[at].segment != segment);
        let at = known.unwrap_or_else(|| {
            let at = found.map_or(0, |at| at + 1);
            self.rows.insert(at, Row::new(segment, class, Positions::default(), Entries::Memory(Arc::default())));
            at
        });
        (&mut self.rows[at], first_of_segment)
    }

    /// The row that holds this position.
    pub(crate) fn find(&mut self, position: u64) -> Option<usize> {
        if self.rows.get(self.hot).is_some_and(|row| row.holds(position)) {
            return Some(self.hot);
        }
        self.hot = self.rows.iter().position(|row| row.holds(position))?;
        Some(self.hot)
    }

    /// What is settled from a position on: whatever no row holds. Ends after about `count_max` ranges, and answers with
    /// where to go on.
    pub(crate) fn settled(&self, from: u64, count_max: usize) -> (Ranges, u64) {
        let mut ranges = Ranges::default();
        let mut next = from;
        for (first, last, _) in self.live_runs(from, |row| row.class != Class::Transient) {
            if next < first {
                ranges.push(next, first - 1);
            }
            next = last + 1;
            if ranges.count() >= count_max {
                return (ranges, next);
            }
        }
        if next < self.next {
            ranges.push(next, self.next - 1);
        }
        (ranges, self.next)
    }

    /// Runs of live positions from `from` on, in order, each with the row it is in.
    pub(crate) fn live_runs(&self, from: u64, want: impl Fn(&Row) -> bool) -> LiveRuns<'_> {
        let heads =
            self.rows.iter().enumerate().filter(|(_, row)| row.last >= from && want(row)).filter_map(|(at, row)| {
                let (first, last) = row.live.next_run(from)?;
                Some(Reverse((first, last, at)))
            });
        LiveRuns { queue: self, heads: heads.collect() }
    }
}

/// Merges the rows of a queue by position.
pub(crate) struct LiveRuns<'a> {
    queue: &'a Queue,
    heads: BinaryHeap<Reverse<(u64, u64, usize)>>,
}

impl<'a> Iterator for LiveRuns<'a> {
    type Item = (u64, u64, &'a Row);

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((first, last, at)) = self.heads.pop()?;
        let row = &self.queue.rows[at];
        if let Some((first, last)) = row.live.next_run(last + 1) {
            self.heads.push(Reverse((first, last, at)));
        }
        Some((first, last, row))
    }
}

/// Queues and segments.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) queues: Map<Queue>,
    pub(crate) segments: BTreeMap<u32, Segment>,
    /// A segment died or became sparse: someone should look.
    pub(crate) stirred: bool,
}

impl Table {
    /// A message was appended for this queue.
    pub(crate) fn insert(&mut self, queue_no: u64, class: Class, segment: u32, entry: Entry, batch: u64) {
        let queue = self.queues.entry(queue_no).or_default();
        let superseded = if entry.position < queue.next { queue.find(entry.position) } else { None };
        let superseded = superseded.map(|at| {
            queue.rows[at].live.remove(entry.position);
            queue.rows[at].segment
        });
        queue.next = queue.next.max(entry.position + 1);
        let (row, first_of_segment) = queue.row(segment, class);
        row.push(entry);
        if let Some(held) = self.segments.get_mut(&segment) {
            held.refs += 1;
            held.live += 1;
            if first_of_segment {
                held.queues.push(queue_no);
            }
        }
        if let Some(old) = superseded {
            self.release(old, 1, batch);
        }
    }

    /// A message of this queue is settled; `None` if it was not waiting.
    #[inline]
    pub(crate) fn settle(&mut self, queue_no: u64, position: u64, batch: u64) -> Option<Class> {
        let queue = self.queues.get_mut(&queue_no)?;
        let at = queue.find(position)?;
        let row = &mut queue.rows[at];
        row.live.remove(position);
        let (segment, class) = (row.segment, row.class);
        self.release(segment, 1, batch);
        Some(class)
    }

    /// All positions of a range are settled; how many waited.
    pub(crate) fn settle_range(&mut self, queue_no: u64, first: u64, last: u64, batch: u64) -> u64 {
        let Some(queue) = self.queues.get_mut(&queue_no) else { return 0 };
        let mut gone = Vec::new();
        for row in queue.rows.iter_mut().filter(|row| row.first <= last && first <= row.last) {
            gone.push((row.segment, row.live.remove_range(first, last)));
        }
        gone.iter().for_each(|&(segment, count)| self.release(segment, count, batch));
        gone.iter().map(|(_, count)| count).sum()
    }

    /// A queue is no more; false if it was not known.
    pub(crate) fn delete_queue(&mut self, queue_no: u64, batch: u64) -> bool {
        self.settle_range(queue_no, 0, u64::MAX - 1, batch);
        match self.queues.get_mut(&queue_no) {
            Some(queue) if !queue.rows.is_empty() => queue.deleted = true,
            _ => return self.queues.remove(&queue_no).is_some(),
        }
        true
    }

    /// Fewer live messages in a segment.
    #[inline]
    pub(crate) fn release(&mut self, segment: u32, count: u64, batch: u64) {
        if let Some(held) = self.segments.get_mut(&segment) {
            let was_sparse = held.is_sparse();
            held.live -= count;
            if held.live == 0 {
                held.dead_batch = held.dead_batch.max(batch);
            }
            self.stirred |= held.live == 0 || held.is_sparse() != was_sparse;
        }
    }

    /// A segment is complete: what it holds at this moment is what its sidecar will say.
    pub(crate) fn close_segment(&mut self, segment: u32) {
        let Some(held) = self.segments.get_mut(&segment) else { return };
        let State::Open(settled) = &mut held.state else { return };
        let settled = std::mem::take(settled);
        let drops = settled.queues.into_iter().map(|(queue_no, mut noted)| {
            if noted.everything {
                let queue = self.queues.get(&queue_no).filter(|queue| !queue.deleted);
                noted.ranges = queue.map(|queue| queue.settled(0, usize::MAX).0).unwrap_or_default();
            }
            noted.ranges.normalize();
            (queue_no, Drops { deleted: noted.deleted, ranges: noted.ranges })
        });
        let drops: BTreeMap<u64, Drops> = drops.collect();
        let (log_bytes, last_batch, refs) = (held.bytes, held.last_batch, held.refs);
        held.settled = drops.keys().copied().collect();
        held.queues.sort_unstable();
        let rows = held.queues.iter().filter_map(|queue_no| Some((*queue_no, self.queues.get(queue_no)?)));
        let rows = rows.flat_map(|(queue_no, queue)| {
            let rows = queue.rows.iter().filter(|row| row.segment == segment);
            rows.filter_map(move |row| row.digest(queue_no))
        });
        let mut rows: Vec<DigestRow> = rows.collect();
        rows.sort_by_key(|row| (row.queue_no, row.class));
        let barriers = settled.barriers;
        let digest = Digest { segment, log_bytes, last_batch, refs, rows, drops, barriers };
        held.state = State::Closed(Arc::new(digest));
    }

    /// A segment has a sidecar: entries are looked up there from now on.
    pub(crate) fn place(&mut self, digest: &Digest, placement: &[Entries]) {
        for (told, entries) in digest.rows.iter().zip(placement) {
            let Some(queue) = self.queues.get_mut(&told.queue_no) else { continue };
            let row = queue.rows.iter_mut().find(|row| row.segment == digest.segment && row.class == told.class);
            if let Some(row) = row {
                row.entries = entries.clone();
            }
        }
        let Some(held) = self.segments.get_mut(&digest.segment) else { return };
        held.state = State::Sealed;
        held.index_damaged = false;
        // Rows that were dead when the segment was closed are not in the sidecar: nobody will look for their entries.
        for queue_no in &held.queues {
            let Some(queue) = self.queues.get_mut(queue_no) else { continue };
            for row in queue.rows.iter_mut().filter(|row| row.segment == digest.segment && row.live.is_empty()) {
                row.entries = Entries::Memory(Arc::default());
            }
        }
    }

    /// Does this segment hold a message that waits?
    pub(crate) fn holds(&self, segment: u32, queue_no: u64, position: u64) -> bool {
        let queue = self.queues.get(&queue_no);
        queue.is_some_and(|queue| queue.rows.iter().any(|row| row.segment == segment && row.holds(position)))
    }

    /// Messages that wait in a segment but are not in a digest made from its log: their records are damaged.
    pub(crate) fn lost(&self, digest: &Digest) -> Vec<(u64, u64)> {
        let Some(segment) = self.segments.get(&digest.segment) else { return Vec::new() };
        let mut lost = Vec::new();
        for queue_no in &segment.queues {
            let Some(queue) = self.queues.get(queue_no) else { continue };
            for row in queue.rows.iter().filter(|row| row.segment == digest.segment) {
                let told = digest.row(*queue_no, row.class);
                let positions = row.live.runs().flat_map(|(first, last)| first..=last);
                let missing = positions.filter(|at| !told.is_some_and(|told| told.live.contains(*at)));
                lost.extend(missing.map(|at| (*queue_no, at)));
            }
        }
        lost
    }

    /// A segment's files are gone.
    pub(crate) fn forget_segment(&mut self, segment: u32) {
        let Some(held) = self.segments.remove(&segment) else { return };
        for queue_no in held.queues {
            let Some(queue) = self.queues.get_mut(&queue_no) else { continue };
            queue.rows.retain(|row| row.segment != segment);
            queue.hot = 0;
            if queue.deleted && queue.rows.is_empty() {
                self.queues.remove(&queue_no);
            }
        }
    }

    /// What this segment says was settled in older ones: the queues for which it is said nowhere later, and the batch
    /// that must be synced because it says so for the others.
    pub(crate) fn checkpoints_needed(&self, segment: u32) -> (Vec<u64>, u64) {
        let Some(held) = self.segments.get(&segment) else { return (Vec::new(), 0) };
        let (mut needed, mut batch) = (Vec::new(), 0);
        for &queue_no in &held.settled {
            let Some(queue) = self.queues.get(&queue_no) else { continue };
            if queue.rows.first().is_none_or(|row| row.segment >= segment) {
                continue;
            }
            if queue.checkpoint.0 <= segment {
                needed.push(queue_no);
            } else {
                batch = batch.max(queue.checkpoint.1);
            }
        }
        (needed, batch)
    }
}
