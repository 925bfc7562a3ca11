//! A message arrives: it is routed, once, and put into queues.
//!
//! Owns the way from an exchange to the queues it leads to. A built message and its exchange come in; how many queues
//! took it comes out, and the queues are marked for delivery. It must never deliver: that happens at the end of the
//! turn, for all queues at once. Rules: one copy per queue and publish; alternate exchanges where nothing matched;
//! exchange cycles end at the second visit.

use std::hash::BuildHasher;
use std::rc::Rc;

use super::guard::Place;
use super::{Broker, Dying, Reason, ReceiptId};
use crate::durability::Durability;
use crate::fields;
use crate::message::{Message, Name};
use crate::queue::{Offer, QueueId};
use crate::routing::matches::Trail;
use crate::routing::{Dest, ExchangeId};
use crate::stream::tap;
use crate::timers::Due;

/// Bindings of a headers exchange that are looked at for one unit of work.
const ROWS_PER_UNIT: usize = 8;

/// What became of a published message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Queues that it reached.
    pub queues: usize,
    /// Some queue refused it (`reject-publish`).
    pub rejected: bool,
    /// It, or the first copy of what was held back, is safe once the disk has it.
    pub stored: bool,
    /// Its publisher is answered when this one is complete.
    pub receipt: Option<ReceiptId>,
}

impl Broker {
    /// Routes a message by its exchange and key, and by `more_keys` (the CC and BCC headers).
    pub fn publish(&mut self, exchange: ExchangeId, message: &Rc<Message>, more_keys: &[&[u8]]) -> Published {
        let targets = self.route_of(exchange, message, more_keys);
        self.matches.count();
        let published = self.deliver_to(exchange, &targets, message);
        self.route = targets;
        published
    }

    /// The queues a message reaches. The caller hands the vector back by assigning `route`, so that it is not allocated
    /// anew.
    pub fn route_of(&mut self, exchange: ExchangeId, message: &Message, more_keys: &[&[u8]]) -> Vec<QueueId> {
        self.route_past(None, exchange, message, more_keys)
    }

    /// The queues a message reaches that the barrier of an exchange has let pass before.
    fn route_past(
        &mut self,
        passed: Option<ExchangeId>,
        exchange: ExchangeId,
        message: &Message,
        more_keys: &[&[u8]],
    ) -> Vec<QueueId> {
        self.route_guarded = false;
        let mut targets = std::mem::take(&mut self.route);
        targets.clear();
        self.matches.begin();
        self.route_mark += 1;
        let mark = self.route_mark;
        let (mut visit, mut taps) = (vec![exchange], Vec::new());
        let mut headers = fields::Headers::of(message);
        while let Some(id) = visit.pop() {
            let Some(exchange) = self.exchanges.get_mut(id) else { continue };
            if std::mem::replace(&mut exchange.mark, mark) == mark {
                continue;
            }
            if exchange.barrier.is_some() && passed != Some(id) {
                self.route_guarded = true;
                if self.guard(Place::Exchange(id), message) {
                    continue;
                }
            }
            let Some(exchange) = self.exchanges.get_mut(id) else { continue };
            taps.extend(exchange.tap.iter().map(|tap| (exchange.vhost, Rc::clone(tap))));
            let before = targets.len() + visit.len();
            let mut matched = false;
            let (queues, matches) = (&mut self.queues, &mut self.matches);
            let mut found = |dest| match dest {
                Dest::Queue(id) => {
                    matched = true;
                    if let Some(queue) = queues.get_mut(id)
                        && std::mem::replace(&mut queue.mark, mark) != mark
                    {
                        taps.extend(queue.settings.tap.iter().map(|tap| (queue.vhost, Rc::clone(tap))));
                        targets.push(id);
                    }
                }
                Dest::Exchange(id) => {
                    matched = true;
                    visit.push(id);
                }
            };
            let is_default = exchange.name.is_empty();
            let keys = if exchange.reads_key() { 1 + more_keys.len() } else { 1 };
            for key in std::iter::once(&*message.routing_key).chain(more_keys.iter().copied()).take(keys) {
                if is_default {
                    let queue = self.vhosts.get(exchange.vhost).and_then(|vhost| vhost.queues.get(key));
                    queue.into_iter().for_each(|id| found(Dest::Queue(*id)));
                } else {
                    exchange.find(key, |name| headers.get(name), &mut |dest, id| {
                        matches.note(id);
                        found(dest);
                    });
                }
            }
            if !matched && let (Some(name), Some(vhost)) = (&exchange.alternate, self.vhosts.get(exchange.vhost)) {
                visit.extend(vhost.exchanges.get(name).copied());
            }
            let work =
                (targets.len() + visit.len()).saturating_sub(before) + keys - 1 + exchange.rows_read() / ROWS_PER_UNIT;
            self.work_left = self.work_left.saturating_sub(work as u32);
        }
        self.add_watchers(&mut targets, &taps, mark);
        targets
    }

    /// Gives a vector from `route_of` back for the next one.
    pub fn recycle_route(&mut self, targets: Vec<QueueId>) {
        self.guards.clear();
        self.route = targets;
    }

    /// Must the next message to the same place be routed anew, because this one met a barrier?
    pub fn route_is_guarded(&self) -> bool {
        self.route_guarded
    }

    /// Puts a message that came to an exchange into these queues.
    pub fn deliver_to(&mut self, exchange: ExchangeId, targets: &[QueueId], message: &Rc<Message>) -> Published {
        let published = self.put_into(targets, message);
        self.note_routed(exchange, published.queues);
        self.totals.published += 1;
        published
    }

