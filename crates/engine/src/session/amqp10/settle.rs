//! Settlement in both directions: what the peer decides about our deliveries, and what we answer to its.
//!
//! Owns the deliveries that a session has not settled, the meaning of each outcome, and the answers of a batch, which
//! leave as few dispositions as possible. Dispositions come in; outcomes go to the broker. It must never settle a
//! delivery twice. Rules: AMQP 1.0 sections 2.6.12 and 3.4; undeliverable-here means rejected, as RabbitMQ reads it.

use std::collections::VecDeque;
use std::rc::Rc;

use weft_wire::amqp10::{
    Declared, DeliveryState, Disposition, Error, Field, MapBuf, Outcome as WireOutcome, Rejected, Role, Symbol,
    TransactionalState, Value, condition, encode, writer,
};

use super::link::Link;
use super::{Fault, Session, head};
use crate::broker::{Broker, Outcome};
use crate::queue::QueueId;
use crate::queue::ready::Entry;

/// A queue of unsettled deliveries shorter than this is not worth compacting.
const COMPACT_MIN: usize = 64;

/// A delivery that the peer has not settled.
pub(super) struct Held {
    pub queue: QueueId,
    pub entry: Entry,
    pub handle: u32,
    /// The outlet's number.
    pub link: u32,
    pub tag: u32,
}

/// Unsettled deliveries in order of their ids, which rise and wrap; some are missing because they went settled.
#[derive(Default)]
pub(super) struct Unsettled {
    items: VecDeque<(u32, Option<Held>)>,
    live: usize,
}

impl Unsettled {
    #[inline]
    pub(super) fn hold(&mut self, id: u32, held: Held) {
        self.items.push_back((id, Some(held)));
        self.live += 1;
    }

    /// Where the delivery is, or would be.
    #[inline]
    fn index(&self, id: u32) -> usize {
        let Some((base, _)) = self.items.front() else { return 0 };
        let ahead = id.wrapping_sub(*base);
        if ahead > i32::MAX as u32 {
            return 0;
        }
        match self.items.get(ahead as usize) {
            Some((other, _)) if *other == id => ahead as usize,
            _ => self.items.partition_point(|(other, _)| other.wrapping_sub(*base) < ahead),
        }
    }

    #[inline]
    pub(super) fn take(&mut self, id: u32) -> Option<Held> {
        let index = self.index(id);
        let item = self.items.get_mut(index).filter(|item| item.0 == id)?;
        let held = item.1.take()?;
        self.live -= 1;
        while matches!(self.items.front(), Some((_, None))) {
            self.items.pop_front();
        }
        if self.items.len() > COMPACT_MIN && self.live * 4 < self.items.len() {
            self.items.retain(|item| item.1.is_some());
        }
        Some(held)
    }

    /// A delivery that a transaction had, and gave back.
    pub(super) fn restore(&mut self, id: u32, held: Held) {
        let index = self.index(id);
        self.live += 1;
        match self.items.get_mut(index) {
            Some(item) if item.0 == id => item.1 = Some(held),
            _ => self.items.insert(index, (id, Some(held))),
        }
    }

    /// Ids of the unsettled deliveries from `first` to `last`.
    pub(super) fn within(&self, first: u32, last: u32) -> Vec<u32> {
        let span = last.wrapping_sub(first);
        let items = self.items.range(self.index(first).min(self.items.len())..);
        let inside = items.take_while(|item| item.0.wrapping_sub(first) <= span);
        inside.filter(|item| item.1.is_some()).map(|item| item.0).collect()
    }

    /// Everything that one outlet sent.
    pub(super) fn take_link(&mut self, link: u32) -> Vec<(u32, Held)> {
        let mut taken = Vec::new();
        for (id, item) in &mut self.items {
            if let Some(held) = item.take_if(|held| held.link == link) {
                taken.push((*id, held));
            }
        }
        self.live -= taken.len();
        self.items.retain(|item| item.1.is_some());
        taken
    }
}

/// What a peer's outcome does to a delivery.
#[derive(Clone)]
pub(super) struct Decision {
    outcome: Outcome,
    /// Message annotations to add: an encoded map.
    annotations: Option<Rc<[u8]>>,
}

impl Decision {
    pub(super) const RELEASED: Self = Self { outcome: Outcome::Returned { failed: false }, annotations: None };

    pub(super) fn of(outcome: WireOutcome<'_>) -> Self {
        let (outcome, annotations) = match outcome {
            WireOutcome::Accepted | WireOutcome::Declared(_) => (Outcome::Accepted, None),
            WireOutcome::Released => (Outcome::Returned { failed: false }, None),
            WireOutcome::Rejected(rejected) => (Outcome::Rejected, rejected.error.map(|error| reason(&error))),
            WireOutcome::Modified(modified) => {
                let annotations = modified.message_annotations.filter(|map| !map.is_empty());
                let annotations = annotations.map(|map| {
                    let mut bytes = Vec::new();
                    map.put(&mut bytes);
                    Rc::from(bytes)
                });
                let outcome = match modified.undeliverable_here {
                    true => Outcome::Rejected,
                    false => Outcome::Returned { failed: modified.delivery_failed },
                };
                (outcome, annotations)
            }
        };
        Self { outcome, annotations }
    }
}

