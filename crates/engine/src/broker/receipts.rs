//! Publishers that are answered by whoever takes their message, not by this node.
//!
//! Owns one receipt for each message whose publisher waits for its end: which queues still have it, the worst that was
//! said of it, and who is told then. Messages come in while they are published to queues with end-to-end
//! acknowledgement; fates come in when entries leave these queues; answers go out to sessions by `engine.rs`. It must
//! never answer before the last queue has spoken, nor twice. Rules: decision 0024; docs/guides/end-to-end.md.

use std::collections::VecDeque;
use std::rc::Rc;

use weft_wire::amqp10::{Symbol, condition};

use super::guard::Place;
use super::{Broker, Reason};
use crate::barrier;
use crate::conn::ConnId;
use crate::durability::Needs;
use crate::hash::{Map, Seeded};
use crate::message::Message;
use crate::queue::QueueId;
use crate::slab::{Id, Slab};

/// Names a receipt.
pub type ReceiptId = Id<Receipt>;

/// How the way of a message ended, as its publisher is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    #[default]
    Accepted,
    Released,
    Modified {
        failed: bool,
        undeliverable: bool,
        /// An encoded map.
        annotations: Option<Rc<[u8]>>,
    },
    Rejected {
        /// Condition and description.
        error: Option<(Rc<str>, Rc<str>)>,
    },
}

impl Fate {
    /// The node itself gave a message up.
    pub fn refused(condition: Symbol<'static>, text: &str) -> Self {
        Self::Rejected { error: Some((Rc::from(condition.0), Rc::from(text))) }
    }

    /// The outcome in a word, as AMQP 1.0 names it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Released => "released",
            Self::Modified { .. } => "modified",
            Self::Rejected { .. } => "rejected",
        }
    }

    fn of_death(reason: Reason) -> Self {
        match reason {
            Reason::Rejected => Self::Rejected { error: None },
            Reason::Expired => Self::refused(condition::PRECONDITION_FAILED, "its time to live is over"),
            Reason::MaxLen => Self::refused(condition::RESOURCE_LIMIT_EXCEEDED, "the queue was too long"),
            Reason::DeliveryLimit => {
                Self::refused(condition::RESOURCE_LIMIT_EXCEEDED, "its deliveries failed too often")
            }
        }
    }

    fn badness(&self) -> u8 {
        match self {
            Self::Accepted => 0,
            Self::Released => 1,
            Self::Modified { .. } => 2,
            Self::Rejected { .. } => 3,
        }
    }
}

/// Where a publish is in its session: a channel, and the tag or delivery id there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub conn: ConnId,
    pub channel: u16,
    pub number: u64,
}

/// A message whose publisher waits for its end.
#[derive(Debug)]
pub struct Receipt {
    /// Nobody, once the publisher is gone.
    waiter: Option<Waiter>,
    /// Queues, and messages that this one is a copy of, that have not spoken yet.
    left: u32,
    fate: Fate,
    /// What other queues want of the disk.
    needs: Needs,
    /// Barriers know the message by these ids.
    ids: Vec<(Place, barrier::Id)>,
    /// Copies that were published while this one was on its way: they end as it does.
    copies: Vec<ReceiptId>,
}

/// A receipt that is complete.
#[derive(Debug)]
pub struct Ended {
    pub receipt: ReceiptId,
    pub waiter: Waiter,
    pub fate: Fate,
    pub needs: Needs,
}

/// All receipts of a node.
pub(crate) struct Receipts {
    open: Slab<Receipt>,
    by_id: Map<(Place, barrier::Id), ReceiptId>,
    /// Who waits for the message with this serial number, which is published next.
    asked: Option<(u64, Waiter)>,
    /// The receipt of the message that is being published.
    made: Option<ReceiptId>,
    ended: VecDeque<Ended>,
}

impl Receipts {
    pub(super) fn new(seed: Seeded) -> Self {
        let (open, by_id, ended) = (Slab::default(), Map::with_hasher(seed), VecDeque::new());
        Self { open, by_id, asked: None, made: None, ended }
    }

    /// Does somebody wait for the end of this message?
    #[inline]
    pub(super) fn is_asked(&self, message: &Message) -> bool {
        self.asked.is_some_and(|asked| asked.0 == message.traits.serial)
    }

    /// Was a receipt made for the message that is being published?
    #[inline]
    pub(super) fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// The receipt of the message that is being published, with one more that has to speak.
    fn add(&mut self) -> Option<ReceiptId> {
        let id = match (self.made, self.asked) {
            (Some(id), _) => id,
            (None, Some((_, waiter))) => {
                let (fate, needs) = (Fate::Accepted, Needs::default());
                let (ids, copies) = (Vec::new(), Vec::new());
                *self.made.insert(self.open.insert(Receipt { waiter: Some(waiter), left: 0, fate, needs, ids, copies }))
            }
            (None, None) => return None,
        };
        self.open.get_mut(id)?.left += 1;
        Some(id)
    }

    /// Does anybody still wait for this one, or for a copy of it?
    fn is_awaited(&self, id: ReceiptId) -> bool {
        let mut next = vec![id];
        while let Some(receipt) = next.pop().map(|id| self.open.get(id)) {
            match receipt {
                Some(receipt) if receipt.waiter.is_some() => return true,
                Some(receipt) => next.extend(&receipt.copies),
                None => {}
            }
        }
        false
    }

    pub(crate) fn pop_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }
}

