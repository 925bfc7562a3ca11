//! Counting many messages as one where they are alike.
//!
//! Owns the runs that are being counted: deliveries from one queue that waited equally long, settlements that took
//! equally long, publishes to one exchange. Messages come in batches and time stands still within a call, so most are
//! like the one before; a run is added to its sketch or counter when another begins, and at the end of the call. It
//! must never outlive the call. Rule: `Engine::work` ends with `end_runs`, so whoever reads sees everything.

use super::{Latency, TypeId, size_bucket};
use crate::broker::{Broker, Published};
use crate::fields;
use crate::message::Message;
use crate::queue::QueueId;
use crate::routing::{Counters, ExchangeId};

/// A kernel that counts none of this, to measure what counting costs (benchmarks/managed.py).
const OFF: bool = cfg!(feature = "without-statistics");

/// The size of no message.
const TYPED: usize = usize::MAX;

/// Durations of one queue that are alike: they began at the same time, and time stands still until they are counted.
#[derive(Clone, Copy, Debug)]
struct Run {
    queue: QueueId,
    since_ns: u64,
    /// Bytes of the first body; those of others may differ, within the bucket. `TYPED` in a run of messages with a
    /// type, so that one look tells that a message is like the one before.
    bytes: usize,
    /// Bucket of the body's size.
    size: usize,
    type_id: TypeId,
    count: u32,
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
    settled: Run,
    exchange: ExchangeId,
    /// Messages that went to one queue each, which are most.
    single: u64,
    published: Counters,
}

impl Default for Runs {
    fn default() -> Self {
        let none = Run { queue: QueueId::from_raw(0), since_ns: 0, bytes: 0, size: 0, type_id: TypeId::NONE, count: 0 };
        let exchange = ExchangeId::from_raw(0);
        Self { waited: none, settled: none, exchange, single: 0, published: Counters::default() }
    }
}

impl Broker {
    /// A message left its queue, in which it was since `since_ns`.
    #[inline]
    pub fn note_waited(&mut self, queue: QueueId, message: &Message, since_ns: u64) {
        if OFF {
            return;
        }
        let run = &mut self.runs.waited;
        if run.is_like(queue, since_ns) && run.bytes == message.body_len() && message.traits.untyped {
            run.count += 1;
        } else {
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
        let run = &mut self.runs.waited;
        if run.is_like(queue, since_ns) && run.size == size && run.type_id == type_id {
            run.count += 1;
            return;
        }
        self.end_waited();
        let bytes = if type_id == TypeId::NONE { bytes } else { TYPED };
        self.runs.waited = Run { queue, since_ns, bytes, size, type_id, count: 1 };
    }

    /// A delivery that was made at `since_ns` ended for good.
    #[inline]
    pub fn note_settled(&mut self, queue: QueueId, since_ns: u64) {
        if OFF {
            return;
        }
        let run = &mut self.runs.settled;
        if run.is_like(queue, since_ns) {
            run.count += 1;
            return;
        }
        self.end_settled();
        self.runs.settled = Run { queue, since_ns, bytes: 0, size: 0, type_id: TypeId::NONE, count: 1 };
    }

    /// A message came to an exchange.
    #[inline]
    pub fn note_published(&mut self, exchange: ExchangeId, published: Published) {
        if OFF {
            return;
        }
        if self.runs.exchange == exchange && published.queues == 1 {
            self.runs.single += 1;
        } else {
            self.note_fanned(exchange, published.queues as u64);
        }
    }

    /// The same, for a message that went to no queue or to several, or to another exchange than the one before.
    #[inline(never)]
    fn note_fanned(&mut self, exchange: ExchangeId, queues: u64) {
        if self.runs.exchange != exchange {
            self.end_published();
            self.runs.exchange = exchange;
        }
        let counters = &mut self.runs.published;
        counters.messages_in += 1;
        counters.messages_out += queues;
        counters.unroutable += u64::from(queues == 0);
    }

    /// Adds what has been counted to where it is read.
    pub fn end_runs(&mut self) {
        self.end_waited();
        self.end_settled();
        self.end_published();
    }

    #[inline(never)]
    fn end_waited(&mut self) {
        let run = std::mem::take(&mut self.runs.waited.count);
        let Run { queue, size, type_id, .. } = self.runs.waited;
        if run > 0 {
            let us = self.runs.waited.us(self.now_ns);
            self.latency.by_size[size].add(us, run, self.now_ns);
            self.types.add(type_id, us, run, self.now_ns);
            if let Some(queue) = self.queues.get_mut(queue) {
                let latency = Latency::of(&mut queue.latency);
                latency.in_queue.add(us, run, self.now_ns);
                if type_id != TypeId::NONE {
                    latency.by_type.add(type_id, us, run, self.now_ns);
                }
            }
        }
    }

    #[inline(never)]
    fn end_settled(&mut self) {
        let run = std::mem::take(&mut self.runs.settled.count);
        let queue = self.runs.settled.queue;
        if run > 0 {
            let us = self.runs.settled.us(self.now_ns);
            self.latency.to_settle.add(us, run, self.now_ns);
            if let Some(queue) = self.queues.get_mut(queue) {
                Latency::of(&mut queue.latency).to_settle.add(us, run, self.now_ns);
            }
        }
    }

    fn end_published(&mut self) {
        let (run, single) = (std::mem::take(&mut self.runs.published), std::mem::take(&mut self.runs.single));
        let messages_in = run.messages_in + single;
        if let Some(exchange) = self.exchanges.get_mut(self.runs.exchange).filter(|_| messages_in > 0) {
            exchange.counters.messages_in += messages_in;
            exchange.counters.messages_out += run.messages_out + single;
            exchange.counters.unroutable += run.unroutable;
        }
    }
}
