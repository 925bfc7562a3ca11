//! Deliveries that a channel's client has not settled yet.
//!
//! Owns delivery tags and what they stand for, and the methods that settle them: ack, nack, reject, recover. Tags come
//! in from the client, outcomes go to the broker. It must never let a tag stand for two deliveries. Rules: AMQP 0-9-1
//! section 1.8.3, RabbitMQ's basic.nack; a tag the channel does not hold is 406.

use std::collections::VecDeque;
use std::rc::Rc;

use weft_wire::amqp091::reply;

use super::channel::Channel;
use super::runs::{Run, Runs};
use super::{Fault, Session, Step, Stepped};
use crate::broker::{Broker, Outcome};
use crate::message::Message;
use crate::queue::QueueId;
use crate::queue::ready::{Entry, NEVER};

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

impl Held {
    /// A single delivery of a stream.
    fn read(one: &Run, hollow: &Rc<Message>) -> Self {
        let entry = Entry {
            message: Rc::clone(hollow),
            position: one.offset,
            expires_ns: NEVER,
            since_ns: 0,
            failures: 0,
            redelivered: false,
            stored: false,
            reader: one.reader,
        };
        Self { queue: one.queue, entry, tap: one.tap, marked: false }
    }
}

/// Unsettled deliveries, in order of their tags. Tags rise by one, so a tag is nearly an index.
#[derive(Debug, Default)]
pub(super) struct Unacked {
    /// What was settled leaves its tag behind until it is at the front, or until there are too many of them.
    items: VecDeque<(u64, Option<Held>)>,
    live: usize,
    /// Deliveries of streams.
    pub runs: Runs,
    last_tag: u64,
}

/// Settled deliveries that may lie behind an unsettled one, beyond as many again as are unsettled.
const SETTLED_KEEP: usize = 64;

impl Unacked {
    /// How many wait.
    pub fn len(&self) -> usize {
        self.live + self.runs.len()
    }

    /// The tag of the next delivery.
    #[inline]
    pub fn next_tag(&self) -> u64 {
        self.last_tag + 1
    }

    /// Deliveries of a stream that wait for their ack.
    #[inline]
    pub fn hold_read(&mut self, run: Run) {
        self.last_tag += u64::from(run.count);
        self.runs.push(run);
    }

    /// Each delivery of a stream for itself, as transactions want them.
    fn unfold(&mut self, hollow: &Rc<Message>) {
        let runs = self.runs.take_upto(u64::MAX);
        if runs.is_empty() {
            return;
        }
        for run in runs {
            self.live += run.count as usize;
            self.items.extend(run.each().map(|one| (one.tag, Some(Held::read(&one, hollow)))));
        }
        self.items.make_contiguous().sort_unstable_by_key(|(tag, _)| *tag);
    }

    /// A tag for a delivery that needs no ack.
    #[inline]
    pub fn skip(&mut self) -> u64 {
        self.last_tag += 1;
        self.last_tag
    }

    /// A tag for a delivery that waits for its ack.
    #[inline]
    pub fn hold(&mut self, held: Held) -> u64 {
        self.last_tag += 1;
        self.live += 1;
        self.items.push_back((self.last_tag, Some(held)));
        self.last_tag
    }

    #[inline]
    fn index(&self, tag: u64) -> Option<usize> {
        let first = self.items.front()?.0;
        let guess = usize::try_from(tag.checked_sub(first)?).ok()?;
        match self.items.get(guess) {
            Some((found, _)) if *found == tag => Some(guess),
            _ => self.items.binary_search_by_key(&tag, |(tag, _)| *tag).ok(),
        }
    }

    pub fn get_mut(&mut self, tag: u64) -> Option<&mut Held> {
        let index = self.index(tag)?;
        self.items.get_mut(index)?.1.as_mut()
    }

