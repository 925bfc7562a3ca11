//! Consumers inside the process: Python itself.
//!
//! Owns the inboxes of local consumers, and what Python does to messages. Entries come in from the pump; Python takes
//! them in batches and settles them by tag. It must never be the way for a stream of messages between connections: that
//! stays in the kernel. Rule: decision 0001; credit bounds every inbox.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::broker::{Broker, Moved, Outcome, Unknown, Unresolved};
use crate::durability::Needs;
use crate::engine::Engine;
use crate::hash::Map;
use crate::message::{Message, Name};
use crate::queue::QueueId;
use crate::queue::consumers::{Consumer, ConsumerId, Target};
use crate::queue::ready::Entry;
use crate::routing::ExchangeId;
use crate::session::Readiness;
use crate::stream::reader::{Reader, Wanted};
use crate::stream::start::Start;

/// One local consumer.
#[derive(Default)]
struct Inbox {
    consumer: Option<ConsumerId>,
    credit: usize,
    waiting: VecDeque<(u64, QueueId, Entry)>,
    taken: Map<u64, (QueueId, Entry)>,
    last_tag: u64,
}

/// All local consumers.
#[derive(Default)]
pub struct Locals {
    inboxes: Map<u64, Inbox>,
    /// What it takes until the message that Python published last is safe.
    stored: Needs,
    /// Handles with something new.
    pub filled: Vec<u64>,
    made: u64,
}

impl Locals {
    /// A consumer of `queue` that holds at most `credit` unsettled deliveries; of a stream, from `start` on.
    pub fn subscribe(&mut self, broker: &mut Broker, queue: QueueId, credit: usize, start: Start) -> u64 {
        self.made += 1;
        let handle = self.made;
        self.inboxes.insert(handle, Inbox { credit: credit.max(1), ..Inbox::default() });
        let mut consumer = Consumer::new(queue, 0, Target::Local { handle });
        if broker.queues.get(queue).is_some_and(|queue| queue.stream.is_some()) {
            consumer.reader = Some(Box::new(Reader::new(Wanted { start, name: None })));
        }
        let consumer = broker.join(consumer);
        if let Some(inbox) = self.inboxes.get_mut(&handle) {
            inbox.consumer = consumer;
        }
        handle
    }

    /// The consumer leaves; what it had not settled goes back.
    pub fn unsubscribe(&mut self, broker: &mut Broker, handle: u64) -> bool {
        let Some(inbox) = self.inboxes.remove(&handle) else { return false };
        inbox.consumer.and_then(|id| broker.leave(id));
        let held = inbox.taken.into_values().chain(inbox.waiting.into_iter().map(|(_, queue, entry)| (queue, entry)));
        for (queue, entry) in held {
            broker.settle(queue, entry, Outcome::Returned { failed: false });
        }
        true
    }

    pub fn readiness(&self, handle: u64) -> Readiness {
        match self.inboxes.get(&handle) {
            Some(inbox) if inbox.waiting.len() + inbox.taken.len() < inbox.credit => Readiness::Ready,
            _ => Readiness::NoCredit,
        }
    }

    pub fn deliver(&mut self, handle: u64, queue: QueueId, entry: Entry) {
        let Some(inbox) = self.inboxes.get_mut(&handle) else { return };
        inbox.last_tag += 1;
        if inbox.waiting.is_empty() {
            self.filled.push(handle);
        }
        inbox.waiting.push_back((inbox.last_tag, queue, entry));
    }

    /// Up to `count_max` deliveries, by tag; they stay to be settled.
    pub fn take(&mut self, handle: u64, count_max: usize, mut each: impl FnMut(u64, &Entry)) {
        let Some(inbox) = self.inboxes.get_mut(&handle) else { return };
        for _ in 0..count_max.min(inbox.waiting.len()) {
            let Some((tag, queue, entry)) = inbox.waiting.pop_front() else { return };
            each(tag, &entry);
            inbox.taken.insert(tag, (queue, entry));
        }
    }

    /// Settles a delivery and lets the next one come.
    pub fn settle(&mut self, broker: &mut Broker, handle: u64, tag: u64, outcome: Outcome) -> bool {
        let Some(inbox) = self.inboxes.get_mut(&handle) else { return false };
        let Some((queue, entry)) = inbox.taken.remove(&tag) else { return false };
        let consumer = inbox.consumer;
        broker.settle(queue, entry, outcome);
        consumer.into_iter().for_each(|id| broker.wake(id));
        true
    }

