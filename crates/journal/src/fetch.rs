//! Which messages come next in a queue, and where they are.
//!
//! Owns the plan of a read: the next positions that live, in order, over all segments of the queue. What is still in
//! memory is answered at once, what is on disk becomes a job. It must never answer out of order, nor promise more
//! than it found. Rule: docs/internals/segment.md, "Reading".

use std::ops::Range;

use crate::error::Fault;
use crate::job::{ReadWork, RebuildWork, Work};
use crate::journal::{Done, Journal, ReadDone};
use crate::read::{At, Gathered, Messages, Pick};
use crate::record::Message;
use crate::table::{Class, Entries, Entry};

/// The answer to a question for messages.
#[derive(Debug)]
pub enum Read {
    /// Nothing waits at or after that position.
    Empty,
    /// The next messages.
    Ready(Messages),
    /// They come with the job of this number: `Done::Read`.
    Waits(u64),
}

impl Journal {
    /// The next messages of a queue from a position on, in order: at most `count_max` and about `bytes_max`, but at
    /// least one if any waits.
    pub fn read(&mut self, queue_no: u64, from: u64, count_max: usize, bytes_max: usize) -> Read {
        self.read_as(queue_no, from, (count_max, bytes_max), true)
    }

    /// The same, for someone who takes them: nobody else will want them.
    pub fn read_once(&mut self, queue_no: u64, from: u64, count_max: usize, bytes_max: usize) -> Read {
        self.read_as(queue_no, from, (count_max, bytes_max), false)
    }

    /// Is the next message from a position on to be read from the disk?
    pub fn is_on_disk(&self, queue_no: u64, from: u64) -> bool {
        self.plan(queue_no, from, 1).first().is_some_and(|pick| match pick.at {
            At::Known(entry) => !self.in_memory(pick.segment, &entry),
            At::Sidecar { .. } => true,
        })
    }

    fn read_as(&mut self, queue_no: u64, from: u64, (count_max, bytes_max): (usize, usize), shared: bool) -> Read {
        let plan = self.plan(queue_no, from, count_max.max(1));
        match plan.first().map(|pick| pick.at) {
            None => Read::Empty,
            Some(At::Known(entry)) if self.in_memory(plan[0].segment, &entry) => {
                Read::Ready(self.copy_out(&plan, bytes_max))
            }
            Some(_) => Read::Waits(self.queue_read(plan, bytes_max, shared)),
        }
    }

    /// The newest messages of a queue: those that the disk has not answered for. And its bounds: the first position
    /// that waits, and the one after the last.
    pub fn tail(&self, queue_no: u64) -> (Messages, Range<u64>) {
        let mut messages = Messages::default();
        let Some(queue) = self.table.queues.get(&queue_no) else { return (messages, 0..0) };
        let first = queue.live_runs(0, |_| true).next().map_or(queue.next, |run| run.0);
        let floor = self.writer.floor();
        for row in queue.rows.iter().filter(|row| row.class == Class::Fresh && row.segment >= floor.0) {
            let Entries::Memory(entries) = &row.entries else { continue };
            let from = entries.partition_point(|entry| (row.segment, entry.offset) < floor);
            for entry in entries[from..].iter().filter(|entry| row.live.contains(entry.position)) {
                let payload = self.writer.payload(row.segment, entry.offset, entry.length);
                if let Some(message) = payload.and_then(Message::decode) {
                    messages.push(entry, &message);
                }
            }
        }
        (messages, first..queue.next)
    }

    /// Nothing was written or read for a while: memory that was kept for that goes.
    pub fn rest(&mut self) {
        self.pages.clear();
        self.writer.rest();
    }

    fn in_memory(&self, segment: u32, entry: &Entry) -> bool {
        (segment, entry.offset) >= self.writer.floor()
    }

    /// The next positions, until one is in memory and another on disk.
    fn plan(&self, queue_no: u64, from: u64, count_max: usize) -> Vec<Pick> {
        let Some(queue) = self.table.queues.get(&queue_no) else { return Vec::new() };
        let mut picks: Vec<Pick> = Vec::new();
        let mut first_in_memory = false;
        for (first, last, row) in queue.live_runs(from, |_| true) {
            for position in first..=last {
                let Some(at) = row.at(position) else { continue };
                let in_memory = matches!(&at, At::Known(entry) if self.in_memory(row.segment, entry));
                first_in_memory = if picks.is_empty() { in_memory } else { first_in_memory };
                if picks.len() == count_max || in_memory != first_in_memory {
                    return picks;
                }
                picks.push(Pick { queue_no, position, segment: row.segment, at });
            }
        }
        picks
    }

