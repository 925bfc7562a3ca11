//! Counting many messages as one where they are alike.
//!
//! Owns the runs that are being counted: deliveries from one queue that waited equally long, settlements that took
//! equally long, publishes along one way. Messages come in batches and time stands still within a call, so most are
//! like the one before; a run is added to its sketch or counter when another begins, and at the end of the call. It
//! must never outlive the call. Rules: `Engine::work` ends with `end_runs`, so whoever reads sees everything; how long
//! a run is, the node's own totals tell, so that a message like the one before is compared and nothing else.

use std::rc::Rc;

use super::{Latency, TypeId, size_bucket};
use crate::broker::Broker;
use crate::fields;
use crate::message::Message;
use crate::queue::QueueId;
use crate::routing::ExchangeId;
use crate::routing::matches::Trail;

/// A kernel that counts none of this, to measure what counting costs (benchmarks/managed.py).
const OFF: bool = cfg!(feature = "without-statistics");

/// The size of no message that lies in one piece.
const NO_SIZE: u32 = u32::MAX;

/// Durations of one queue that are alike: they began at the same time, and time stands still until they are counted.
#[derive(Clone, Copy, Debug)]
struct Run {
    queue: QueueId,
    since_ns: u64,
    /// Bytes of the first body; those of others may differ, within the bucket. `NO_SIZE` in a run of messages with a
    /// type, so that few looks tell that a message is like the one before.
    bytes: u32,
    /// Bucket of the body's size.
    size: usize,
    type_id: TypeId,
}

impl Run {
    #[inline]
    fn is_like(&self, queue: QueueId, since_ns: u64) -> bool {
        self.since_ns == since_ns && self.queue == queue
    }

    /// How long, in microseconds, for what ends now.
    fn us(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns) / 1_000
    }
}

/// What is being counted.
#[derive(Debug)]
pub struct Runs {
    waited: Run,
    /// The total of deliveries when the run began, those left out that do not belong to it.
    waited_from: u64,
    settled: Run,
    settled_count: u32,
    /// The way that messages go.
    trail: Option<Rc<Trail>>,
    /// The same for the total of publishes.
    published_from: u64,
}

impl Default for Runs {
    fn default() -> Self {
        let none = Run { queue: QueueId::from_raw(0), since_ns: 0, bytes: NO_SIZE, size: 0, type_id: TypeId::NONE };
        Self { waited: none, waited_from: 0, settled: none, settled_count: 0, trail: None, published_from: 0 }
    }
}

impl Broker {
    /// A message leaves its queue, in which it was since `since_ns`; the total of deliveries is about to count it.
    #[inline(always)]
    pub fn note_waited(&mut self, queue: QueueId, message: &Message, since_ns: u64) {
        if OFF {
            return;
        }
        let run = &self.runs.waited;
        if !(run.is_like(queue, since_ns) && message.is_single_of(run.bytes) && message.traits.untyped) {
            self.note_other(queue, message, since_ns);
        }
    }

    /// The same, for a message that has a type, another size, or begins another run.
    #[inline(never)]
    fn note_other(&mut self, queue: QueueId, message: &Message, since_ns: u64) {
        let bytes = message.body_len();
        let size = size_bucket(bytes);
        let name = if message.traits.untyped { None } else { fields::type_of(message) };
        let type_id = name.map_or(TypeId::NONE, |name| self.types.id_of(name));
        let run = &self.runs.waited;
        if run.is_like(queue, since_ns) && run.size == size && run.type_id == type_id {
            return;
        }
        self.end_waited();
        let bytes = if type_id == TypeId::NONE { u32::try_from(bytes).unwrap_or(NO_SIZE) } else { NO_SIZE };
        self.runs.waited = Run { queue, since_ns, bytes, size, type_id };
    }

    /// The total of deliveries is about to count so many that waited in no queue: copies, and messages of streams.
    #[inline]
    pub fn note_unwaited(&mut self, count: u64) {
        self.runs.waited_from += count;
    }

