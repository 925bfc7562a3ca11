//! A delivery ends: accepted, rejected, or back into its queue.
//!
//! Owns what consumers do to queues: joining, leaving, taking one message, settling. Sessions call it per decision of
//! a peer, with the entry they held. It must never write to a peer. Rules: AMQP 1.0 section 3.4 (delivery states);
//! RabbitMQ's requeue, delivery limit, auto-delete and single active consumer.

use weft_wire::amqp10::condition;

use super::{Broker, Dying, Fate, Reason};
use crate::conn::ConnId;
use crate::event::{Event, Unused};
use crate::queue::QueueId;
use crate::queue::consumers::{Consumer, ConsumerId, Target};
use crate::queue::doubts::Claim;
use crate::queue::ready::{Cursor, Entry};
use crate::stream::reader::{Reader, Wanted};
use crate::timers::Due;

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done with.
    Accepted,
    /// Bad: to the dead letters.
    Rejected,
    /// Not processed: back to its place. `failed` counts against the delivery limit.
    Returned { failed: bool },
}

impl Broker {
    /// Ends the delivery of `entry`, which came from `id`. A queue that is gone takes its messages with it.
    #[inline]
    pub fn settle(&mut self, id: QueueId, entry: Entry, outcome: Outcome) {
        self.settle_as(id, entry, outcome, None);
    }

    /// The same, with the consumer's own words, which a publisher that waits for them is told. What a consumer gives
    /// back then goes to its publisher and not to another consumer.
    pub fn settle_as(&mut self, id: QueueId, mut entry: Entry, outcome: Outcome, fate: Option<&Fate>) {
        self.totals.settled += u64::from(outcome == Outcome::Accepted);
        let given_back = fate.is_some() && matches!(outcome, Outcome::Returned { .. });
        let to_publisher = given_back && self.is_pledged(id, entry.position);
        let Some(queue) = self.queues.get_mut(id) else { return };
        if entry.reader > 0 {
            queue.unsettled -= 1;
            queue.counters.settled += 1;
            return self.settle_read(id, &entry, outcome);
        }
        queue.unsettled -= 1;
        let now_ns = self.now_ns;
        if let Some(doubts) = queue.doubts.as_mut().filter(|_| !matches!(outcome, Outcome::Returned { .. })) {
            doubts.forget(entry.position);
        }
        match outcome {
            Outcome::Accepted => {
                queue.counters.settled += 1;
                self.note_settled(id, entry.since_ns);
                self.leave_for_good(id, &entry, fate);
            }
            Outcome::Rejected => {
                self.note_settled(id, entry.since_ns);
                if let Some(fate) = fate {
                    self.redeem(id, entry.position, || fate.clone());
                }
                self.died(id, entry, Reason::Rejected);
            }
            Outcome::Returned { .. } if to_publisher => {
                queue.counters.returned += 1;
                self.totals.returned += 1;
                self.leave_for_good(id, &entry, fate);
            }
            Outcome::Returned { failed } => {
                queue.counters.returned += 1;
                self.totals.returned += 1;
                entry.redelivered = true;
                entry.since_ns = now_ns;
                entry.failures += u32::from(failed);
                if queue.settings.delivery_limit.is_some_and(|limit| entry.failures > limit) {
                    return self.died(id, entry, Reason::DeliveryLimit);
                }
                if failed && entry.stored && queue.keeps(&entry.message) {
                    let number = queue.settings.number;
                    self.count_failure(number, entry.position, entry.failures);
                }
                self.put_back(id, entry);
            }
        }
    }

    /// An entry is done with: its publisher is told how, if it waits for that.
    fn leave_for_good(&mut self, id: QueueId, entry: &Entry, fate: Option<&Fate>) {
        if entry.stored {
            self.forget(id, entry.position);
        }
        self.redeem(id, entry.position, || fate.cloned().unwrap_or_default());
        self.when_empty(id);
    }

    /// Returns many at once. From the last to the first, so that each finds its place at the front of its queue and a
    /// hundred thousand take no longer than they must; those that failed too often still die in their order.
    pub fn give_back(&mut self, held: impl DoubleEndedIterator<Item = (QueueId, Entry)>, failed: bool) {
        let alive = self.dying.len();
        for (id, entry) in held.rev() {
            self.settle(id, entry, Outcome::Returned { failed });
            self.spend(1);
        }
        self.dying.make_contiguous()[alive..].reverse();
    }