    fn copy_out(&self, plan: &[Pick], bytes_max: usize) -> Messages {
        let mut messages = Messages::default();
        let mut total = 0;
        for pick in plan {
            let At::Known(entry) = pick.at else { break };
            let payload = self.writer.payload(pick.segment, entry.offset, entry.length);
            let Some(message) = payload.and_then(Message::decode) else { break };
            total += entry.length as usize;
            if total > bytes_max && !messages.is_empty() {
                break;
            }
            messages.push(&entry, &message);
        }
        messages
    }

    /// Queues a job for the part of the plan that can be read; a segment without a good sidecar gets one first.
    fn queue_read(&mut self, mut plan: Vec<Pick>, bytes_max: usize, shared: bool) -> u64 {
        let mut last = None;
        let wrong = plan.iter().position(|pick| {
            // Picks of a segment stand together: it is looked at once.
            let is_next = last.replace(pick.segment) != Some(pick.segment);
            is_next && self.table.segments.get(&pick.segment).is_some_and(|segment| segment.index_damaged)
        });
        let work = match (wrong, plan.first()) {
            (Some(0), Some(pick)) => {
                let segment = pick.segment;
                let log_bytes = self.table.segments.get(&segment).map_or(0, |segment| segment.bytes);
                self.pin(&[segment]);
                Work::Rebuild(RebuildWork::new(segment, log_bytes, true))
            }
            (wrong, _) => {
                plan.truncate(wrong.unwrap_or(plan.len()));
                self.pin(&segments_of(&plan));
                Work::Read(ReadWork { picks: plan, bytes_max, shared, pages: self.pages.clone(), outcome: None })
            }
        };
        let job = self.job(work);
        let token = job.number;
        self.reads.push_back(job);
        token
    }

    /// A segment that is being read is not removed.
    pub(crate) fn pin(&mut self, segments: &[u32]) {
        for number in segments {
            if let Some(segment) = self.table.segments.get_mut(number) {
                segment.readers += 1;
            }
        }
    }

    pub(crate) fn unpin(&mut self, segments: &[u32]) {
        for number in segments {
            if let Some(segment) = self.table.segments.get_mut(number) {
                segment.readers -= 1;
            }
        }
        self.table.stirred = true;
    }

    pub(crate) fn read_done(&mut self, token: u64, work: ReadWork) -> ReadDone {
        self.reads_out -= 1;
        self.unpin(&segments_of(&work.picks));
        let mut gathered =
            work.outcome.unwrap_or_else(|| Gathered { fault: Some(Fault::not_run()), ..Gathered::default() });
        if let Some(segment) = gathered.wrong_index.and_then(|number| self.table.segments.get_mut(&number)) {
            segment.index_damaged = true;
        }
        let mut damaged = Vec::new();
        for segment in segments_of(&work.picks) {
            damaged.extend(self.forget_damaged(segment, &gathered.damaged));
        }
        let fault = gathered.fault.take();
        ReadDone { token, messages: gathered.into_messages(), damaged, fault }
    }

    /// Messages that were found damaged in a segment no longer wait, unless they have moved since. Answers with those
    /// that did.
    pub(crate) fn forget_damaged(&mut self, segment: u32, damaged: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let here = |(queue_no, position): &&(u64, u64)| self.table.holds(segment, *queue_no, *position);
        let gone: Vec<(u64, u64)> = damaged.iter().filter(here).copied().collect();
        gone.iter().for_each(|(queue_no, position)| {
            self.ack(*queue_no, *position);
        });
        gone
    }

    pub(crate) fn rebuild_done(&mut self, token: u64, work: RebuildWork) -> Done {
        self.table.stirred = true;
        if work.awaited {
            self.reads_out -= 1;
            self.unpin(&[work.segment]);
        } else {
            self.keeper.busy = false;
        }
        let (damaged, fault) = match work.outcome {
            Some(Ok(digest)) => {
                let placement: Vec<Entries> = digest.rows.iter().map(|row| row.entries.clone()).collect();
                self.table.place(&digest, &placement);
                let lost = self.table.lost(&digest);
                (self.forget_damaged(work.segment, &lost), None)
            }
            Some(Err(fault)) => (Vec::new(), Some(fault)),
            None => (Vec::new(), Some(Fault::not_run())),
        };
        if work.awaited {
            return Done::Read(ReadDone { token, messages: Messages::default(), damaged, fault });
        }
        self.keeper.paused |= fault.is_some();
        Done::Background(fault)
    }
}

/// The segments of a plan, each once.
fn segments_of(plan: &[Pick]) -> Vec<u32> {
    let mut segments: Vec<u32> = plan.iter().map(|pick| pick.segment).collect();
    segments.sort_unstable();
    segments.dedup();
    segments
}
