//! Messages on disk: what is stored, what is safe, and what is read back.
//!
//! Owns the broker's side of the journal. Durable messages for durable queues are stored once, however many queues hold
//! them; entries that leave a queue for good are forgotten there; queues longer than their window are read back piece
//! by piece. It must never wait for a disk: jobs go out and come back (`engine.rs`). Rules: docs/internals/segment.md;
//! a promise to a publisher leaves only after `synced` has reached the batch that holds its message.

use weft_wire::amqp10::condition;

use weft_journal::{Journal, Messages, Read, ReadDone, RecoveredBarrier, RecoveredQueue, Target};

use super::reading::Reading;
use super::{Broker, Fate};
use crate::durability::{Durability, Needs};
use crate::message::Message;
use crate::queue::consumers::ConsumerId;
use crate::queue::ready::NEVER;
use crate::queue::{Cold, FETCH_COUNT, Queue, QueueId};
use crate::record;
use crate::stream::Stream;
use crate::timers::Due;

/// Bytes read from disk with one message, on the average: what is read at a time is bounded by both, so
/// that with the block it begins in and the one it ends in it fits a large page (decision 0071).
const FETCH_BYTES_EACH: usize = 1_990;

/// Bytes on their way to the disk beyond which publishers wait for it.
const UNWRITTEN_BYTES_MAX: usize = 4 << 20;

/// What a tap copies is shown to its readers about this long after, or sooner if there is much of it.
const WATCH_NS: u64 = 10_000_000;

/// Queues and exchanges that are declared have numbers up to here; the node's own are larger.
const DECLARED_MAX: u64 = 1 << 62;

/// The journal with what the broker has to remember about it.
pub struct Store {
    pub journal: Journal,
    /// What it takes until everything is safe that was stored by the session that is being read.
    pub last: Needs,
    /// Why the disk does not take anything at the moment.
    pub fault: Option<String>,
    /// The last read was refused.
    pub unreadable: bool,
    /// Queues that the journal knew when it was opened, until they are declared.
    pub found: Vec<RecoveredQueue>,
    /// Ids of barriers that the journal knew when it was opened, until their barriers are there.
    pub found_ids: Vec<RecoveredBarrier>,
    /// Reads that the disk refused, to be answered after a pause.
    pub resting: Vec<ReadDone>,
    /// Reads under way, by token.
    pub(crate) reads: Vec<(u64, ReadFor)>,
    targets: Vec<Target>,
    /// One of them wants more than a write.
    must_sync: bool,
    /// Streams among the targets, and how many of these only watch.
    streams: Vec<QueueId>,
    watching: usize,
    /// Something was stored that nobody waits for; its publisher may still be too fast for the disk.
    pub watched: bool,
    /// The batch of what taps stored first since the last timer that was set for them.
    watch_batch: Option<u64>,
    head: Vec<u8>,
}

/// Who waits for a read.
#[derive(Clone, Copy, Debug)]
pub enum ReadFor {
    /// A queue whose window runs low.
    Queue(QueueId),
    /// A lane of a reader of streams, from this offset on.
    Reader(ConsumerId, usize, u64),
    /// The retention of a stream: when did this offset arrive?
    Retention(QueueId, u64),
    /// Readers with a name; from this position of their records on.
    Offsets(u64),
    /// Delayed messages, from this position on.
    Delayed(u64),
    /// Counts of failed deliveries, from this position of their records on.
    Counts(u64),
    /// Prepared transactions of the last life.
    Prepared,
    /// A delivery that one of them holds.
    Held,
    /// A consumer that searches behind the window of its queue, from this position on.
    Search(ConsumerId, u64),
}

/// Are there messages under this number of the journal, or only what the node remembers of them?
pub fn holds_messages(queue_no: u64) -> bool {
    queue_no <= DECLARED_MAX || queue_no == super::delayed::NUMBER
}

impl Store {
    pub fn new(journal: Journal, found: Vec<RecoveredQueue>, found_ids: Vec<RecoveredBarrier>) -> Self {
        let (reads, targets, streams, head) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            journal,
            last: Needs::default(),
            fault: None,
            unreadable: false,
            resting: Vec::new(),
            found,
            found_ids,
            reads,
            targets,
            must_sync: false,
            streams,
            watching: 0,
            watched: false,
            watch_batch: None,
            head,
        }
    }

    /// How far the disk is.
    #[inline]
    pub fn reached(&self) -> Needs {
        Needs { written: self.journal.written(), synced: self.journal.synced() }
    }

    /// What it takes until this batch is safe: as much as the message that was stored last wants.
    pub(super) fn needs(&self, batch: u64) -> Needs {
        Needs { written: batch, synced: if self.must_sync { batch } else { 0 } }
    }
}

