//! The books: what peers saw, compared with what the engine counts.
//!
//! Owns the deliveries that peers hold and the counters of every queue. Peers report what they are given and what they
//! settle; the engine's tables are read after each step. It must never predict: it only checks that nothing was lost,
//! doubled or invented. Rules: copies put into a queue = ready + unsettled + settled + expired + dropped + rejected +
//! purged, at any time; a message is new to a queue's consumers once.

use std::collections::{BTreeMap, BTreeSet};

use weft_engine::conn::ConnId;
use weft_engine::queue::{Overflow, Queue, QueueId};
use weft_sim::Node;

/// Names one delivery: connection, channel or session, tag or id.
pub type Delivery = (ConnId, u16, u64);

/// What has become of a queue so far.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    published: u64,
    /// Copies that left in ways the engine does not count: rejected, purged, failed too often.
    gone: u64,
}

/// The books of one world.
#[derive(Default)]
pub struct Ledger {
    /// Messages made so far.
    pub messages: u64,
    /// Queues by name, as they were last seen.
    queues: BTreeMap<String, QueueId>,
    accounts: BTreeMap<QueueId, Account>,
    /// What peers hold, and the queue it came from.
    held: BTreeMap<Delivery, QueueId>,
    /// Copies of each queue that peers had reason to expect gone: rejected, or purged.
    given_up: BTreeMap<QueueId, u64>,
    /// Messages that were new when they were delivered: queue, message, how it had died before.
    fresh: BTreeSet<(QueueId, Vec<u8>, String)>,
}

impl Ledger {
    /// Notes which queues there are.
    pub fn look_at(&mut self, node: &Node) {
        self.queues.clear();
        for (id, queue) in node.engine.broker.queues.iter() {
            self.queues.insert(super::show(&queue.name), id);
        }
    }

    pub fn queue(&self, name: &str) -> Option<QueueId> {
        self.queues.get(name).copied()
    }

    /// A peer was given a message that is said to be new.
    pub fn delivered_new(&mut self, queue: QueueId, body: &[u8], deaths: String) {
        let new = self.fresh.insert((queue, body.to_vec(), deaths));
        assert!(new, "{body:?} of {queue:?} is said to be new a second time");
    }

    /// A peer owes a settlement.
    pub fn hold(&mut self, delivery: Delivery, queue: QueueId) {
        let before = self.held.insert(delivery, queue);
        assert!(before.is_none(), "{delivery:?} stands for two deliveries");
    }

    /// A peer settled, `for_good` if the message was neither processed nor given back.
    pub fn settle(&mut self, delivery: Delivery, for_good: bool) {
        if let Some(queue) = self.held.remove(&delivery) {
            *self.given_up.entry(queue).or_default() += u64::from(for_good);
        }
    }

    /// A peer wants a queue to lose what is ready in it.
    pub fn purged(&mut self, queue: &str) {
        if let Some(queue) = self.queue(queue) {
            self.given_up.insert(queue, u64::MAX / 2);
        }
    }

    /// A channel or session is over.
    pub fn ended(&mut self, conn: ConnId, channel: u16) {
        self.held.retain(|delivery, _| (delivery.0, delivery.1) != (conn, channel));
    }

    /// A connection is over.
    pub fn lost(&mut self, conn: ConnId) {
        self.held.retain(|delivery, _| delivery.0 != conn);
    }

    /// Compares.
    pub fn check(&mut self, node: &Node, quiesced: bool) {
        // While bytes are under way, peers and engine may well disagree on who holds what.
        let quiet = node.engine.conns.iter().all(|(_, conn)| conn.io.input.is_empty() && conn.io.output.is_empty());
        for (id, queue) in node.engine.broker.queues.iter() {
            let held = self.held.values().filter(|from| **from == id).count();
            assert!(!quiet || queue.unsettled == held, "peers hold {held} of {queue:?}");
            self.check_account(id, queue);
            if let (Some(max), Overflow::DropHead, false) =
                (queue.settings.length_max, queue.settings.overflow, quiesced)
            {
                assert!(queue.ready.len() as u64 <= max, "{} messages in {queue:?}", queue.ready.len());
            }
        }
        let stats = node.engine.stats();
        assert!(stats["memory_bytes"] <= stats["memory_bytes_max"] + (64 << 10), "{stats:?}");
    }

    fn check_account(&mut self, id: QueueId, queue: &Queue) {
        let counters = queue.counters;
        let dropped = if queue.settings.overflow == Overflow::DropHead { counters.dropped } else { 0 };
        let present = (queue.ready.len() + queue.unsettled) as u64;
        let known = present + counters.settled + counters.expired + dropped;
        let gone = counters.published.checked_sub(known);
        let gone = gone.unwrap_or_else(|| panic!("{known} of {} copies in {queue:?}", counters.published));
        let account = self.accounts.entry(id).or_default();
        assert!(counters.published >= account.published && gone >= account.gone, "{account:?} became {counters:?}");
        *account = Account { published: counters.published, gone };
        let given_up = self.given_up.get(&id).copied().unwrap_or(0);
        assert!(gone <= given_up || queue.settings.delivery_limit.is_some(), "{gone} copies vanished from {queue:?}");
    }
}