    /// A delivery that was made at `since_ns` ended for good.
    #[inline]
    pub fn note_settled(&mut self, queue: QueueId, since_ns: u64) {
        if OFF {
            return;
        }
        if !self.runs.settled.is_like(queue, since_ns) {
            self.end_settled();
            self.runs.settled = Run { queue, since_ns, ..self.runs.settled };
        }
        self.runs.settled_count += 1;
    }

    /// A message went along a way and into so many queues; the total of publishes is about to count it.
    #[inline(always)]
    pub fn note_published(&mut self, trail: &Rc<Trail>, queues: usize) {
        if OFF {
            return;
        }
        let same = self.runs.trail.as_ref().is_some_and(|own| Rc::ptr_eq(own, trail));
        if !same || queues != trail.queues {
            self.note_other_way(trail, queues);
        }
    }

    /// The same, for a message that goes another way than the one before, or did not reach all queues of its way.
    #[inline(never)]
    fn note_other_way(&mut self, trail: &Rc<Trail>, queues: usize) {
        if queues == trail.queues {
            self.end_published();
            self.runs.trail = Some(Rc::clone(trail));
        } else {
            trail.count(1);
            self.note_routed(trail.exchange, queues);
        }
    }

    /// The same, for a message whose way is not remembered.
    pub fn note_routed(&mut self, exchange: ExchangeId, queues: usize) {
        if !OFF {
            self.note_unrouted();
            self.count_published(exchange, 1, queues as u64);
        }
    }

    /// The total of publishes is about to count one that came to no exchange.
    pub fn note_unrouted(&mut self) {
        self.runs.published_from += 1;
    }

    fn count_published(&mut self, exchange: ExchangeId, messages: u64, queues: u64) {
        if let Some(exchange) = self.exchanges.get_mut(exchange) {
            exchange.counters.messages_in += messages;
            exchange.counters.messages_out += messages * queues;
            exchange.counters.unroutable += if queues == 0 { messages } else { 0 };
        }
    }

    /// Adds what has been counted to where it is read.
    pub fn end_runs(&mut self) {
        if !OFF {
            self.end_waited();
            self.end_settled();
            self.end_published();
        }
    }

    fn end_waited(&mut self) {
        let count = run_length(&mut self.runs.waited_from, self.totals.delivered) as u32;
        let Run { queue, size, type_id, .. } = self.runs.waited;
        if count > 0 {
            let us = self.runs.waited.us(self.now_ns);
            self.latency.by_size[size].add(us, count, self.now_ns);
            self.types.add(type_id, us, count, self.now_ns);
            if let Some(queue) = self.queues.get_mut(queue) {
                let latency = Latency::of(&mut queue.latency);
                latency.in_queue.add(us, count, self.now_ns);
                if type_id != TypeId::NONE {
                    latency.by_type.add(type_id, us, count, self.now_ns);
                }
            }
        }
    }

    #[inline(never)]
    fn end_settled(&mut self) {
        let count = std::mem::take(&mut self.runs.settled_count);
        let queue = self.runs.settled.queue;
        if count > 0 {
            let us = self.runs.settled.us(self.now_ns);
            self.latency.to_settle.add(us, count, self.now_ns);
            if let Some(queue) = self.queues.get_mut(queue) {
                Latency::of(&mut queue.latency).to_settle.add(us, count, self.now_ns);
            }
        }
    }

    fn end_published(&mut self) {
        let messages = run_length(&mut self.runs.published_from, self.totals.published);
        if let Some(trail) = self.runs.trail.take().filter(|_| messages > 0) {
            trail.count(messages);
            self.count_published(trail.exchange, messages, trail.queues as u64);
        }
    }
}

/// How many the run has that ends now; the next one begins here.
fn run_length(from: &mut u64, total: u64) -> u64 {
    total - std::mem::replace(from, total)
}