    pub fn is_open(&self, handle: u64) -> bool {
        self.inboxes.contains_key(&handle)
    }
}

impl Engine {
    /// An exchange by its names, for `publish`.
    pub fn exchange(&self, vhost: &str, exchange: &str) -> Result<(ExchangeId, Name), Unknown> {
        let found = self.broker.find_vhost(vhost.as_bytes());
        let found = found.and_then(|vhost| self.broker.find_exchange(vhost, exchange.as_bytes()));
        let name = found.and_then(|id| self.broker.exchanges.get(id)).map(|exchange| Rc::clone(&exchange.name));
        found.zip(name).ok_or_else(|| Unknown(format!("no exchange '{exchange}' in vhost '{vhost}'")))
    }

    /// A message of Python's own; how many queues it reached.
    pub fn publish(&mut self, exchange: ExchangeId, message: &Rc<Message>) -> usize {
        self.broker.work_left = self.broker.limits.work_max;
        self.broker.begin_session();
        let published = match message.exchange.is_empty() && self.broker.is_reply_open(&message.routing_key) {
            true => self.broker.reply(message),
            false => self.broker.publish(exchange, message, &[]),
        };
        self.locals.stored = self.broker.end_session();
        self.work();
        published.queues
    }

    /// What it takes until the last `publish` is safe; None if it is.
    pub fn stored(&self) -> Option<Needs> {
        let reached = self.broker.store.as_ref()?.reached();
        Some(self.locals.stored).filter(|needs| !needs.are_met(reached))
    }

    /// The node's answer to a request; how many queues it reached. They deliver even while delivery is stopped.
    pub fn answer_request(&mut self, exchange: ExchangeId, message: &Rc<Message>) -> usize {
        let targets = self.broker.route_of(exchange, message, &[]);
        for id in &targets {
            let Some(queue) = self.broker.queues.get_mut(*id) else { continue };
            if !std::mem::replace(&mut queue.answers, true) && queue.dirty {
                self.broker.dirty.push_back(*id);
            }
        }
        self.broker.recycle_route(targets);
        self.publish(exchange, message)
    }

    /// A local consumer; of a stream, from `start` on.
    pub fn subscribe(&mut self, vhost: &str, queue: &str, credit: usize, start: Start) -> Result<u64, Unknown> {
        let found = self.broker.find_vhost(vhost.as_bytes());
        let found = found.and_then(|vhost| self.broker.find_queue(vhost, queue.as_bytes()));
        let id = found.ok_or_else(|| Unknown(format!("no queue '{queue}' in vhost '{vhost}'")))?;
        let handle = self.locals.subscribe(&mut self.broker, id, credit, start);
        self.broker.work_left = self.broker.limits.work_max;
        self.work();
        Ok(handle)
    }

    /// Ends a local consumer.
    pub fn unsubscribe(&mut self, handle: u64) {
        self.locals.unsubscribe(&mut self.broker, handle);
        self.broker.work_left = self.broker.limits.work_max;
        self.work();
    }

    /// Ends a delivery to a local consumer; None if it holds no such delivery.
    pub fn settle(&mut self, handle: u64, tag: u64, outcome: Outcome) -> Option<u32> {
        if !self.locals.settle(&mut self.broker, handle, tag, outcome) {
            return None;
        }
        self.broker.work_left = self.broker.limits.work_max;
        self.work();
        Some(self.signals())
    }

    /// Drops what is ready in a queue; how many.
    pub fn purge(&mut self, vhost: &str, queue: &str) -> Result<usize, Unknown> {
        let purged = self.broker.purge_named(vhost, queue);
        self.broker.work_left = self.broker.limits.work_max;
        self.work();
        purged
    }

    /// Moves ready messages of a queue elsewhere (`Broker::move_messages`).
    pub fn move_messages(
        &mut self,
        vhost: &str,
        queue: &str,
        to: Option<(&str, &str)>,
        count: usize,
    ) -> Result<Moved, Unknown> {
        self.broker.work_left = self.broker.limits.work_max;
        let moved = self.broker.move_messages(vhost, queue, to, count);
        self.work();
        moved
    }

    /// Ends a prepared transaction (`Broker::resolve`).
    pub fn resolve(&mut self, global_id: &[u8], commit: bool) -> Result<(), Unresolved> {
        self.broker.work_left = self.broker.limits.work_max;
        self.broker.begin_session();
        let resolved = self.broker.resolve(global_id, commit);
        self.locals.stored = self.broker.end_session();
        self.work();
        resolved
    }
}
