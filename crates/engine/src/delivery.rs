//! Messages leave their queues: the only place that sees queues and sessions together.
//!
//! Owns the pump. Queues that have something to deliver come in from the broker's list; each hands its entries to
//! consumers in turn, as long as they can take them and the call's budget lasts. It must never wait: a consumer that
//! cannot take sleeps until its session or the engine wakes it. Rules: queue/consumers.rs (whose turn), limits.work_max
//! (how much in one call).

use weft_wire::amqp10::condition;

use crate::broker::{Broker, Fate, Outcome, Reason, Searched};
use crate::conn::{Conn, ConnId};
use crate::local::Locals;
use crate::queue::consumers::{ConsumerId, Target};
use crate::queue::doubts::Claim;
use crate::queue::ready::Entry;
use crate::queue::{Queue, QueueId};
use crate::session::Readiness;
use crate::slab::Slab;

/// Entries that one search for a filter may look at before others get their turn.
const SEARCH_STEPS: u32 = 1_000;

/// The pump's view of the engine.
pub struct Pump<'e> {
    pub broker: &'e mut Broker,
    pub conns: &'e mut Slab<Conn>,
    pub locals: &'e mut Locals,
    /// Connections that got output.
    pub written: &'e mut Vec<ConnId>,
    /// Bytes of output made since the last flush.
    pub output_bytes: &'e mut usize,
    /// Only queues that belong to one connection or to the node, or that the node sends answers to, deliver.
    pub quiesced: bool,
}

/// What became of a turn.
enum Turn {
    /// A message was delivered, or a consumer was put to sleep: go on.
    Next,
    /// Nothing to do for this queue now.
    Idle,
}