impl Broker {
    /// The publisher of the next message wants to be answered by its consumer, where a queue is like that.
    #[inline]
    pub fn ask_end(&mut self, message: &Message, waiter: Waiter) {
        self.receipts.asked = Some((message.traits.serial, waiter));
    }

    /// A queue has taken the message that is being published, at this position, and its consumer will answer.
    pub(super) fn pledge(&mut self, id: QueueId, position: u64) {
        let (Some(queue), Some(receipt)) = (self.queues.get_mut(id), self.receipts.add()) else { return };
        queue.pledges.insert(position, receipt);
    }

    /// The message that is being published is a copy of one that is still on its way: both end alike.
    pub(super) fn pledge_copy(&mut self, place: Place, id: barrier::Id, message: &Message) {
        let Some(first) = self.receipts.by_id.get(&(place, id)).copied() else { return };
        if !self.receipts.is_asked(message) {
            return;
        }
        let Some(copy) = self.receipts.add() else { return };
        let Some(receipt) = self.receipts.open.get_mut(first) else { return };
        let mut copies = std::mem::take(&mut receipt.copies);
        copies.retain(|known| self.receipts.open.get(*known).is_some());
        copies.push(copy);
        if let Some(receipt) = self.receipts.open.get_mut(first) {
            receipt.copies = copies;
        }
    }

    /// A barrier has remembered the message that is being published.
    pub(super) fn pledge_id(&mut self, place: Place, id: barrier::Id) {
        let Some(made) = self.receipts.made else { return };
        if let Some(receipt) = self.receipts.open.get_mut(made) {
            receipt.ids.push((place, id));
            self.receipts.by_id.insert((place, id), made);
        }
    }

    /// The message was published: its receipt, unless it was refused at once.
    #[inline]
    pub(super) fn end_asking(&mut self, rejected: bool) -> Option<ReceiptId> {
        self.receipts.asked = None;
        let made = self.receipts.made.take()?;
        if rejected {
            self.abandon(made);
            return None;
        }
        let needs = self.store.as_ref().map_or_else(Needs::default, |store| store.last);
        self.receipts.open.get_mut(made)?.needs = needs;
        Some(made)
    }

    /// A publisher that came with its message at this time is answered.
    pub fn note_answered(&mut self, made_ns: u64) {
        let us = self.now_ns.saturating_sub(made_ns) / 1_000;
        self.latency.to_confirm.add(us, 1, self.now_ns);
    }

    /// The publisher is gone: its message goes its way like any other.
    pub fn abandon(&mut self, id: ReceiptId) {
        let Some(receipt) = self.receipts.open.get_mut(id) else { return };
        receipt.waiter = None;
        // A publisher that comes back with the same message may ask again.
        if receipt.ids.is_empty() && receipt.copies.is_empty() {
            self.receipts.open.remove(id);
        }
    }

    /// Does the publisher of the message at this position wait for its end?
    #[inline]
    pub(super) fn is_pledged(&self, id: QueueId, position: u64) -> bool {
        let Some(queue) = self.queues.get(id).filter(|queue| !queue.pledges.is_empty()) else { return false };
        queue.pledges.get(&position).is_some_and(|receipt| self.receipts.is_awaited(*receipt))
    }

    /// The message at this position has left its queue for good.
    #[inline]
    pub(crate) fn redeem(&mut self, id: QueueId, position: u64, fate: impl FnOnce() -> Fate) {
        let Some(queue) = self.queues.get_mut(id).filter(|queue| !queue.pledges.is_empty()) else { return };
        if let Some(receipt) = queue.pledges.remove(&position) {
            self.speak(receipt, fate());
        }
    }

    /// The same for one that died there.
    #[inline]
    pub(super) fn redeem_dead(&mut self, id: QueueId, position: u64, reason: Reason) {
        self.redeem(id, position, || Fate::of_death(reason));
    }

    /// The same for all from a position on, but for some that consumers have.
    pub(super) fn redeem_from(&mut self, id: QueueId, first: u64, but: &[u64], fate: &Fate) {
        let Some(queue) = self.queues.get_mut(id).filter(|queue| !queue.pledges.is_empty()) else { return };
        let positions = queue.pledges.range(first..).map(|pledge| *pledge.0);
        let gone: Vec<u64> = positions.filter(|position| !but.contains(position)).collect();
        gone.into_iter().for_each(|position| self.redeem(id, position, || fate.clone()));
    }

    /// One of those that a receipt waits for has spoken.
    fn speak(&mut self, id: ReceiptId, fate: Fate) {
        let mut spoken = vec![(id, fate)];
        while let Some((id, fate)) = spoken.pop() {
            let Some(receipt) = self.receipts.open.get_mut(id) else { continue };
            if fate.badness() > receipt.fate.badness() {
                receipt.fate = fate;
            }
            receipt.left -= 1;
            if receipt.left > 0 {
                continue;
            }
            let Some(Receipt { waiter, fate, needs, ids, copies, .. }) = self.receipts.open.remove(id) else {
                continue;
            };
            for known in ids {
                // A barrier that had to forget it may know another one by the same id now.
                if self.receipts.by_id.get(&known) != Some(&id) {
                    continue;
                }
                self.receipts.by_id.remove(&known);
                if fate != Fate::Accepted {
                    // It may be sent again, and is no duplicate then.
                    self.barrier_mut(known.0).into_iter().for_each(|barrier| barrier.forget(&known.1));
                }
            }
            spoken.extend(copies.into_iter().map(|copy| (copy, fate.clone())));
            if let Some(waiter) = waiter {
                self.receipts.ended.push_back(Ended { receipt: id, waiter, fate, needs });
            }
        }
    }
}
