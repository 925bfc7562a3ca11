//! Deliveries that a channel's client has not settled yet.
//!
//! Owns delivery tags and what they stand for, and the methods that settle them: ack, nack, reject, recover. Tags come in from the
//! client, outcomes go to the broker. It must never let a tag stand for two deliveries. Rules: AMQP 0-9-1 section 1.8.3, RabbitMQ's
//! basic.nack; a tag the channel does not hold is 406.

use std::collections::VecDeque;

use weft_wire::amqp091::reply;

use super::{Fault, Session, Step, Stepped};
use crate::broker::{Broker, Outcome};
use crate::queue::QueueId;
use crate::queue::ready::Entry;

/// The tap of a message fetched with basic.get.
pub(super) const NO_TAP: u32 = u32::MAX;
/// The tap of a message whose consumer was cancelled: no slot, but the channel's limit still counts it.
pub(super) const GONE_TAP: u32 = u32::MAX - 1;

/// A delivery waiting to be settled.
#[derive(Debug)]
pub(super) struct Held {
    pub queue: QueueId,
    pub entry: Entry,
    /// Slot of the consumer it went to.
    pub tap: u32,
    /// Settled in a transaction that is not committed yet.
    pub marked: bool,
}

/// Unsettled deliveries by tag. Tags rise by one, so a tag is an index.
#[derive(Debug, Default)]
pub(super) struct Unacked {
    /// Tag of the first item.
    base: u64,
    items: VecDeque<Option<Held>>,
    last_tag: u64,
}

impl Unacked {
    /// A tag for a delivery that needs no ack.
    #[inline]
    pub fn skip(&mut self) -> u64 {
        self.last_tag += 1;
        if !self.items.is_empty() {
            self.items.push_back(None);
        }
        self.last_tag
    }

    /// A tag for a delivery that waits for its ack.
    #[inline]
    pub fn hold(&mut self, held: Held) -> u64 {
        self.last_tag += 1;
        if self.items.is_empty() {
            self.base = self.last_tag;
        }
        self.items.push_back(Some(held));
        self.last_tag
    }

    pub fn get_mut(&mut self, tag: u64) -> Option<&mut Held> {
        let index = tag.checked_sub(self.base)?;
        self.items.get_mut(usize::try_from(index).ok()?)?.as_mut()
    }

    /// Everything unsettled, marked or not.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.items.iter_mut().flatten()
    }

    /// Is there something unsettled, not marked, with this tag?
    fn knows(&mut self, tag: u64) -> bool {
        self.get_mut(tag).is_some_and(|held| !held.marked)
    }

    #[inline]
    pub fn take(&mut self, tag: u64) -> Option<Held> {
        let index = usize::try_from(tag.checked_sub(self.base)?).ok()?;
        let held = self.items.get_mut(index)?.take()?;
        while matches!(self.items.front(), Some(None)) {
            self.items.pop_front();
            self.base += 1;
        }
        Some(held)
    }

    /// The oldest unsettled tag that is not marked and not above `last`.
    fn first_upto(&self, last: u64) -> Option<u64> {
        let open = |item: &Option<Held>| item.as_ref().is_some_and(|held| !held.marked);
        let tag = self.base + self.items.iter().position(open)? as u64;
        (tag <= last).then_some(tag)
    }

    /// Tags of all unsettled deliveries that are not marked and not above `last`.
    pub fn upto(&self, last: u64) -> Vec<u64> {
        let tagged = self.items.iter().zip(self.base..);
        let open = tagged.filter(|(item, tag)| *tag <= last && item.as_ref().is_some_and(|held| !held.marked));
        open.map(|(_, tag)| tag).collect()
    }

    pub fn last_tag(&self) -> u64 {
        self.last_tag
    }

    pub fn take_all(&mut self) -> Vec<(u64, Held)> {
        let base = self.base;
        let items = std::mem::take(&mut self.items).into_iter().zip(base..);
        items.filter_map(|(item, tag)| item.map(|held| (tag, held))).collect()
    }
}

impl Session {
    pub(super) fn on_settle(
        &mut self,
        broker: &mut Broker,
        number: u16,
        tag: u64,
        multiple: bool,
        outcome: Outcome,
    ) -> Stepped {
        let Some(channel) = self.channel(number) else { return Ok(Step::Done(0)) };
        let last = if tag == 0 && multiple { channel.unacked.last_tag() } else { tag };
        let known = channel.unacked.knows(tag) || tag == 0 && multiple;
        let covers = multiple && channel.unacked.first_upto(last).is_some() && tag <= channel.unacked.last_tag();
        if !known && !covers {
            return Err(Fault::channel(reply::PRECONDITION_FAILED, format!("unknown delivery tag {tag}")));
        }
        if let Some(transaction) = &mut channel.transaction {
            let tags = if multiple { channel.unacked.upto(last) } else { vec![tag] };
            for tag in tags {
                if let Some(held) = channel.unacked.get_mut(tag) {
                    held.marked = true;
                    transaction.settled.push((tag, outcome));
                }
            }
            return Ok(Step::Done(0));
        }
        if !multiple {
            self.settle_tag(broker, number, tag, outcome);
            return Ok(Step::Done(0));
        }
        while let Some(tag) = self.channel(number).and_then(|channel| channel.unacked.first_upto(last)) {
            self.settle_tag(broker, number, tag, outcome);
            broker.spend(1);
        }
        Ok(Step::Done(0))
    }

    /// Settles one delivery and gives its consumer the room back.
    pub(super) fn settle_tag(&mut self, broker: &mut Broker, number: u16, tag: u64, outcome: Outcome) {
        let Some(channel) = self.channel(number) else { return };
        let Some(held) = channel.unacked.take(tag) else { return };
        if held.tap != NO_TAP {
            channel.inflight -= 1;
            if let Some(Some(tap)) = channel.taps.get_mut(held.tap as usize) {
                tap.inflight -= 1;
                if std::mem::take(&mut tap.starved) {
                    tap.id.into_iter().for_each(|id| broker.wake(id));
                }
            }
            if channel.limit > 0 && channel.inflight + 1 >= u32::from(channel.limit) {
                channel.wake_all(broker);
            }
        }
        broker.settle(held.queue, held.entry, outcome);
    }

    /// Everything unsettled goes back to its place.
    pub(super) fn on_recover(&mut self, broker: &mut Broker, number: u16) {
        let Some(channel) = self.channel(number) else { return };
        for tag in channel.unacked.upto(u64::MAX) {
            self.settle_tag(broker, number, tag, Outcome::Returned { failed: false });
        }
    }
}
