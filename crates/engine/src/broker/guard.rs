//! Barriers at work: duplicates are held back, and what passes is remembered.
//!
//! Owns the way of an id from the look (while a message is routed and offered) to the memory (once it is taken and, if
//! it is durable, in the same batch as its id). Messages come in from `publish.rs`; what it adds to the outcome goes
//! back there. It must never hold back what the node itself moves: a dead letter, or a message whose delay is over, is
//! not published a second time. Rules: docs/guides/idempotency.md; what was refused or could not be stored leaves no
//! id behind, and a duplicate is confirmed only when the first copy is safe.

use super::{Broker, Published, Store};
use crate::barrier::{Barrier, Id, Key, Settings};
use crate::durability::Needs;
use crate::limits::Limits;
use crate::message::Message;
use crate::queue::QueueId;
use crate::routing::ExchangeId;

/// The number of the node's own ids in the journal; numbers of queues and exchanges are smaller.
const FABRIC_NUMBER: u64 = u64::MAX - 1;

/// Where a barrier stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Exchange(ExchangeId),
    Queue(QueueId),
    Fabric,
}

/// What a barrier said of the message that is being published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    /// The message's number: what one that was never published left behind means nothing to the next.
    serial: u64,
    place: Place,
    id: Id,
    known: bool,
}

/// The settings of the node's own barrier. A message may be in doubt for `doubt_s`, and is known for a quarter longer
/// at least: after an outage that ends by itself, whoever asks for it is told.
pub(super) fn fabric_settings(limits: &Limits) -> Settings {
    let outage_ms = u64::from(limits.doubt_s) * 1_000;
    let window_ms = (u64::from(limits.relay_window_s) * 1_000).max(outage_ms + outage_ms / 4);
    let ids_max = limits.relay_ids_max;
    Settings { key: Key::Fabric, or_body: false, window_ms, ids_max, number: FABRIC_NUMBER }
}

impl Broker {
    pub(super) fn barrier_mut(&mut self, place: Place) -> Option<&mut Barrier> {
        match place {
            Place::Exchange(id) => self.exchanges.get_mut(id)?.barrier.as_deref_mut(),
            Place::Queue(id) => self.queues.get_mut(id)?.barrier.as_deref_mut(),
            Place::Fabric => Some(&mut self.fabric),
        }
    }

    /// Asks a barrier: is this a duplicate? The answer is noted for `settle_guards`.
    pub(super) fn guard(&mut self, place: Place, message: &Message) -> bool {
        let now_ms = self.wall_ns / 1_000_000;
        if self.moving || message.deaths.is_some() {
            return false;
        }
        let Some(barrier) = self.barrier_mut(place) else { return false };
        let Some(id) = barrier.id_of(message) else { return false };
        let known = barrier.knows(&id, now_ms);
        self.guards.push(Guard { serial: message.traits.serial, place, id, known });
        known
    }

    /// A message came by a relay link. Some: this node has had it for the same goal, and it is to be answered as if
    /// it were published. None: publish it next; its id is remembered with it. Goals count, because a message of
    /// several queues may come once for each.
    pub fn fabric_barrier(&mut self, message: &Message, id: Id) -> Option<Published> {
        self.guards.clear();
        let now_ms = self.wall_ns / 1_000_000;
        let known = self.fabric.knows(&id, now_ms);
        self.guards.push(Guard { serial: message.traits.serial, place: Place::Fabric, id, known });
        if !known {
            return None;
        }
        let mut published = Published::default();
        self.settle_guards(message, &mut published, true);
        published.receipt = self.end_asking(false);
        Some(published)
    }

    /// Has this node had a message that came by a relay link, if it was only asked? As `fabric_barrier`, but nothing
    /// is to be published, and nothing remembered.
    pub fn fabric_knows(&mut self, message: &Message, id: Id) -> Option<Published> {
        let had = self.fabric_barrier(message, id);
        self.guards.clear();
        had
    }

    /// The queue refused: its barrier has seen nothing.
    pub(super) fn unguard(&mut self, id: QueueId) {
        self.guards.retain(|guard| guard.place != Place::Queue(id));
    }

    /// The message is where it goes: duplicates count, the rest is remembered. Unless it could not be `kept`.
    pub(super) fn settle_guards(&mut self, message: &Message, published: &mut Published, kept: bool) {
        let durable = published.stored;
        // Whether it ends with another message is known before it is remembered.
        if self.guards.len() > 1 {
            self.guards.sort_by_key(|guard| guard.known);
        }
        let (taken, refused) = (published.queues > 0, published.rejected);
        while let Some(guard) = self.guards.pop() {
            if guard.serial != message.traits.serial {
                continue;
            }
            if guard.known {
                self.pledge_copy(guard.place, guard.id, message);
                self.note_duplicate(guard.place, published);
            } else if kept && (matches!(guard.place, Place::Queue(_)) || taken && !refused) {
                self.keep_id(guard, durable);
            }
        }
    }