    /// Puts an entry back where it was, as if nobody had taken it.
    pub fn put_back(&mut self, id: QueueId, entry: Entry) {
        let Some(queue) = self.queues.get_mut(id) else { return };
        let (position, timed) = (entry.position, entry.expires_ns != crate::queue::ready::NEVER);
        let lane = queue.put_back(entry);
        for member in queue.ring.members() {
            if let Some(consumer) = self.consumers.get_mut(member)
                && !consumer.browse
            {
                consumer.rewind(lane, position);
            }
        }
        self.wake_searched(id);
        self.touch(id);
        if timed {
            self.schedule(id);
        }
    }

    /// A dynamic node that lives as long as its messages may go now.
    pub fn when_empty(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get(id) else { return };
        if queue.settings.delete_when_empty && queue.is_empty() && queue.unsettled == 0 {
            self.report_unused(id, Unused::Empty);
        }
    }

    /// Takes the first ready message, as `basic.get` does. The caller owes a `settle`, or calls `forget` for one
    /// without.
    pub fn get(&mut self, id: QueueId) -> Option<Entry> {
        let now_ns = self.now_ns;
        let queue = self.queues.get_mut(id)?;
        while let Some(entry) = queue.pop_expired(now_ns) {
            self.dying.push_back(Dying::new(id, entry, Reason::Expired));
        }
        queue.used_ns = now_ns;
        let mut entry = match &queue.doubts {
            None => queue.ready.pop_front()?,
            Some(doubts) => {
                let is_free = |entry: &Entry| doubts.claim(entry.position, None) == Claim::Take;
                let free = queue.ready.find(&mut Cursor::default(), &mut self.limits.work_max.clone(), is_free)?;
                queue.ready.take(free)?
            }
        };
        queue.unsettled += 1;
        queue.counters.delivered += 1;
        queue.counters.redelivered += u64::from(entry.redelivered);
        // The caller tells how many are left: none that has expired behind the one that left.
        while let Some(entry) = queue.pop_expired(now_ns) {
            self.dying.push_back(Dying::new(id, entry, Reason::Expired));
        }
        self.note_waited(id, &entry.message, entry.since_ns);
        if self.spans.is_some() {
            self.note_span(id, &entry);
        }
        entry.since_ns = now_ns;
        self.totals.delivered += 1;
        self.totals.redelivered += u64::from(entry.redelivered);
        // The clock of the next one may have run out behind the one that left.
        self.schedule(id);
        Some(entry)
    }

    /// An entry left its queue for good; where it goes next is seen to before the call ends.
    pub fn died(&mut self, id: QueueId, entry: Entry, reason: Reason) {
        self.dying.push_back(Dying::new(id, entry, reason));
    }

    /// A queue loses all its ready messages; how many is told.
    pub fn purge(&mut self, id: QueueId) -> usize {
        let Some(queue) = self.queues.get_mut(id) else { return 0 };
        let (gone, cold, number) = (queue.ready.drain(), queue.cold.take(), queue.settings.number);
        let with_consumers = std::mem::take(&mut queue.out_of_turn).into_iter().filter(|taken| taken.1.is_none());
        let with_consumers: Vec<u64> = with_consumers.map(|taken| taken.0).collect();
        let purged = || Fate::refused(condition::RESOURCE_DELETED, "the queue was purged");
        for entry in &gone {
            if entry.stored {
                self.forget(id, entry.position);
            }
            self.redeem(id, entry.position, purged);
        }
        if let Some(cold) = cold {
            self.redeem_from(id, cold.next, &with_consumers, &purged());
            self.forget_from(number, cold.next, with_consumers.into_iter());
        }
        gone.len() + cold.map_or(0, |cold| cold.count as usize)
    }

