//! The journal: what is appended, acknowledged and read, and the jobs that make it so on disk.
//!
//! Owns the calls of the crate. Messages and acknowledgements come in and take effect at once in memory; numbered
//! batches and other jobs go out by `poll_job` and come back by `job_done`; `written` and `synced` say what the disk
//! has answered for. It must never do I/O, read a clock or wait. Rule: docs/internals/segment.md.

use std::collections::VecDeque;

use crate::config::Config;
use crate::digest::BarrierAt;
use crate::error::{Fault, TooLarge};
use crate::format::{FLAG_MOVED, Kind, LogHeader, PAYLOAD_BYTES_MAX, span};
use crate::job::{Create, Cut, Job, Work, WriteError, WriteWork};
use crate::keeper::Keeper;
use crate::pending::Pending;
use crate::read::Messages;
use crate::record::{MESSAGE_PREFIX_BYTES, TARGET_BYTES, Target, encode_message_front};
use crate::room::Pages;
use crate::segment::Segment;
use crate::table::{Class, Entry, Table};
use crate::writer::{Put, Writer};

/// Where a segment must end, transactions and all: offsets have 32 bits, and a batch's last records need room too.
const SEGMENT_END_MAX: usize = 3 << 30;

/// Messages that nobody waits for are written when there is this much of them: a job for each would cost more than the
/// message itself, and so much is cheapest to write.
const COMPANY_BYTES: usize = 1 << 20;

/// A journal. The order of polling: `poll_job` until it answers `None`, after every turn and after every `job_done`.
///
/// - world → journal: `append_message`, `append_idly`, `append_barrier`, `remember`, `ack`, `ack_range`,
///   `delete_queue`, `begin`, `commit`, `sync`, `sync_idly`, `read`, `advance`, `retry`, `close`
/// - disk → journal: `job_done`
/// - journal → world: `poll_job`, `batch`, `written`, `synced`
/// - looking: `messages`, `status`, `is_idle`
#[derive(Debug)]
pub struct Journal {
    pub(crate) config: Config,
    pub(crate) table: Table,
    pub(crate) writer: Writer,
    pub(crate) pending: Pending,
    pub(crate) keeper: Keeper,
    pub(crate) reads: VecDeque<Job>,
    /// Reads handed out and not yet back.
    pub(crate) reads_out: usize,
    pub(crate) pages: Pages,
    /// What the first write of the next segment must cut from older ones.
    pub(crate) cuts: Vec<Cut>,
    in_transaction: bool,
    incarnation: u64,
    next_job: u64,
}

/// What a job that came back means to the caller.
#[derive(Debug)]
pub enum Done {
    /// A batch is written: look at `written` and `synced`.
    Written,
    /// A batch could not be written or synced. Nothing is lost; it is tried again after `retry`.
    Failed(Fault),
    Read(ReadDone),
    /// Housekeeping, with what stopped it.
    Background(Option<Fault>),
}

/// The answer to a read.
#[derive(Debug)]
pub struct ReadDone {
    /// The number `read` answered with.
    pub token: u64,
    /// The next messages, in order. It may be none although some wait: a sidecar was made again, so read once more.
    pub messages: Messages,
    /// (queue, position) of messages whose bytes were damaged: copied to `damaged/`, and no longer waiting.
    pub damaged: Vec<(u64, u64)>,
    /// The disk refused; reading again may help.
    pub fault: Option<Fault>,
}

/// Sizes, for those who watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub segments: usize,
    /// Bytes in segments, without spares.
    pub bytes: u64,
    /// Of these, what dead messages take (estimated by their number).
    pub dead_bytes: u64,
    /// (message, queue) pairs that wait.
    pub messages: u64,
    /// Bytes in memory that the disk has not answered for.
    pub pending_bytes: usize,
    pub spares: usize,
}

impl Journal {
    /// A journal that goes on after batch `synced`, in a new segment.
    pub(crate) fn new(config: Config, table: Table, segment: u32, synced: u64, incarnation: u64) -> Self {
        let mut journal = Self {
            config,
            table,
            writer: Writer::new(segment, synced),
            pending: Pending::default(),
            keeper: Keeper::new(segment - 1),
            reads: VecDeque::new(),
            reads_out: 0,
            pages: Pages::default(),
            cuts: Vec::new(),
            in_transaction: false,
            incarnation,
            next_job: 1,
        };
        journal.table.segments.insert(segment, Segment::open());
        journal.table.stirred = true;
        journal
    }