impl Pump<'_> {
    /// Pumps every queue on the list while the budget lasts.
    pub fn run(&mut self) {
        while let Some(id) = self.broker.dirty.pop_front() {
            if let Some(queue) = self.broker.queues.get_mut(id) {
                if self.quiesced && queue.settings.owner.is_none() && !queue.answers {
                    // It counts as dirty until delivery goes on, and so comes here only once.
                    self.broker.quiet.push(id);
                    continue;
                }
                queue.dirty = false;
            }
            if self.broker.queues.get(id).is_some_and(|queue| queue.stream.is_some()) {
                self.read_stream(id);
                if self.broker.work_left == 0 {
                    return;
                }
                continue;
            }
            let start = self.broker.work_left;
            while let Turn::Next = self.turn(id) {
                // An eighth of the budget each, so that one full queue does not keep the others waiting.
                if self.broker.work_left == 0 || start - self.broker.work_left > self.broker.limits.work_max / 8 {
                    self.broker.touch(id);
                    break;
                }
            }
            self.drop_excess(id);
            // There is another head now, and it may have a clock of its own.
            self.broker.schedule(id);
            if self.broker.work_left == 0 {
                return;
            }
        }
    }

    /// What a queue holds beyond its limit, once everybody had a chance to take it.
    #[inline]
    fn drop_excess(&mut self, id: QueueId) {
        let Some(queue) = self.broker.queues.get_mut(id) else { return };
        if !queue.is_limited() {
            return;
        }
        while let Some(entry) = self.broker.queues.get_mut(id).and_then(Queue::pop_excess) {
            self.broker.died(id, entry, Reason::MaxLen);
        }
    }

    /// One message to one consumer.
    fn turn(&mut self, id: QueueId) -> Turn {
        let now_ns = self.broker.now_ns;
        let Some(queue) = self.broker.queues.get_mut(id) else { return Turn::Idle };
        if let Some(entry) = queue.pop_expired(now_ns) {
            self.broker.died(id, entry, Reason::Expired);
            return Turn::Next;
        }
        if let Some(count) = queue.wants_more() {
            self.broker.fetch(id, count);
        }
        let Some(queue) = self.broker.queues.get_mut(id) else { return Turn::Idle };
        if queue.ready.is_empty() || queue.is_cold() {
            return Turn::Idle;
        }
        let Some(consumer_id) = queue.ring.next() else { return Turn::Idle };
        let Some(consumer) = self.broker.consumers.get_mut(consumer_id) else {
            queue.ring.leave(consumer_id);
            return Turn::Next;
        };
        if queue.settings.single_active && !consumer.browse && queue.ring.single() != Some(consumer_id) {
            self.put_to_sleep(id, consumer_id, Readiness::NoCredit);
            return Turn::Next;
        }
        let (target, conn_id) = (consumer.target, ConnId::from_raw(consumer.conn));
        let searches = consumer.searches() || queue.doubts.is_some();
        if queue.hides() && self.broker.is_hidden(id, searches) {
            return Turn::Idle;
        }
        let readiness = self.readiness(target, conn_id);
        if readiness != Readiness::Ready {
            self.put_to_sleep(id, consumer_id, readiness);
            return Turn::Next;
        }
        let Some(entry) = self.pick(id, consumer_id) else { return Turn::Next };
        self.broker.spend(1);
        self.hand_over(id, target, conn_id, entry);
        Turn::Next
    }

    /// Can it take a message now?
    #[inline]
    pub(crate) fn readiness(&mut self, target: Target, conn_id: ConnId) -> Readiness {
        match (target, self.conns.get_mut(conn_id)) {
            (Target::Local { handle }, _) => self.locals.readiness(handle),
            (_, Some(conn)) => conn.session.readiness(&conn.io, self.broker, target),
            (_, None) => Readiness::NoCredit,
        }
    }

    /// It cannot take anything now.
    pub(crate) fn put_to_sleep(&mut self, id: QueueId, consumer_id: ConsumerId, readiness: Readiness) {
        let (Some(queue), Some(consumer)) =
            (self.broker.queues.get_mut(id), self.broker.consumers.get_mut(consumer_id))
        else {
            return;
        };
        queue.ring.sleep(consumer);
        if readiness == Readiness::NoRoom
            && let Some(conn) = self.conns.get_mut(ConnId::from_raw(consumer.conn))
        {
            conn.io.stalled.push(consumer_id);
        }
    }

    /// The entry this consumer gets: the first, or the first that it wants. None puts it aside until there is more.
    #[inline]
    fn pick(&mut self, id: QueueId, consumer_id: ConsumerId) -> Option<Picked> {
        let broker = &mut *self.broker;
        let queue = broker.queues.get_mut(id)?;
        let consumer = broker.consumers.get_mut(consumer_id)?;
        queue.ring.rotate();
        if !consumer.searches() && queue.doubts.is_none() {
            let entry = queue.ready.pop_front()?;
            if consumer.filter.as_ref().is_some_and(|filter| !filter.wants(&entry)) {
                queue.counters.dropped += 1;
                broker.work_left = broker.work_left.saturating_sub(1);
                if entry.stored {
                    broker.forget(id, entry.position);
                }
                broker.redeem(id, entry.position, || Fate::refused(condition::NOT_FOUND, "no consumer wants it"));
                return None;
            }
            queue.unsettled += 1;
            consumer.delivered += 1;
            return Some(Picked::Taken(entry));
        }
        let mut steps = SEARCH_STEPS.min(broker.work_left);
        let before = steps;
        let (filter, doubts, peer) = (consumer.filter.as_deref(), queue.doubts.as_deref(), consumer.peer);
        let leaves = |position| doubts.is_some_and(|doubts| doubts.claim(position, peer) == Claim::Leave);
        let wants = |entry: &Entry| filter.is_none_or(|filter| filter.wants(entry)) && !leaves(entry.position);
        let found = queue.ready.find(&mut consumer.cursor, &mut steps, wants);
        let picked = match found {
            None if steps > 0 => self.pick_cold(id, consumer_id, &mut steps),
            None => None,
            Some(position) if consumer.browse => queue.ready.get(position).map(|entry| Picked::Copied(entry.copy())),
            Some(position) => {
                queue.unsettled += 1;
                consumer.delivered += 1;
                queue.ready.take(position).map(Picked::Taken)
            }
        };
        self.broker.spend(before - steps);
        picked
    }

    /// The entry a searching consumer gets when there is none for it in memory: from disk, or none for now.
    fn pick_cold(&mut self, id: QueueId, consumer_id: ConsumerId, steps: &mut u32) -> Option<Picked> {
        let broker = &mut *self.broker;
        let is_cold = |queue: &Queue| queue.cold.is_some() && !queue.ready.has_priorities();
        let searched = match broker.queues.get(id).is_some_and(is_cold) {
            true => broker.search_cold(id, consumer_id, steps),
            false => Searched::Nothing,
        };
        let (queue, consumer) = (broker.queues.get_mut(id)?, broker.consumers.get_mut(consumer_id)?);
        match searched {
            Searched::Found(entry) if consumer.browse => Some(Picked::Copied(entry)),
            Searched::Found(entry) => Some(Picked::Taken(entry)),
            Searched::Spent => None,
            Searched::Nothing => {
                queue.ring.unrotate();
                queue.ring.park_searched(consumer_id, consumer);
                None
            }
        }
    }

    /// A message of a stream goes to a reader.
    #[inline]
    pub(crate) fn hand_read(&mut self, id: QueueId, target: Target, conn_id: ConnId, entry: Entry) {
        if let Some(queue) = self.broker.queues.get_mut(id) {
            queue.unsettled += 1;
        }
        self.hand_over(id, target, conn_id, Picked::Taken(entry));
    }

    #[inline]
    fn hand_over(&mut self, id: QueueId, target: Target, conn_id: ConnId, picked: Picked) {
        let (mut entry, taken) = match picked {
            Picked::Taken(entry) => (entry, true),
            Picked::Copied(entry) => (entry, false),
        };
        if taken && entry.reader == 0 {
            self.broker.note_waited(id, &entry.message, entry.since_ns);
        } else {
            self.broker.note_unwaited(1);
        }
        if taken && self.broker.spans.is_some() {
            self.broker.note_span(id, &entry);
        }
        entry.since_ns = self.broker.now_ns;
        let again = u64::from(entry.redelivered);
        // A browser's copy belongs to no queue, so that settling it changes nothing.
        let from = if taken { id } else { QueueId::from_raw(0) };
        self.broker.totals.delivered += 1;
        self.broker.totals.redelivered += again;
        let settled = match target {
            Target::Local { handle } => {
                self.locals.deliver(handle, from, entry);
                None
            }
            _ => {
                let Some(conn) = self.conns.get_mut(conn_id) else { return self.broker.put_back(id, entry) };
                conn.io.messages_out += 1;
                let before = conn.io.output.len();
                let back = conn.session.deliver(&mut conn.io, self.broker, target, from, entry);
                *self.output_bytes += conn.io.output.len() - before;
                if !std::mem::replace(&mut conn.io.listed, true) {
                    self.written.push(conn_id);
                }
                back
            }
        };
        let Some(queue) = self.broker.queues.get_mut(id) else { return };
        queue.counters.delivered += 1;
        queue.counters.redelivered += again;
        let Some(entry) = settled.filter(|_| taken) else { return };
        queue.unsettled -= 1;
        queue.counters.settled += 1;
        self.broker.totals.settled += 1;
        let delete_when_empty = queue.settings.delete_when_empty;
        if entry.stored {
            self.broker.forget(id, entry.position);
        } else if entry.reader > 0 {
            self.broker.settle_read(id, &entry, Outcome::Accepted);
        }
        self.broker.redeem(id, entry.position, Fate::default);
        if delete_when_empty {
            self.broker.when_empty(id);
        }
    }

    /// Replies go straight to the channel that asked, if it is still there.
    pub fn replies(&mut self) {
        while let Some((address, message)) = self.broker.replies.pop_front() {
            let Some((conn_id, number, secret)) = parse_reply_address(&address) else { continue };
            if self.broker.reply_secret(conn_id.raw(), number) != secret {
                continue;
            }
            let Some(conn) = self.conns.get_mut(conn_id) else { continue };
            conn.io.replies.push_back((number, message));
            conn.deliver_replies(self.broker.limits.output_bytes_max);
            if conn.io.is_sendable() && !std::mem::replace(&mut conn.io.listed, true) {
                self.written.push(conn_id);
            }
        }
    }
}

enum Picked {
    Taken(Entry),
    Copied(Entry),
}

fn parse_reply_address(address: &[u8]) -> Option<(ConnId, u16, u64)> {
    let mut words = std::str::from_utf8(address).ok()?.rsplit('.');
    let secret = u64::from_str_radix(words.next()?, 16).ok()?;
    let number = u16::from_str_radix(words.next()?, 16).ok()?;
    let conn = u64::from_str_radix(words.next()?, 16).ok()?;
    Some((ConnId::from_raw(conn), number, secret))
}