impl Broker {
    /// Batches up to this one are on the disk itself.
    #[inline]
    pub fn synced(&self) -> u64 {
        self.store.as_ref().map_or(u64::MAX, |store| store.journal.synced())
    }

    /// What the node itself stored, a dead letter perhaps, is not the business of the session that is read next.
    #[inline]
    pub fn begin_session(&mut self) {
        self.store.iter_mut().for_each(|store| store.last = Needs::default());
    }

    /// What it takes until everything is safe that was stored since `begin_session`; the disk is asked for it.
    pub fn end_session(&mut self) -> Needs {
        let Some(store) = &mut self.store else { return Needs::default() };
        let needs = std::mem::take(&mut store.last);
        if needs.synced > store.journal.synced() {
            store.journal.sync();
        }
        needs
    }

    /// Does the disk refuse, or lag so far behind that publishers have to wait for it?
    pub fn disk_is_behind(&self) -> bool {
        let behind = |store: &Store| store.fault.is_some() || store.journal.pending_bytes() > UNWRITTEN_BYTES_MAX;
        self.store.as_ref().is_some_and(behind)
    }

    /// Does the disk refuse?
    pub fn disk_refuses(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.fault.is_some())
    }

    /// Will this message be stored in this queue? One that its publisher keeps until its end only for want of memory.
    #[inline]
    pub(super) fn is_stored(&self, id: QueueId, message: &Message, pledged: bool) -> bool {
        let Some(queue) = self.queues.get(id).filter(|_| self.store.is_some()) else { return false };
        queue.settings.number != 0 && (queue.keeps(message) && !pledged || queue.spills())
    }

    /// A queue has taken a message that is to be stored, at this position.
    #[inline]
    pub(super) fn will_store(&mut self, queue_no: u64, position: u64, expires_ns: u64, level: Durability) {
        let transient = level == Durability::Memory;
        let left_ms = expires_ns.saturating_sub(self.now_ns) / 1_000_000;
        let expires_ms =
            if expires_ns == NEVER { 0 } else { (self.wall_ns / 1_000_000).saturating_add(left_ms).max(1) };
        if let Some(store) = &mut self.store {
            // Of several queues the one that wants most is waited for.
            store.must_sync = level == Durability::Sync || store.must_sync && !store.targets.is_empty();
            store.targets.push(Target { queue_no, position, expires_ms, transient });
        }
    }

    /// A stream has taken a message, at this offset.
    #[inline]
    pub(crate) fn will_append(&mut self, id: QueueId, queue_no: u64, offset: u64, watches: bool) {
        if let Some(store) = &mut self.store {
            store.watching += usize::from(watches);
            store.targets.push(Target { queue_no, position: offset, expires_ms: 0, transient: false });
            store.streams.push(id);
        }
    }

    /// Stores a message for the queues that have taken it: is the disk's answer to be waited for? None if it cannot be
    /// stored.
    #[inline]
    pub(super) fn store_message(&mut self, message: &Message) -> Option<bool> {
        let Some(store) = self.store.as_mut().filter(|store| !store.targets.is_empty()) else { return Some(false) };
        store.head.clear();
        record::encode(message, &mut store.head);
        let watching = std::mem::take(&mut store.watching);
        // What is on disk for want of memory, or to be watched, is not waited for.
        let kept = store.targets.iter().filter(|target| !target.transient).count() > watching;
        let Store { journal, head, targets, .. } = store;
        let body = message.body().parts();
        let stored = match kept {
            true => journal.append_message(head, body, targets),
            false => journal.append_idly(head, body, targets),
        };
        let stored = stored.ok();
        store.targets.clear();
        let shown = store.streams.len() > watching;
        store.must_sync |= shown;
        store.watched |= watching > 0 || !kept;
        let has_streams = !store.streams.is_empty();
        let needs = stored.filter(|_| kept).map_or_else(Needs::default, |batch| store.needs(batch));
        store.last = store.last.and(needs);
        if !self.hidden.is_empty() {
            self.hide_stored(needs);
        }
        if has_streams {
            self.store_streams(stored, message.body_len() as u64, shown);
        }
        stored.map(|_| kept)
    }

    /// A stream shows only what is on the disk itself, whatever its messages say of themselves. Those that only watch
    /// have a moment, in which others may join them: a sync for each would cost more than the message.
    fn store_streams(&mut self, stored: Option<u64>, bytes: u64, shown: bool) {
        let Some(store) = &mut self.store else { return };
        match shown {
            true => store.journal.sync(),
            false => store.journal.sync_idly(),
        }
        if !shown && store.watch_batch.is_none() && stored.is_some() {
            store.watch_batch = stored;
            self.timers.set(self.now_ns + WATCH_NS, Due::Watched);
        }
        let mut streams = std::mem::take(&mut store.streams);
        self.stored_streams(&streams, stored, bytes);
        streams.clear();
        self.store.iter_mut().for_each(|store| store.streams = std::mem::take(&mut streams));
    }

    /// Those who watch have waited long enough for what is not on the disk yet.
    pub fn sync_watched(&mut self) {
        let Some(store) = &mut self.store else { return };
        if store.watch_batch.take() > Some(store.journal.synced()) {
            store.journal.sync();
        } else if !self.unsynced_streams.is_empty() {
            // The first of them went with something that hurried; those that came since may not have.
            store.watch_batch = Some(store.journal.batch());
            self.timers.set(self.now_ns + WATCH_NS, Due::Watched);
        }
    }

    /// Until `commit`, everything that is stored and forgotten is one: after a crash it is there whole or not at all.
    pub fn begin(&mut self) {
        self.store.iter_mut().for_each(|store| store.journal.begin());
    }
    pub fn commit(&mut self) {
        if let Some(store) = &mut self.store {
            let batch = store.journal.commit();
            store.last = Needs { written: batch, synced: batch };
        }
    }

    /// An entry has left its queue for good.
    #[inline]
    pub fn forget(&mut self, id: QueueId, position: u64) {
        let Some(store) = &mut self.store else { return };
        if let Some(queue) = self.queues.get_mut(id).filter(|queue| queue.settings.number != 0) {
            let number = queue.settings.number;
            if !queue.out_of_turn.is_empty() {
                queue.out_of_turn.remove(&position);
            }
            store.journal.ack(number, position);
            self.forget_count(number, position);
        }
    }

    /// Everything in a queue from a position on is gone, but for some that consumers have.
    pub(super) fn forget_from(&mut self, queue_no: u64, mut first: u64, but: impl Iterator<Item = u64>) {
        let Some(store) = self.store.as_mut().filter(|_| queue_no != 0) else { return };
        let start = first;
        for position in but.filter(|position| *position >= start) {
            if position > first {
                store.journal.ack_range(queue_no, first, position - 1);
            }
            first = position + 1;
        }
        store.journal.ack_range(queue_no, first, weft_journal::POSITION_MAX);
        self.forget_counts(queue_no, start);
    }

    /// A queue is gone, and all that was in it.
    pub(super) fn forget_queue(&mut self, queue_no: u64) {
        if let Some(store) = self.store.as_mut().filter(|_| queue_no != 0) {
            store.journal.delete_queue(queue_no);
            self.forget_counts(queue_no, 0);
        }
    }

    /// Messages of a queue that would be lost if the power went now.
    pub fn unsynced_messages(&self, queue: &Queue) -> u64 {
        let number = queue.settings.number;
        let safe = |store: &Store| if number == 0 { 0 } else { store.journal.safe_messages(number) };
        match (&queue.stream, queue.len() + queue.unsettled) {
            (_, 0) => 0,
            (Some(stream), _) if number != 0 && self.store.is_some() => stream.next() - stream.visible(),
            (Some(stream), _) => stream.len() as u64,
            (None, all) => (all as u64).saturating_sub(self.store.as_ref().map_or(0, safe)),
        }
    }

    /// Queues on disk that nobody has declared, with their messages.
    pub fn unclaimed(&self) -> Vec<(u64, u64)> {
        let found = self.store.iter().flat_map(|store| &store.found);
        found.filter(|found| found.queue_no <= DECLARED_MAX).map(|found| (found.queue_no, found.messages)).collect()
    }

    /// Everything that exists has been declared, and these queues were deleted: what they have on disk goes. What is
    /// there of others nobody can account for: it stays.
    pub fn drop_unclaimed(&mut self, mut deleted: Vec<u64>) {
        let Some(store) = &mut self.store else { return };
        deleted.sort_unstable();
        let is_deleted = |found: &RecoveredQueue| deleted.binary_search(&found.queue_no).is_ok();
        let (gone, left) = std::mem::take(&mut store.found).into_iter().partition(is_deleted);
        store.found = left;
        let is_known = |number| number > DECLARED_MAX || store.found.iter().any(|found| found.queue_no == number);
        store.found_ids.retain(|ids| is_known(ids.barrier_no));
        let gone: Vec<RecoveredQueue> = gone;
        gone.into_iter().for_each(|found| self.forget_queue(found.queue_no));
    }

    /// Is the next message of a queue still on its way from the disk?
    pub fn is_coming(&mut self, id: QueueId) -> bool {
        while self.queues.get(id).is_some_and(Queue::is_cold) {
            if !self.fetch(id, FETCH_COUNT) {
                return true;
            }
        }
        self.is_hidden(id, false)
    }

    /// A queue that was stored before this start goes on where it was.
    pub(super) fn find_stored(&mut self, id: QueueId) {
        let (Some(store), Some(queue)) = (&mut self.store, self.queues.get_mut(id)) else { return };
        let number = queue.settings.number;
        let Some(at) = store.found.iter().position(|found| found.queue_no == number && number != 0) else { return };
        let found = store.found.swap_remove(at);
        let (next, known) = (found.first_position, found.next_position);
        if queue.stream.is_some() {
            queue.stream = Some(Box::new(Stream::found(next, known, found.body_bytes)));
            return self.trim(id);
        }
        let cold = Cold { next, count: found.messages, bytes: found.body_bytes, known, reading: false };
        queue.resume(known, cold);
        self.find_doubts(id, known);
        self.hold_stored(id);
        self.touch(id);
    }

    /// Reads on in a queue whose window has run low. False if what was read is yet to come.
    pub fn fetch(&mut self, id: QueueId, count: usize) -> bool {
        if self.awaits_counts(id) {
            return false;
        }
        let (Some(store), Some(queue)) = (&mut self.store, self.queues.get_mut(id)) else { return true };
        let number = queue.settings.number;
        let Some(cold) = queue.cold.as_mut().filter(|cold| !cold.reading) else { return false };
        match store.journal.read_once(number, cold.next, count, count * FETCH_BYTES_EACH) {
            Read::Empty => queue.end_cold(),
            Read::Ready(messages) => self.fill(id, &messages, 0),
            Read::Waits(token) => {
                cold.reading = true;
                store.reads.push((token, ReadFor::Queue(id)));
                return false;
            }
        }
        true
    }

    /// A disk that refused is tried again.
    pub fn retry_disk(&mut self) {
        let Some(store) = &mut self.store else { return };
        store.journal.retry();
        for read in std::mem::take(&mut store.resting) {
            self.fetched(read);
        }
    }

    /// A read has come back.
    pub fn fetched(&mut self, mut done: ReadDone) {
        let Some(store) = &mut self.store else { return };
        let Some(at) = store.reads.iter().position(|read| read.0 == done.token) else { return };
        match store.reads.swap_remove(at).1 {
            ReadFor::Queue(id) => {
                if let Some(cold) = self.queues.get_mut(id).and_then(|queue| queue.cold.as_mut()) {
                    cold.reading = false;
                }
                self.fill(id, &done.messages, done.damaged.len() as u64);
                self.arrived.push(id);
            }
            ReadFor::Reader(id, lane, from) => {
                self.read_came(id, (lane, from), std::mem::take(&mut done.messages));
            }
            ReadFor::Retention(id, offset) => self.asked(id, offset, Some(&done.messages)),
            ReadFor::Offsets(from) => self.offsets_came(from, &done.messages),
            ReadFor::Delayed(from) => self.delayed_came(from, &done.messages),
            ReadFor::Counts(from) => self.counts_came(from, &done.messages),
            ReadFor::Prepared => self.prepared_came(&done.messages),
            ReadFor::Held => self.held_came(&done.messages),
            ReadFor::Search(id, from) => self.piece_came(id, from, &done.messages, done.damaged.len() as u64),
        }
    }

    fn fill(&mut self, id: QueueId, messages: &Messages, damaged: u64) {
        let mut rotten = Vec::new();
        let Some(queue) = self.queues.get_mut(id) else { return };
        let Some(cold) = &mut queue.cold else { return };
        let mut reading = Reading::new(self.now_ns, self.wall_ns, &self.own_account, &self.counts);
        for stored in messages.iter() {
            if stored.position < cold.next {
                // The queue was purged, and filled again, while this was read.
                continue;
            }
            cold.next = stored.position + 1;
            let taken = queue.out_of_turn.remove(&stored.position);
            if matches!(taken, Some(None)) {
                continue;
            }
            cold.count = cold.count.saturating_sub(1);
            cold.bytes = cold.bytes.saturating_sub(stored.body.len() as u64);
            match taken.flatten().or_else(|| reading.entry(queue.settings.number, cold.known, &stored)) {
                Some(entry) => queue.ready.push_back(entry),
                None => rotten.push(stored.position),
            }
        }
        cold.count = cold.count.saturating_sub(damaged);
        if cold.count == 0 {
            queue.end_cold();
        }
        for position in rotten {
            self.forget(id, position);
            self.redeem(id, position, || Fate::refused(condition::INTERNAL_ERROR, "the message was damaged"));
        }
        self.wake_searched(id);
        self.touch(id);
        self.schedule(id);
    }
}