    /// Stores a message for its targets: one body, however many they are. Answers with the batch that holds it.
    #[inline]
    pub fn append_message<'a>(
        &mut self,
        head: &[u8],
        body: impl Iterator<Item = &'a [u8]> + Clone,
        targets: &[Target],
    ) -> Result<u64, TooLarge> {
        let batch = self.append(head, body, targets, 0)?;
        // What is on disk for want of memory only, nobody waits for.
        if !targets.iter().all(|target| target.transient) {
            self.writer.hurry();
        }
        Ok(batch)
    }

    /// The same for a message that nobody waits for: it is written when there is company, or with what hurries.
    #[inline]
    pub fn append_idly<'a>(
        &mut self,
        head: &[u8],
        body: impl Iterator<Item = &'a [u8]> + Clone,
        targets: &[Target],
    ) -> Result<u64, TooLarge> {
        self.append(head, body, targets, 0)
    }

    pub(crate) fn append<'a>(
        &mut self,
        head: &[u8],
        body: impl Iterator<Item = &'a [u8]> + Clone,
        targets: &[Target],
        flags: u8,
    ) -> Result<u64, TooLarge> {
        let body_bytes: usize = body.clone().map(<[u8]>::len).sum();
        let payload = MESSAGE_PREFIX_BYTES + targets.len() * TARGET_BYTES + head.len() + body_bytes;
        self.make_room(payload)?;
        let put = self.writer.put(Kind::Message, flags, |out| {
            out.reserve(payload);
            encode_message_front(targets, head, out);
            body.for_each(|part| out.extend_from_slice(part));
        });
        if flags != 0 {
            self.writer.hurry();
        }
        let batch = self.writer.number();
        for target in targets {
            let class = match (target.transient, flags & FLAG_MOVED != 0) {
                (true, _) => Class::Transient,
                (false, true) => Class::Moved,
                (false, false) => Class::Fresh,
            };
            let entry = entry(put, target, body_bytes as u32);
            self.table.insert(target.queue_no, class, put.segment, entry, batch);
        }
        Ok(batch)
    }

    /// Remembers ids for an idempotency barrier until a time; the bytes are the caller's. Answers with the batch that
    /// holds them.
    pub fn append_barrier(&mut self, barrier_no: u64, until_ms: u64, ids: &[u8]) -> Result<u64, TooLarge> {
        self.make_room(ids.len() + 16)?;
        self.put_barrier(barrier_no, until_ms, ids);
        Ok(self.writer.number())
    }

    /// The same for one id, which goes into the batch being built with all others of its barrier: it is as safe as
    /// what was appended just before it, neither more nor less. Answers with that batch.
    #[inline]
    pub fn remember(&mut self, barrier_no: u64, until_ms: u64, id: &[u8]) -> u64 {
        self.pending.remember(barrier_no, until_ms, id);
        self.writer.number()
    }

    pub(crate) fn put_barrier(&mut self, barrier_no: u64, until_ms: u64, ids: &[u8]) {
        let put = self.writer.put(Kind::Barrier, 0, |out| {
            out.extend_from_slice(&barrier_no.to_le_bytes());
            out.extend_from_slice(&until_ms.to_le_bytes());
            out.extend_from_slice(ids);
        });
        self.writer.hurry();
        if let Some(segment) = self.table.segments.get_mut(&put.segment) {
            segment.note_barrier(BarrierAt { barrier_no, until_ms, offset: put.offset, length: put.length });
        }
    }

    /// A message of a queue is settled; false if it was not waiting there.
    #[inline]
    pub fn ack(&mut self, queue_no: u64, position: u64) -> bool {
        let class = self.table.settle(queue_no, position, self.writer.number());
        // What is gone after a restart anyway needs no record.
        if class.is_some_and(|class| class != Class::Transient) {
            self.pending.note(queue_no, position, position);
        }
        class.is_some()
    }

    /// Does this message wait? Not once it is settled.
    pub fn waits(&mut self, queue_no: u64, position: u64) -> bool {
        self.table.queues.get_mut(&queue_no).is_some_and(|queue| queue.find(position).is_some())
    }

    /// All messages of a queue from one position to another are settled; how many waited.
    pub fn ack_range(&mut self, queue_no: u64, first: u64, last: u64) -> u64 {
        let next = self.table.queues.get(&queue_no).map_or(0, |queue| queue.next);
        let last = last.min(next.saturating_sub(1));
        let gone = if first <= last { self.table.settle_range(queue_no, first, last, self.writer.number()) } else { 0 };
        if gone > 0 {
            self.pending.note(queue_no, first, last);
        }
        gone
    }

    /// A queue is deleted, with all that waits in it.
    pub fn delete_queue(&mut self, queue_no: u64) {
        if self.table.delete_queue(queue_no, self.writer.number()) {
            self.pending.forget(queue_no);
            self.put_deleted(queue_no);
        }
    }

    pub(crate) fn put_deleted(&mut self, queue_no: u64) {
        let put = self.writer.put(Kind::QueueDeleted, 0, |out| out.extend_from_slice(&queue_no.to_le_bytes()));
        self.writer.hurry();
        if let Some(segment) = self.table.segments.get_mut(&put.segment) {
            segment.note_checkpoint(queue_no, true);
        }
    }

    /// Until `commit`, everything goes into one batch, which after a crash is there whole or not at all.
    pub fn begin(&mut self) {
        debug_assert!(!self.in_transaction, "transactions do not nest");
        // There is no way to another segment before its end.
        self.roll_if_full(0);
        self.in_transaction = true;
    }

    /// Ends what `begin` began. Answers with the batch that holds all of it.
    pub fn commit(&mut self) -> u64 {
        self.in_transaction = false;
        self.writer.number()
    }

    /// The batch being built must be synced: someone will wait for `synced` to reach it.
    #[inline]
    pub fn sync(&mut self) {
        self.writer.require_sync();
    }

    /// The batch being built must be synced when it is written, but nobody waits for that.
    #[inline]
    pub fn sync_idly(&mut self) {
        self.writer.sync_idly();
    }

    /// The batch being built: it holds whatever was appended or acknowledged last.
    #[inline]
    pub fn batch(&self) -> u64 {
        self.writer.number()
    }

    /// Batches up to this one survive the end of the process.
    #[inline]
    pub fn written(&self) -> u64 {
        self.writer.written()
    }

    /// Batches up to this one survive the end of the power.
    #[inline]
    pub fn synced(&self) -> u64 {
        self.writer.synced()
    }

    /// Time passes: ids of barriers expire.
    pub fn advance(&mut self, now_ms: u64) {
        self.table.stirred |= self.keeper.advance(now_ms);
    }

    /// After `Done::Failed`: the disk may work again.
    pub fn retry(&mut self) {
        self.writer.stalled = false;
        self.keeper.paused = false;
        self.table.stirred = true;
    }

    /// Ends the open segment, so that the next start reads sidecars only. Poll and run jobs until `is_idle`.
    pub fn close(&mut self) {
        if !self.writer.segment_is_empty() || !self.pending.is_empty() {
            self.roll();
        }
        self.table.stirred = true;
    }

    /// Nothing to write, nothing out, nothing to tidy.
    pub fn is_idle(&self) -> bool {
        let quiet = self.reads.is_empty() && self.reads_out == 0 && !self.keeper.busy && !self.table.stirred;
        quiet && self.writer.is_idle() && self.pending.is_empty()
    }

    /// Messages that wait in a queue.
    pub fn messages(&self, queue_no: u64) -> u64 {
        self.table.queues.get(&queue_no).map_or(0, |queue| queue.len())
    }

    /// Those of them that survive the end of the power: on the disk itself, and not there for want of memory only.
    pub fn safe_messages(&self, queue_no: u64) -> u64 {
        let Some(queue) = self.table.queues.get(&queue_no) else { return 0 };
        let floor = self.writer.floor();
        let kept = queue.rows.iter().filter(|row| row.class != Class::Transient);
        kept.map(|row| row.live.len() - row.live_from(floor)).sum()
    }

    /// Bytes in memory that the disk has not answered for.
    #[inline]
    pub fn pending_bytes(&self) -> usize {
        self.writer.pending_bytes()
    }

    pub fn status(&self) -> Status {
        let mut status = Status {
            segments: self.table.segments.len(),
            pending_bytes: self.writer.pending_bytes(),
            spares: self.keeper.spares.len(),
            ..Status::default()
        };
        for segment in self.table.segments.values() {
            status.bytes += u64::from(segment.bytes);
            status.dead_bytes += segment.dead_bytes();
            status.messages += segment.live;
        }
        status
    }

    /// The next piece of disk work. One write is out at a time; reads and housekeeping may run beside it.
    pub fn poll_job(&mut self) -> Option<Job> {
        if !self.in_transaction {
            self.tend();
            if let Some(job) = self.poll_write() {
                return Some(job);
            }
        }
        if let Some(job) = self.reads.pop_front() {
            self.reads_out += 1;
            return Some(job);
        }
        let work = self.poll_background()?;
        Some(self.job(work))
    }

    /// Takes a job back that has run.
    pub fn job_done(&mut self, job: Job) -> Done {
        let token = job.number;
        match job.work {
            Work::Write(work) => self.write_done(work),
            Work::Read(work) => Done::Read(self.read_done(token, work)),
            Work::Rebuild(work) => self.rebuild_done(token, work),
            work => self.background_done(work),
        }
    }

    pub(crate) fn job(&mut self, work: Work) -> Job {
        let number = self.next_job;
        self.next_job += 1;
        Job { number, work }
    }

    /// Begins a new segment where a record does not fit.
    fn make_room(&mut self, payload: usize) -> Result<(), TooLarge> {
        if payload > PAYLOAD_BYTES_MAX || self.in_transaction && self.writer.end_with(span(payload)) > SEGMENT_END_MAX {
            return Err(TooLarge);
        }
        if !self.in_transaction {
            self.roll_if_full(span(payload));
        }
        Ok(())
    }

    /// Begins a new segment if so many more bytes, or one more message, are too much for the open one.
    #[inline]
    fn roll_if_full(&mut self, bytes: usize) {
        let open = self.table.segments.get(&self.writer.segment());
        let crowded = open.is_some_and(|open| open.refs >= self.config.segment_messages);
        let full = self.writer.end_with(bytes) > self.config.segment_bytes as usize || crowded;
        if full && !self.writer.segment_is_empty() {
            self.roll();
        }
    }

    /// Closes the open segment and begins the next.
    pub(crate) fn roll(&mut self) {
        self.flush_pending();
        let (old, next) = (self.writer.segment(), self.writer.segment() + 1);
        self.note_end(old);
        self.writer.close(Some(next));
        self.table.close_segment(old);
        self.table.segments.insert(next, Segment::open());
        self.table.stirred = true;
    }

    /// Ends the batch being built, and hands out the oldest batch that was not written.
    fn poll_write(&mut self) -> Option<Job> {
        if self.writer.is_out() || self.writer.stalled {
            return None;
        }
        let something = self.writer.is_due(COMPANY_BYTES) || !self.pending.is_empty();
        if something && !self.writer.has_closed() {
            self.flush_pending();
            self.note_end(self.writer.segment());
            self.writer.close(None);
        }
        let batch = self.writer.take()?;
        let mut work = WriteWork {
            segment: batch.segment,
            offset: batch.offset,
            bytes: batch.bytes.clone(),
            must_sync: batch.must_sync,
            create: None,
            outcome: None,
        };
        let (creates, first_batch) = (batch.creates(), batch.number);
        if creates {
            let header = LogHeader { segment: work.segment, incarnation: self.incarnation, first_batch }.encode();
            let spare = self.keeper.spare_for(work.segment);
            let (bytes, cuts) = (u64::from(self.config.segment_bytes), self.cuts.clone());
            work.create = Some(Create { header, spare, bytes, cuts });
        }
        Some(self.job(Work::Write(work)))
    }

    /// Notes where the segment ends with the batch being built.
    fn note_end(&mut self, segment: u32) {
        if let Some(open) = self.table.segments.get_mut(&segment) {
            open.bytes = self.writer.end_with(0) as u32;
            open.last_batch = self.writer.number();
        }
    }

    fn write_done(&mut self, work: WriteWork) -> Done {
        let (segment, created) = (work.segment, work.create.is_some());
        // The bytes go back to the writer, which fills them again.
        let outcome = work.outcome;
        self.keeper.note_batch(work.bytes.len());
        drop(work.bytes);
        self.table.stirred |= self.keeper.waits || self.wants_spare();
        match outcome {
            Some(Ok(())) => {
                self.writer.finished();
                self.table.stirred |= self.keeper.paused;
                self.keeper.paused = false;
                if created {
                    self.keeper.created(segment);
                    self.cuts.clear();
                    self.table.stirred = true;
                }
                if self.writer.unsynced_bytes() > self.config.unsynced_bytes_max {
                    self.writer.require_sync();
                }
                Done::Written
            }
            Some(Err(WriteError::Write(fault))) => {
                self.writer.write_failed();
                Done::Failed(fault)
            }
            Some(Err(WriteError::Sync(fault))) => {
                self.replace();
                Done::Failed(fault)
            }
            None => {
                self.writer.write_failed();
                Done::Failed(Fault::not_run())
            }
        }
    }
}

fn entry(put: Put, target: &Target, body: u32) -> Entry {
    Entry { position: target.position, expires: target.expires(), offset: put.offset, length: put.length, body }
}
