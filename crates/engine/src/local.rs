//! Consumers inside the process: Python itself.
//!
//! Owns the inboxes of local consumers. Entries come in from the pump; Python takes them in batches and settles them by
//! tag. It must never be the way for a stream of messages between connections: that stays in the kernel. Rule: decision
//! 0001; credit bounds every inbox.

use std::collections::VecDeque;

use crate::broker::{Broker, Outcome};
use crate::hash::Map;
use crate::queue::QueueId;
use crate::queue::consumers::{Consumer, ConsumerId, Target};
use crate::queue::ready::Entry;
use crate::session::Readiness;

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
    /// Handles with something new.
    pub filled: Vec<u64>,
    made: u64,
}

impl Locals {
    /// A consumer of `queue` that holds at most `credit` unsettled deliveries.
    pub fn subscribe(&mut self, broker: &mut Broker, queue: QueueId, credit: usize) -> u64 {
        self.made += 1;
        let handle = self.made;
        self.inboxes.insert(handle, Inbox { credit: credit.max(1), ..Inbox::default() });
        let consumer = broker.join(Consumer::new(queue, 0, Target::Local { handle }));
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
