//! After a sync that failed.
//!
//! Owns the move of everything since the last good sync into new segments. The writer changes the batches, this file
//! changes what the table says of them: a segment is split where its last good batch ends. It must never trust the
//! old file again beyond that place, nor lose a message over it. Rule: a failed `fsync` may have dropped the bytes
//! while claiming that they are clean (LSF/MM 2018, "fsyncgate").

use std::sync::Arc;

use crate::digest::{BarrierAt, Digest, DigestRow};
use crate::format::FILE_HEADER_BYTES;
use crate::job::Cut;
use crate::journal::Journal;
use crate::positions::Positions;
use crate::segment::{Segment, State};
use crate::table::{Entries, Entry, Row, Table};
use crate::writer::Replaced;

impl Journal {
    /// Nothing that was not synced stays where it was.
    pub(crate) fn replace(&mut self) {
        let replaced = self.writer.sync_failed(self.writer.segment() + 1);
        // Memory has settled what the batch being built will say, and a sidecar is made from memory.
        let last_batch = self.writer.number();
        for change in replaced {
            self.cuts.push(Cut { segment: change.from, at: change.start, keep: None });
            self.table.split(&change, last_batch);
        }
    }
}

/// Where a split cuts, and how far offsets move.
#[derive(Clone, Copy)]
struct Split {
    start: u32,
}

impl Split {
    fn shift(&self, offset: u32) -> u32 {
        offset - self.start + FILE_HEADER_BYTES as u32
    }

    fn barriers(&self, all: &[BarrierAt]) -> (Vec<BarrierAt>, Vec<BarrierAt>) {
        let (stay, go): (Vec<_>, Vec<_>) = all.iter().partition(|barrier| barrier.offset < self.start);
        (stay, go.into_iter().map(|barrier| BarrierAt { offset: self.shift(barrier.offset), ..barrier }).collect())
    }

    /// Splits entries, and the positions of them that live.
    fn entries(&self, live: &mut Positions, entries: &mut Arc<Vec<Entry>>) -> (Positions, Arc<Vec<Entry>>) {
        let (stay, mut go): (Vec<Entry>, Vec<Entry>) = entries.iter().partition(|entry| entry.offset < self.start);
        let mut moved = Positions::default();
        for entry in &mut go {
            entry.offset = self.shift(entry.offset);
            if live.remove(entry.position) {
                moved.insert(entry.position);
            }
        }
        *entries = Arc::new(stay);
        (moved, Arc::new(go))
    }

    fn digest(&self, digest: &mut Digest, to: u32, bytes: u32) -> Digest {
        let mut rows = Vec::new();
        for row in std::mem::take(&mut digest.rows) {
            let Entries::Memory(mut entries) = row.entries else { continue };
            let mut live = row.live;
            let (moved, go) = self.entries(&mut live, &mut entries);
            rows.extend(DigestRow::new(row.queue_no, row.class, moved, go));
            digest.rows.extend(DigestRow::new(row.queue_no, row.class, live, entries));
        }
        let (stay, barriers) = self.barriers(&digest.barriers);
        digest.barriers = stay;
        digest.log_bytes = self.start;
        let (last_batch, refs, drops) = (digest.last_batch, digest.refs, digest.drops.clone());
        Digest { segment: to, log_bytes: self.shift(bytes), last_batch, refs, rows, drops, barriers }
    }
}

impl Table {
    /// What lies in a segment from an offset on is in another segment now.
    fn split(&mut self, change: &Replaced, last_batch: u64) {
        let cut = Split { start: change.start };
        let Some(old) = self.segments.get_mut(&change.from) else { return };
        let mut new = Segment::open();
        new.bytes = cut.shift(old.bytes.max(change.start));
        new.last_batch = old.last_batch;
        new.settled = old.settled.clone();
        new.keep_until_ms = old.keep_until_ms;
        new.ids_bytes = old.ids_bytes;
        let was_open = old.is_open();
        match &mut old.state {
            State::Open(settled) => {
                let (stay, barriers) = cut.barriers(&settled.barriers);
                settled.barriers = stay;
                // Both say all that was settled: what is said twice is not wrong.
                new.state = State::Open(Box::new(settled.split(barriers)));
            }
            State::Closed(digest) => {
                let moved = cut.digest(Arc::make_mut(digest), change.to, old.bytes);
                new.state = State::Closed(Arc::new(moved));
            }
            State::Sealed => {}
        }
        old.bytes = old.bytes.min(change.start);
        // Its sidecar will tell of acknowledgements that are yet to be written elsewhere.
        old.last_batch = last_batch;
        let queues = old.queues.clone();
        self.segments.insert(change.to, new);
        for queue_no in queues {
            self.split_rows(queue_no, &cut, change);
        }
        self.settle_split(change, last_batch);
        if was_open {
            self.close_segment(change.from);
        }
        self.stirred = true;
    }

    fn split_rows(&mut self, queue_no: u64, cut: &Split, change: &Replaced) {
        let Some(queue) = self.queues.get_mut(&queue_no) else { return };
        let Some(new) = self.segments.get_mut(&change.to) else { return };
        let mut rows = Vec::new();
        for row in queue.rows.iter_mut().filter(|row| row.segment == change.from) {
            let Entries::Memory(entries) = &mut row.entries else { continue };
            let (live, entries) = cut.entries(&mut row.live, entries);
            if !entries.is_empty() {
                new.live += live.len();
                new.refs += entries.len() as u64;
                rows.push(Row::spanning(change.to, row.class, live, entries));
            }
        }
        if !rows.is_empty() {
            new.queues.push(queue_no);
        }
        queue.rows.extend(rows);
    }

    fn settle_split(&mut self, change: &Replaced, last_batch: u64) {
        let Some(new) = self.segments.get(&change.to) else { return };
        let (live, refs) = (new.live, new.refs);
        let Some(old) = self.segments.get_mut(&change.from) else { return };
        old.live -= live;
        old.refs = old.refs.saturating_sub(refs);
        if old.live == 0 {
            old.dead_batch = old.dead_batch.max(last_batch);
        }
    }
}