    /// A consumer joins its queue, awake.
    pub fn join(&mut self, mut consumer: Consumer) -> Option<ConsumerId> {
        let queue_id = consumer.queue;
        if self.queues.get(queue_id)?.stream.is_some() {
            // Readers take nothing from each other, so none comes first.
            consumer.priority = 0;
            consumer.reader.get_or_insert_with(|| Box::new(Reader::new(Wanted::default())));
        }
        let priority = consumer.priority;
        let id = self.consumers.insert(consumer);
        let queue = self.queues.get_mut(queue_id)?;
        queue.ring.join(id, priority);
        if queue.stream.is_some() {
            self.begin_reading(id);
        }
        self.wake(id);
        if self.watched {
            self.tell_consumer(id, true);
        }
        Some(id)
    }

    /// Tells of a channel or session, if anybody wants to know.
    pub fn tell_session(&mut self, conn: ConnId, number: u16, begun: bool) {
        if self.watched {
            self.events.push(Event::SessionChanged { conn: conn.raw(), number, begun });
        }
    }

    /// The names of a queue's virtual host and of the queue, as events tell them.
    pub fn names_of(&self, id: QueueId) -> Option<(String, String)> {
        let queue = self.queues.get(id)?;
        let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        Some((name(&self.vhosts.get(queue.vhost)?.name), name(&queue.name)))
    }

    /// Tells of a consumer that joined its queue, or is about to leave it.
    pub(super) fn tell_consumer(&mut self, id: ConsumerId, joined: bool) {
        let Some(consumer) = self.consumers.get(id) else { return };
        if matches!(consumer.target, Target::Local { .. }) {
            return;
        }
        let Some((vhost, queue)) = self.names_of(consumer.queue) else { return };
        self.events.push(Event::ConsumerChanged { conn: consumer.conn, consumer: id.raw(), vhost, queue, joined });
    }

    /// A consumer can take messages again.
    pub fn wake(&mut self, id: ConsumerId) {
        let Some(consumer) = self.consumers.get_mut(id) else { return };
        let queue_id = consumer.queue;
        let Some(queue) = self.queues.get_mut(queue_id) else { return };
        if queue.settings.single_active && !consumer.browse && queue.ring.single() != Some(id) {
            return;
        }
        queue.ring.wake(id, consumer);
        self.touch(queue_id);
    }

    /// A consumer leaves. The last one of an auto-delete queue takes the queue with it, once Python has said so.
    pub fn leave(&mut self, id: ConsumerId) -> Option<Consumer> {
        if self.watched {
            self.tell_consumer(id, false);
        }
        let consumer = self.consumers.remove(id)?;
        let now_ns = self.now_ns;
        let queue = self.queues.get_mut(consumer.queue)?;
        queue.ring.leave(id);
        queue.used_ns = now_ns;
        if queue.stream.is_some() {
            self.end_reading(&consumer);
            return Some(consumer);
        }
        if queue.ring.is_empty() && queue.settings.auto_delete {
            self.report_unused(consumer.queue, Unused::AutoDelete);
        } else if queue.settings.single_active
            && let Some(next) = queue.ring.single()
        {
            self.wake(next);
        }
        self.schedule(consumer.queue);
        Some(consumer)
    }

    fn report_unused(&mut self, id: QueueId, cause: Unused) {
        let Some((vhost, queue)) = self.names_of(id) else { return };
        self.events.push(Event::QueueUnused { vhost, queue, cause });
    }

    /// A queue's timer fired: heads expire, and an idle queue may be over.
    pub fn queue_due(&mut self, id: QueueId) {
        let now_ns = self.now_ns;
        let Some(queue) = self.queues.get_mut(id) else { return };
        queue.timer_ns = crate::queue::ready::NEVER;
        if queue.stream.is_some() {
            return self.trim(id);
        }
        self.end_doubts(id);
        let Some(queue) = self.queues.get_mut(id) else { return };
        while let Some(entry) = queue.pop_expired(now_ns) {
            self.dying.push_back(Dying::new(id, entry, Reason::Expired));
            if self.dying.len() > self.limits.work_max as usize {
                // The rest in the next turn, so that a million expiring at once stop nobody.
                queue.timer_ns = now_ns;
                self.timers.set(now_ns, Due::Queue(id));
                return;
            }
        }
        let idle_ns = queue.settings.expires_ms.map(|ms| queue.used_ns.saturating_add(ms.saturating_mul(1_000_000)));
        if queue.ring.is_empty() && idle_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.report_unused(id, Unused::Expired);
            return;
        }
        if queue.is_cold() {
            self.touch(id);
        }
        self.schedule(id);
    }
}