/// Why a consumer rejected a message, as annotations that go with it to the dead letters.
fn reason(error: &Error<'_>) -> Rc<[u8]> {
    let mut map = MapBuf::new();
    map.put(Value::Symbol("x-opt-rejected-condition"), Value::Symbol(error.condition.0));
    if let Some(text) = error.description {
        map.put(Value::Symbol("x-opt-rejected-description"), Value::String(text));
    }
    let mut bytes = Vec::new();
    writer::put_value(&mut bytes, &Value::Map(map.as_map()));
    Rc::from(bytes)
}

/// Ends a delivery as the peer decided.
pub(super) fn settle_held(broker: &mut Broker, mut held: Held, decision: &Decision) {
    let annotations = decision.annotations.as_ref();
    if let Some(message) = annotations.and_then(|added| head::annotated(&held.entry.message, added)) {
        held.entry.message = Rc::new(message);
    }
    broker.settle(held.queue, held.entry, decision.outcome);
}

/// Our answer to a delivery of the peer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Accepted,
    Released,
    Rejected {
        condition: Symbol<'static>,
        text: Rc<str>,
    },
    /// A transaction was made.
    Declared(u64),
    /// Accepted if the transaction is.
    Provisional(u64),
}

impl Verdict {
    pub(super) fn rejected(condition: Symbol<'static>, text: &str) -> Self {
        Self::Rejected { condition, text: Rc::from(text) }
    }

    fn with_state<T>(&self, each: impl FnOnce(DeliveryState<'_>) -> T) -> T {
        match self {
            Self::Accepted => each(DeliveryState::ACCEPTED),
            Self::Released => each(DeliveryState::RELEASED),
            Self::Rejected { condition, text } => {
                let error = Some(super::error_of(*condition, text));
                each(DeliveryState::Outcome(WireOutcome::Rejected(Rejected { error })))
            }
            Self::Declared(id) => {
                each(DeliveryState::Outcome(WireOutcome::Declared(Declared { txn_id: &id.to_be_bytes() })))
            }
            Self::Provisional(id) => {
                let outcome = Some(WireOutcome::Accepted);
                each(DeliveryState::Transactional(TransactionalState { txn_id: &id.to_be_bytes(), outcome }))
            }
        }
    }

    /// Adds the state to a map of unsettled deliveries.
    pub(super) fn put_under(&self, map: &mut MapBuf, tag: &[u8]) {
        self.with_state(|state| {
            map.put_with(Value::Binary(tag), |out| state.put(out));
        });
    }
}

/// An answer that the peer has not settled yet.
pub(super) struct Posted {
    pub handle: u32,
    pub tag: Box<[u8]>,
    pub verdict: Verdict,
}

/// Consecutive deliveries with the same answer.
pub(super) struct Run {
    role: Role,
    first: u32,
    last: u32,
    settled: bool,
    verdict: Option<Verdict>,
}

impl Run {
    fn write(&self, number: u16, out: &mut Vec<u8>) {
        let mut write = |state: Option<DeliveryState<'_>>| {
            let last = (self.last != self.first).then_some(self.last);
            let disposition = Disposition {
                role: self.role,
                first: self.first,
                last,
                settled: self.settled,
                state,
                batchable: false,
            };
            encode(out, number, &disposition);
        };
        match &self.verdict {
            Some(verdict) => verdict.with_state(|state| write(Some(state))),
            None => write(None),
        }
    }
}

impl super::channel::Channel {
    /// Answers a delivery: with the ones before it if it can be, at the end of the batch at the latest.
    #[inline]
    pub(super) fn report(
        &mut self,
        out: &mut Vec<u8>,
        number: u16,
        role: Role,
        id: u32,
        verdict: Option<Verdict>,
        settled: bool,
    ) {
        if let Some(run) = &mut self.run {
            let next = run.role == role && run.last.wrapping_add(1) == id && run.settled == settled;
            if next && run.verdict == verdict {
                run.last = id;
                return;
            }
        }
        self.send_run(number, out);
        self.run = Some(Run { role, first: id, last: id, settled, verdict });
    }

    pub(super) fn send_run(&mut self, number: u16, out: &mut Vec<u8>) {
        if let Some(run) = self.run.take() {
            run.write(number, out);
        }
    }
}

