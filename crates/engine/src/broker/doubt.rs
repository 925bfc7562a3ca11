//! Which node may have what: the memory of who drains a queue, and what is done with messages in doubt.
//!
//! Owns the notes in the journal of the nodes that queues were drained by, and the doubts made of them at the next
//! start. Links between nodes come in as they are attached and lost, answers as they arrive; queues learn who may take
//! what. It must never write to a peer. Rules: docs/decisions/0021; a node is noted on the disk itself before the first
//! message goes to it, and doubts end after `limits.doubt_s`.

use super::Broker;
use crate::durability::Needs;
use crate::event::Event;
use crate::queue::QueueId;
use crate::queue::doubts::{Claim, Doubts, Peer};
use crate::queue::ready::Cursor;

/// The number of these notes in the journal, beside those of barriers.
const NOTES_NUMBER: u64 = u64::MAX - 2;
/// Notes that are kept: each is a queue and a node that drains it.
const NOTES_MAX: usize = 65_536;

/// A node that a queue is drained by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    queue_no: u64,
    peer: Peer,
    until_ms: u64,
}

impl Broker {
    /// A link to another node begins to take from a queue, or goes on: the disk has to know, in case nobody else does
    /// later. Until it does, the queue shows nothing. Answers when to say so again, by the wall's clock.
    pub fn note_drain(&mut self, id: QueueId, peer: Peer) -> u64 {
        // What a node does not remember as its own any more, it need not be asked for.
        let (now_ms, window_ms) = (self.wall_ns / 1_000_000, self.fabric.settings.window_ms);
        let (renew_ns, until_ms) = ((now_ms + window_ms) * 1_000_000, now_ms + 2 * window_ms);
        let Some(queue_no) = self.queues.get(id).map(|queue| queue.settings.number).filter(|number| *number != 0)
        else {
            return renew_ns;
        };
        let is_same = |note: &&mut Note| note.queue_no == queue_no && note.peer == peer;
        let is_new = match self.notes.iter_mut().find(is_same) {
            Some(note) if note.until_ms > now_ms + window_ms => return renew_ns,
            Some(note) => std::mem::replace(&mut note.until_ms, until_ms) <= now_ms,
            None => {
                self.notes.retain(|note| note.until_ms > now_ms);
                self.notes.truncate(NOTES_MAX - 1);
                self.notes.push(Note { queue_no, peer, until_ms });
                true
            }
        };
        let Some(store) = &mut self.store else { return renew_ns };
        let batch = store.journal.remember(NOTES_NUMBER, until_ms, &bytes_of(queue_no, peer));
        store.journal.sync();
        if let Some(queue) = self.queues.get_mut(id).filter(|_| is_new) {
            if !queue.hides() {
                self.hiding.push(id);
            }
            queue.hide_all(Needs { written: batch, synced: batch });
        }
        renew_ns
    }

    /// The notes of before this start.
    pub(super) fn find_notes(&mut self) {
        let Some(store) = &mut self.store else { return };
        let (own, others) =
            std::mem::take(&mut store.found_ids).into_iter().partition(|ids| ids.barrier_no == NOTES_NUMBER);
        store.found_ids = others;
        let own: Vec<weft_journal::RecoveredBarrier> = own;
        for record in own {
            let (ids, _) = record.ids.as_chunks::<16>();
            for id in ids {
                let (Some(queue_no), Some(peer)) = (id.first_chunk::<8>(), id.last_chunk::<8>()) else { continue };
                let (queue_no, peer) = (u64::from_le_bytes(*queue_no), Peer::from_bytes(*peer));
                let is_same = |note: &&mut Note| note.queue_no == queue_no && note.peer == peer;
                match self.notes.iter_mut().find(is_same) {
                    Some(note) => note.until_ms = note.until_ms.max(record.until_ms),
                    None => self.notes.push(Note { queue_no, peer, until_ms: record.until_ms }),
                }
            }
        }
    }

    /// A queue goes on with what it held before this start: whoever drained it may have any of it.
    pub(super) fn find_doubts(&mut self, id: QueueId, end: u64) {
        let (now_ms, until_ns) = (self.wall_ns / 1_000_000, self.doubts_end_ns());
        let Some(queue) = self.queues.get_mut(id) else { return };
        let number = queue.settings.number;
        let notes = self.notes.iter().filter(|note| note.queue_no == number && note.until_ms > now_ms);
        let peers: Vec<Peer> = notes.map(|note| note.peer).collect();
        if !peers.is_empty() {
            queue.doubts = Some(Box::new(Doubts::found(end, peers, until_ns)));
            self.schedule(id);
        }
    }

    /// A link is lost before its node said what became of a message.
    pub fn doubt(&mut self, id: QueueId, position: u64, peer: Peer) {
        let until_ns = self.doubts_end_ns();
        let Some(queue) = self.queues.get_mut(id) else { return };
        queue.doubts.get_or_insert_default().add(position, peer, until_ns);
        self.schedule(id);
    }

    /// A node that was asked says that it does not have a message.
    pub fn deny(&mut self, id: QueueId, position: u64, peer: Peer) {
        if let Some(doubts) = self.queues.get_mut(id).and_then(|queue| queue.doubts.as_mut()) {
            doubts.deny(position, peer);
        }
    }

    /// Is a node only asked for a message, instead of getting it?
    #[inline]
    pub fn asks(&self, id: QueueId, position: u64, peer: Option<Peer>) -> bool {
        let doubts = self.queues.get(id).and_then(|queue| queue.doubts.as_ref());
        doubts.is_some_and(|doubts| doubts.claim(position, peer) == Claim::Tell)
    }

    /// Doubts of a queue whose time is over: their messages are for anybody, and may come twice.
    pub(super) fn end_doubts(&mut self, id: QueueId) {
        let now_ns = self.now_ns;
        let Some(queue) = self.queues.get_mut(id) else { return };
        let Some(doubts) = queue.doubts.as_mut().filter(|doubts| doubts.next_ns() <= now_ns) else { return };
        let (found, freed) = doubts.end(now_ns);
        let mut steps = self.limits.work_max;
        let mut waiting = 0;
        if let Some(end) = found {
            let mut count = |entry: &crate::queue::ready::Entry| {
                waiting += u64::from(entry.position < end);
                false
            };
            queue.ready.find(&mut Cursor::default(), &mut steps, &mut count);
            // What nobody has read since the start waits as well.
            waiting += queue.cold.map_or(0, |cold| cold.count.min(end.saturating_sub(cold.next)));
        }
        let undecided = freed + waiting;
        self.totals.undecided += undecided;
        if doubts.is_empty() {
            queue.doubts = None;
        }
        if let Some(vhost) = self.vhosts.get(queue.vhost).filter(|_| undecided > 0) {
            let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
            let (vhost, queue) = (name(&vhost.name), name(&queue.name));
            self.events.push(Event::DoubtEnded { vhost, queue, messages: undecided });
        }
        for member in queue.ring.members() {
            if let Some(consumer) = self.consumers.get_mut(member).filter(|consumer| !consumer.browse) {
                consumer.cursor = Cursor::default();
            }
        }
        self.wake_searched(id);
        self.touch(id);
    }

    fn doubts_end_ns(&self) -> u64 {
        self.now_ns.saturating_add(u64::from(self.limits.doubt_s) * 1_000_000_000)
    }
}

fn bytes_of(queue_no: u64, peer: Peer) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&queue_no.to_le_bytes());
    bytes[8..].copy_from_slice(&peer.to_bytes());
    bytes
}