    /// Does the message that is being published get past a barrier that will remember it?
    pub(super) fn passes_barrier(&self, message: &Message) -> bool {
        self.guards.iter().any(|guard| guard.serial == message.traits.serial && !guard.known)
    }

    /// A queue has taken a message that passed a barrier. A crash before it is safe makes its publisher send it again,
    /// and nobody would know it: so it is not shown to anybody before.
    pub(super) fn hide_stored(&mut self, needs: Needs) {
        for (id, position) in self.hidden.drain(..) {
            let Some(queue) = self.queues.get_mut(id).filter(|_| !needs.is_none()) else { continue };
            if !queue.hides() {
                self.hiding.push(id);
            }
            queue.hide(position, needs);
        }
        if let Some(store) = self.store.as_mut().filter(|_| needs.synced > 0) {
            store.journal.sync();
        }
    }

    /// Is the next message of a queue not to be seen yet? Who searches waits until nothing is hidden.
    pub fn is_hidden(&mut self, id: QueueId, searches: bool) -> bool {
        let Some(reached) = self.store.as_ref().map(Store::reached) else { return false };
        let Some(queue) = self.queues.get_mut(id) else { return false };
        let Some(hidden) = queue.first_hidden(reached) else { return false };
        searches || queue.ready.front().is_some_and(|entry| entry.position >= hidden)
    }

    /// The disk has more: queues that hid something look again.
    pub fn show_hidden(&mut self) {
        let Some(reached) = self.store.as_ref().map(Store::reached) else { return };
        for id in std::mem::take(&mut self.hiding) {
            let Some(queue) = self.queues.get_mut(id) else { continue };
            if queue.first_hidden(reached).is_some() {
                self.hiding.push(id);
            }
            self.arrived.push(id);
            self.touch(id);
        }
    }

    fn note_duplicate(&mut self, place: Place, published: &mut Published) {
        self.totals.duplicates += 1;
        published.queues += usize::from(!matches!(place, Place::Queue(_)));
        let Some(barrier) = self.barrier_mut(place) else { return };
        barrier.duplicates += 1;
        let needs = barrier.needs;
        if let Some(store) = self.store.as_mut().filter(|store| !needs.are_met(store.reached())) {
            store.last = store.last.and(needs);
            published.stored = true;
        }
    }

    fn keep_id(&mut self, guard: Guard, durable: bool) {
        let now_ms = self.wall_ns / 1_000_000;
        let Some(barrier) = self.barrier_mut(guard.place) else { return };
        let until_ms = barrier.remember(guard.id, now_ms);
        let number = barrier.settings.number;
        if self.receipts.is_made() {
            // The message is not on disk, and after a crash its publisher sends it again: it must not be known then.
            return self.pledge_id(guard.place, guard.id);
        }
        let Some(store) = self.store.as_mut().filter(|_| durable && number != 0) else { return };
        let batch = store.journal.remember(number, until_ms, &guard.id);
        let needs = store.needs(batch);
        store.last = store.last.and(needs);
        if let Some(barrier) = self.barrier_mut(guard.place) {
            barrier.needs = barrier.needs.and(needs);
        }
    }

    /// A barrier with these settings, and with what it knew before: of this start, or on disk.
    pub(super) fn renew_barrier(
        &mut self,
        old: Option<Box<Barrier>>,
        settings: Option<Settings>,
    ) -> Option<Box<Barrier>> {
        let settings = settings?;
        if let Some(mut barrier) = old.filter(|old| old.settings.key == settings.key) {
            barrier.settings = settings;
            return Some(barrier);
        }
        let number = settings.number;
        let mut barrier = Barrier::new(settings, self.seed);
        if let Some(store) = self.store.as_mut().filter(|_| number != 0) {
            let (own, others) =
                std::mem::take(&mut store.found_ids).into_iter().partition(|ids| ids.barrier_no == number);
            store.found_ids = others;
            barrier.restore(own, self.wall_ns / 1_000_000);
        }
        Some(Box::new(barrier))
    }

    /// The node has a disk: what came by relay links before this start is known again.
    pub fn attach(&mut self, store: Store) {
        self.store = Some(store);
        let settings = self.fabric.settings.clone();
        if let Some(barrier) = self.renew_barrier(None, Some(settings)) {
            self.fabric = *barrier;
        }
        self.find_notes();
        self.find_delayed();
        self.find_prepared();
        if !self.find_counts() {
            self.read_prepared();
        }
    }
}