impl Session {
    pub(super) fn on_disposition(
        &mut self,
        io: &mut crate::conn::Io,
        broker: &mut Broker,
        number: u16,
        disposition: &Disposition<'_>,
    ) -> Result<(), Fault> {
        let Some(channel) = self.live(number)? else { return Ok(()) };
        let (first, last) = (disposition.first, disposition.last.unwrap_or(disposition.first));
        if last.wrapping_sub(first) > i32::MAX as u32 {
            return Err(Fault::session(condition::INVALID_FIELD, "the last delivery comes before the first"));
        }
        if disposition.role == Role::Sender {
            if disposition.settled {
                self.on_sender_settled(broker, number, first, last);
            }
            return Ok(());
        }
        let decision = match disposition.state {
            Some(DeliveryState::Transactional(state)) => {
                return self.retire(broker, number, (first, last), &state, disposition.settled);
            }
            Some(DeliveryState::Outcome(WireOutcome::Declared(_))) => {
                return Err(Fault::session(condition::INVALID_FIELD, "declared is no outcome of a message"));
            }
            Some(DeliveryState::Outcome(outcome)) => Some(Decision::of(outcome)),
            Some(DeliveryState::Received(_)) | None if !disposition.settled => return Ok(()),
            Some(DeliveryState::Received(_)) | None => None,
        };
        for id in channel.unsettled.within(first, last) {
            let Some(held) = channel.unsettled.take(id) else { continue };
            if !disposition.settled {
                channel.report(&mut io.output, number, Role::Sender, id, None, true);
            }
            let default = match (&decision, channel.link(held.handle)) {
                (None, Some(Link::Out(outlet))) => outlet.default_outcome.clone(),
                _ => Decision::RELEASED,
            };
            settle_held(broker, held, decision.as_ref().unwrap_or(&default));
            broker.spend(1);
        }
        if !disposition.settled {
            self.owe(number);
        }
        Ok(())
    }

    /// The sender has settled what we answered: nothing has to be remembered any more.
    fn on_sender_settled(&mut self, broker: &mut Broker, number: u16, first: u32, last: u32) {
        let credit_low = broker.limits.link_credit / 2;
        let Some(channel) = self.channel(number) else { return };
        let span = last.wrapping_sub(first);
        let ids: Vec<u32> = channel.posted.keys().copied().filter(|id| id.wrapping_sub(first) <= span).collect();
        for id in ids {
            let Some(posted) = channel.posted.remove(&id) else { continue };
            if let Some(Link::In(inlet)) = channel.link(posted.handle) {
                inlet.posted = inlet.posted.saturating_sub(1);
                if inlet.credit <= credit_low {
                    channel.thirst(posted.handle);
                }
            }
        }
        self.owe(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::ready::NEVER;
    use crate::slab::Id;
    use crate::testing::message;

    fn held(tag: u32, link: u32) -> Held {
        let entry =
            Entry { message: message(b"x", 0), position: 0, expires_ns: NEVER, failures: 0, redelivered: false };
        Held { queue: Id::from_raw(1), entry, handle: 0, link, tag }
    }

    #[test]
    fn ids_are_found_across_the_wrap_and_across_gaps() {
        let mut unsettled = Unsettled::default();
        let ids: Vec<u32> = (0..10).map(|i: u32| (u32::MAX - 5).wrapping_add(i * 2)).collect();
        ids.iter().for_each(|id| unsettled.hold(*id, held(*id, id % 4)));
        assert!(unsettled.take(ids[0].wrapping_add(1)).is_none());
        assert!(unsettled.take(ids[0].wrapping_sub(1)).is_none());
        assert_eq!(unsettled.take(ids[4]).map(|held| held.tag), Some(ids[4]));
        assert!(unsettled.take(ids[4]).is_none());
        assert_eq!(unsettled.within(ids[3], ids[6]), [ids[3], ids[5], ids[6]]);
        assert_eq!(unsettled.within(ids[0].wrapping_sub(7), ids[1]), [ids[0], ids[1]]);
        unsettled.restore(ids[4], held(7, 9));
        assert_eq!(unsettled.take_link(9).len(), 1);
        assert_eq!(unsettled.within(ids[0], ids[9]).len(), 9);
    }

    #[test]
    fn one_old_delivery_does_not_keep_the_places_of_settled_ones() {
        let mut unsettled = Unsettled::default();
        unsettled.hold(0, held(0, 0));
        for id in 1..10_000 {
            unsettled.hold(id, held(id, 0));
            assert!(unsettled.take(id).is_some());
        }
        assert!(unsettled.items.len() <= COMPACT_MIN + 1, "{}", unsettled.items.len());
        assert!(unsettled.take(0).is_some());
        assert!(unsettled.items.is_empty());
    }

    #[test]
    fn answers_in_a_row_leave_as_one() {
        let mut out = Vec::new();
        let run = Run { role: Role::Receiver, first: 3, last: 9, settled: true, verdict: Some(Verdict::Accepted) };
        run.write(1, &mut out);
        let mut expected = Vec::new();
        let state = Some(DeliveryState::ACCEPTED);
        let disposition =
            Disposition { role: Role::Receiver, first: 3, last: Some(9), settled: true, state, batchable: false };
        encode(&mut expected, 1, &disposition);
        assert_eq!(out, expected);
    }
}