    /// Everything unsettled, marked or not.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.items.iter_mut().filter_map(|(_, held)| held.as_mut())
    }

    /// Is there something unsettled, not marked, with this tag?
    fn knows(&mut self, tag: u64) -> bool {
        self.get_mut(tag).is_some_and(|held| !held.marked)
    }

    #[inline]
    pub fn take(&mut self, tag: u64) -> Option<Held> {
        let index = self.index(tag)?;
        let held = self.items.get_mut(index)?.1.take()?;
        self.live -= 1;
        while matches!(self.items.front(), Some((_, None))) {
            self.items.pop_front();
        }
        if self.items.len() > 2 * self.live + SETTLED_KEEP {
            self.items.retain(|(_, held)| held.is_some());
        }
        Some(held)
    }

    /// Tags of all unsettled deliveries that are not marked and not above `last`.
    pub fn upto(&self, last: u64) -> Vec<u64> {
        let upto = self.items.iter().take_while(|(tag, _)| *tag <= last);
        upto.filter(|(_, held)| held.as_ref().is_some_and(|held| !held.marked)).map(|(tag, _)| *tag).collect()
    }

    pub fn take_all(&mut self) -> impl DoubleEndedIterator<Item = Held> + use<> {
        self.live = 0;
        std::mem::take(&mut self.items).into_iter().filter_map(|(_, held)| held)
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
        let unknown = || Fault::channel(reply::PRECONDITION_FAILED, format!("unknown delivery tag {tag}"));
        if !multiple && channel.transaction.is_none() {
            let held = self.release(broker, number, tag).ok_or_else(unknown)?;
            broker.settle(held.queue, held.entry, outcome);
            return Ok(Step::Done(0));
        }
        let last = if tag == 0 { u64::MAX } else { tag };
        let all = multiple && (tag == 0 || tag <= channel.unacked.last_tag);
        let runs = match channel.transaction {
            Some(_) => {
                channel.unacked.unfold(&broker.hollow);
                false
            }
            None => all && channel.settle_runs(broker, last, outcome),
        };
        let unacked = &mut channel.unacked;
        let tags = match multiple {
            false if unacked.knows(tag) => vec![tag],
            true if all => unacked.upto(last),
            _ => Vec::new(),
        };
        if tags.is_empty() && !runs && !(multiple && tag == 0) {
            return Err(unknown());
        }
        let Some(transaction) = &mut channel.transaction else {
            self.settle_tags(broker, number, tags, outcome);
            return Ok(Step::Done(0));
        };
        for tag in tags {
            if let Some(held) = unacked.get_mut(tag) {
                held.marked = true;
                transaction.settled.push((tag, outcome));
            }
        }
        Ok(Step::Done(0))
    }

    /// Settles one delivery.
    pub(super) fn settle_tag(&mut self, broker: &mut Broker, number: u16, tag: u64, outcome: Outcome) {
        if let Some(held) = self.release(broker, number, tag) {
            broker.settle(held.queue, held.entry, outcome);
        }
    }

    fn settle_tags(&mut self, broker: &mut Broker, number: u16, tags: Vec<u64>, outcome: Outcome) {
        let Outcome::Returned { failed } = outcome else {
            for tag in tags {
                self.settle_tag(broker, number, tag, outcome);
                broker.spend(1);
            }
            return;
        };
        let held = tags.into_iter().filter_map(|tag| self.release(broker, number, tag));
        let back: Vec<_> = held.map(|held| (held.queue, held.entry)).collect();
        broker.give_back(back.into_iter(), failed);
    }

    /// Takes a delivery off the channel's hands and gives its consumer the room back.
    fn release(&mut self, broker: &mut Broker, number: u16, tag: u64) -> Option<Held> {
        let channel = self.channel(number)?;
        let read = |one: Run| Held::read(&one, &broker.hollow);
        let held = channel.unacked.take(tag).or_else(|| channel.unacked.runs.take(tag).map(read))?;
        if held.tap != NO_TAP {
            channel.make_room(broker, held.tap, 1);
        }
        Some(held)
    }

    /// Everything unsettled goes back to its place.
    pub(super) fn on_recover(&mut self, broker: &mut Broker, number: u16) {
        let Some(channel) = self.channel(number) else { return };
        let outcome = Outcome::Returned { failed: false };
        channel.settle_runs(broker, u64::MAX, outcome);
        let tags = channel.unacked.upto(u64::MAX);
        self.settle_tags(broker, number, tags, outcome);
    }
}

impl Channel {
    /// Settles the deliveries of streams up to a tag; were there any?
    pub(super) fn settle_runs(&mut self, broker: &mut Broker, last: u64, outcome: Outcome) -> bool {
        let runs = self.unacked.runs.take_upto(last);
        for run in &runs {
            self.make_room(broker, run.tap, run.count);
            broker.settle_run(run.queue, run.reader, run.offset..run.offset + u64::from(run.count), outcome);
        }
        !runs.is_empty()
    }

    /// So many deliveries to a consumer are settled: there is room for others.
    fn make_room(&mut self, broker: &mut Broker, tap: u32, count: u32) {
        let was_full = self.limit > 0 && self.inflight >= u32::from(self.limit);
        self.inflight -= count;
        if let Some(Some(tap)) = self.taps.get_mut(tap as usize) {
            tap.inflight -= count;
            if std::mem::take(&mut tap.starved) {
                tap.id.into_iter().for_each(|id| broker.wake(id));
            }
        }
        if was_full {
            self.wake_all(broker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::ready::NEVER;
    use crate::testing::message;

    fn held() -> Held {
        let entry = Entry {
            message: message(b"x", 0),
            position: 0,
            expires_ns: NEVER,
            since_ns: 0,
            failures: 0,
            redelivered: false,
            stored: false,
            reader: 0,
        };
        Held { queue: QueueId::from_raw(1), entry, tap: NO_TAP, marked: false }
    }

    #[test]
    fn tags_are_found_whatever_was_settled_before_and_between() {
        let mut unacked = Unacked::default();
        assert!(unacked.take(0).is_none() && unacked.take(1).is_none());
        for tag in 1..=10 {
            assert_eq!(if tag % 3 == 0 { unacked.skip() } else { unacked.hold(held()) }, tag);
        }
        assert_eq!(unacked.upto(5), [1, 2, 4, 5]);
        for tag in [4, 1, 10] {
            assert!(unacked.take(tag).is_some());
            assert!(unacked.take(tag).is_none());
        }
        assert!(unacked.take(3).is_none(), "it needed no ack");
        assert!(unacked.take(11).is_none() && unacked.take(u64::MAX).is_none());
        assert_eq!(unacked.upto(u64::MAX), [2, 5, 7, 8]);
        assert_eq!(unacked.take_all().count(), 4);
        assert_eq!(unacked.hold(held()), 11);
    }

    #[test]
    fn one_forgotten_delivery_does_not_keep_the_history_of_all_later_ones() {
        let mut unacked = Unacked::default();
        unacked.hold(held());
        for _ in 0..10_000 {
            let tag = unacked.hold(held());
            assert!(unacked.take(tag).is_some());
            unacked.skip();
        }
        assert!(unacked.items.len() <= 2 + SETTLED_KEEP, "{} places for one delivery", unacked.items.len());
        assert_eq!(unacked.upto(u64::MAX), [1]);
    }
}