    /// The same for a message that goes a way that is remembered.
    #[inline]
    pub fn deliver_along(&mut self, trail: &Rc<Trail>, message: &Rc<Message>) -> Published {
        let published = self.put_into(&trail.targets, message);
        self.note_published(trail, published.queues);
        self.totals.published += 1;
        published
    }

    fn put_into(&mut self, targets: &[QueueId], message: &Rc<Message>) -> Published {
        let mut published = Published::default();
        let (targets, watchers) = tap::split(targets);
        for id in targets {
            match self.enqueue(*id, message) {
                Some(Offer::Taken) => published.queues += 1,
                Some(Offer::Rejected { .. }) => {
                    published.queues += 1;
                    published.rejected = true;
                }
                None => {}
            }
        }
        self.show_watchers(watchers, message);
        // What cannot be stored was not taken, whatever memory says.
        let kept = self.store_message(message);
        match kept {
            Some(stored) => published.stored = stored,
            None => published.rejected = true,
        }
        if !self.guards.is_empty() {
            self.settle_guards(message, &mut published, kept.is_some());
        }
        published.receipt = self.end_asking(published.rejected);
        self.totals.unroutable += u64::from(published.queues == 0);
        published
    }

    #[inline]
    fn enqueue(&mut self, id: QueueId, message: &Rc<Message>) -> Option<Offer> {
        let now_ns = self.now_ns;
        self.work_left = self.work_left.saturating_sub(1);
        if self.queues.get(id)?.barrier.is_some() && self.guard(Place::Queue(id), message) {
            return Some(Offer::Taken);
        }
        let pledged = self.queues.get(id)?.settings.end_to_end && self.receipts.is_asked(message);
        let stored = self.is_stored(id, message, pledged);
        let queue = self.queues.get_mut(id)?;
        if queue.stream.is_some() {
            let part = self.part_of(id, message)?;
            return self.append(part, message, false).then_some(Offer::Taken);
        }
        let offer = queue.offer(message, now_ns, stored, self.admits);
        if let Offer::Rejected { dead_letter } = offer {
            self.unguard(id);
            if dead_letter {
                // Later in this call: full queues that refer to each other must not nest.
                self.dying.push_back(Dying {
                    queue: id,
                    message: Rc::clone(message),
                    reason: Reason::MaxLen,
                    position: None,
                    stored: false,
                });
            }
            return Some(offer);
        }
        if stored {
            let (number, position, expires_ns) = queue.last_offered();
            if !self.guards.is_empty() && self.passes_barrier(message) {
                self.hidden.push((id, position));
            }
            let queue = self.queues.get(id)?;
            let level =
                if queue.keeps(message) && !pledged { queue.settings.durability } else { Some(Durability::Memory) };
            let level = level.unwrap_or_default();
            self.will_store(number, position, expires_ns, level);
        }
        if pledged {
            let (_, position, _) = self.queues.get(id)?.last_offered();
            self.pledge(id, position);
        }
        let queue = self.queues.get_mut(id)?;
        self.pump_first |= queue.wants_pump();
        let timed = queue.settings.message_ttl_ms.is_some() || message.traits.ttl_ms.is_some();
        if !std::mem::replace(&mut queue.dirty, true) {
            self.dirty.push_back(id);
        }
        if queue.ring.has_searched() {
            self.wake_searched(id);
        }
        if timed {
            self.schedule(id);
        }
        Some(offer)
    }

    /// Consumers that had seen everything look again.
    pub(crate) fn wake_searched(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        for consumer_id in queue.ring.take_searched() {
            if let Some(consumer) = self.consumers.get_mut(consumer_id) {
                queue.ring.wake(consumer_id, consumer);
            }
        }
    }

    /// Sets the queue's timer if its next deadline is earlier than the one that is set.
    pub fn schedule(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let is_stream = queue.stream.is_some();
        let deadline_ns = if is_stream { self.trim_at_ns(id) } else { queue.deadline_ns() };
        let Some(queue) = self.queues.get_mut(id) else { return };
        if deadline_ns < queue.timer_ns {
            queue.timer_ns = deadline_ns;
            self.timers.set(deadline_ns, Due::Queue(id));
        }
    }

    /// Routes a message that the barrier of its exchange has let pass before.
    pub(super) fn publish_past(&mut self, exchange: ExchangeId, message: &Rc<Message>, more_keys: &[&[u8]]) {
        let targets = self.route_past(Some(exchange), exchange, message, more_keys);
        self.matches.count();
        self.deliver_to(exchange, &targets, message);
        self.route = targets;
    }

    /// A word that only this node knows, for the direct reply-to address of a channel.
    pub fn reply_secret(&self, conn: u64, channel: u16) -> u64 {
        self.seed.hash_one((conn, u32::from(channel), "reply"))
    }

    /// A reply to a direct reply-to address: no queue, it goes to the channel that asked.
    pub fn reply(&mut self, message: &Rc<Message>) -> Published {
        self.note_unrouted();
        self.totals.published += 1;
        if !self.is_reply_open(&message.routing_key) {
            self.totals.unroutable += 1;
            return Published::default();
        }
        self.replies.push_back((Rc::clone(&message.routing_key), Rc::clone(message)));
        Published { queues: 1, ..Published::default() }
    }

    /// Somebody waits at this direct reply-to address, or does so no longer.
    pub fn open_reply(&mut self, address: &Name) {
        self.reply_addresses.insert(Rc::clone(address), ());
    }
    pub fn close_reply(&mut self, address: &[u8]) {
        self.reply_addresses.remove(address);
    }
    pub fn is_reply_open(&self, address: &[u8]) -> bool {
        self.reply_addresses.contains_key(address)
    }

    /// Is there any exchange whose choice depends on more than the routing key?
    pub fn has_headers_exchanges(&self) -> bool {
        self.headers_bound > 0
    }
}
