//! Settlement in both directions: what the peer decides about our deliveries, and what we answer to its.
//!
//! Owns the meaning of each outcome, and the answers of a batch, which leave as few dispositions as possible.
//! Dispositions come in; outcomes go to the broker. It must never settle a delivery twice.
//! Rules: AMQP 1.0 sections 2.6.12 and 3.4; undeliverable-here means rejected, as RabbitMQ reads it.

use std::rc::Rc;

use weft_wire::amqp10::{
    Declared, DeliveryState, Disposition, Error, Field, MapBuf, Modified, Outcome as WireOutcome, Reader, Rejected,
    Role, Symbol, TransactionalState, Value, condition, encode, writer,
};

use super::link::Link;
use super::unsettled::Held;
use super::{Fault, Session, head};
use crate::broker::{Broker, Fate, Outcome};
use crate::event::Event;
use crate::fields;
use crate::queue::QueueId;
use crate::queue::ready::Entry;

/// What a consumer says is told its publisher in so many bytes: any peer takes frames of 512.
const CONDITION_BYTES_MAX: usize = 64;
const ANNOTATIONS_BYTES_MAX: usize = 256;

/// So long may good news for another node wait for something to leave with: nobody there waits for it.
const LATE_NS_MAX: u64 = 5_000_000;
/// So many deliveries at most are answered late: a quarter of what a route has on the way by default.
const LATE_MAX: u32 = 250;

/// What a peer's outcome does to a delivery.
#[derive(Clone)]
pub(super) struct Decision {
    outcome: Outcome,
    /// The peer's own words, for a publisher that waits for them; none where it said nothing.
    fate: Option<Fate>,
    /// Message annotations to add: an encoded map.
    annotations: Option<Rc<[u8]>>,
}

impl Decision {
    pub(super) fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Does it add something to the message?
    pub(super) fn annotates(&self) -> bool {
        self.annotations.is_some()
    }

    pub(super) const RELEASED: Self =
        Self { outcome: Outcome::Returned { failed: false }, fate: None, annotations: None };

    pub(super) fn of(outcome: WireOutcome<'_>) -> Self {
        let (outcome, fate, annotations) = match outcome {
            WireOutcome::Accepted | WireOutcome::Declared(_) => (Outcome::Accepted, Fate::Accepted, None),
            WireOutcome::Released => (Outcome::Returned { failed: false }, Fate::Released, None),
            WireOutcome::Rejected(rejected) => {
                let words = |error: Error<'_>| {
                    let condition = error.condition.0.get(..CONDITION_BYTES_MAX).unwrap_or(error.condition.0);
                    (Rc::from(condition), Rc::from(error.description.unwrap_or_default()))
                };
                let error = rejected.error.map(words);
                (Outcome::Rejected, Fate::Rejected { error }, rejected.error.map(|error| reason(&error)))
            }
            WireOutcome::Modified(modified) => {
                let annotations = modified.message_annotations.filter(|map| !map.is_empty());
                let annotations: Option<Rc<[u8]>> = annotations.map(|map| {
                    let mut bytes = Vec::new();
                    map.put(&mut bytes);
                    Rc::from(bytes)
                });
                let (failed, undeliverable) = (modified.delivery_failed, modified.undeliverable_here);
                let outcome = if undeliverable { Outcome::Rejected } else { Outcome::Returned { failed } };
                let told = annotations.clone().filter(|bytes| bytes.len() <= ANNOTATIONS_BYTES_MAX);
                (outcome, Fate::Modified { failed, undeliverable, annotations: told }, annotations)
            }
        };
        Self { outcome, fate: Some(fate), annotations }
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
    if held.reports {
        report(broker, held.queue, &held.entry, decision.fate.as_ref());
    }
    broker.settle_as(held.queue, held.entry, decision.outcome, decision.fate.as_ref());
}

/// Tells whoever watches the link how a delivery ended.
pub(super) fn report(broker: &mut Broker, queue: QueueId, entry: &Entry, fate: Option<&Fate>) {
    let Some((vhost, queue)) = broker.names_of(queue) else { return };
    let message_id = fields::message_id(&entry.message).unwrap_or_default();
    let message_id = String::from_utf8_lossy(&message_id).into_owned();
    let outcome = fate.map_or("released", Fate::word);
    broker.events.push(Event::Settled { vhost, queue, message_id, outcome });
}

/// The link of a delivery is lost: back to its queue, and in doubt if a node may have it all the same.
pub(super) fn lose_held(broker: &mut Broker, held: Held, failed: bool) {
    if let Some(peer) = held.peer {
        broker.doubt(held.queue, held.entry.position, peer);
    }
    broker.settle(held.queue, held.entry, Outcome::Returned { failed });
}

/// Our answer to a delivery of the peer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Accepted,
    Released,
    /// Not here and now, and it counts as a failed delivery.
    Failed,
    Rejected {
        condition: Symbol<'static>,
        text: Rc<str>,
    },
    /// A transaction was made.
    Declared(u64),
    /// Accepted if the transaction is.
    Provisional(u64),
    /// What its consumer said.
    Ended(Fate),
}

impl Verdict {
    pub(super) fn rejected(condition: Symbol<'static>, text: &str) -> Self {
        Self::Rejected { condition, text: Rc::from(text) }
    }

    /// What the peer says of its delivery, said again.
    pub(super) fn of(outcome: WireOutcome<'_>) -> Self {
        Decision::of(outcome).fate.map_or(Self::Released, Self::Ended)
    }

    fn with_state<T>(&self, each: impl FnOnce(DeliveryState<'_>) -> T) -> T {
        match self {
            Self::Ended(fate) => each(state_of(fate)),
            Self::Accepted => each(DeliveryState::ACCEPTED),
            Self::Released => each(DeliveryState::RELEASED),
            Self::Failed => {
                let modified = Modified { delivery_failed: true, ..Modified::default() };
                each(DeliveryState::Outcome(WireOutcome::Modified(modified)))
            }
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

/// A fate as the protocol says it.
fn state_of(fate: &Fate) -> DeliveryState<'_> {
    DeliveryState::Outcome(match fate {
        Fate::Accepted => WireOutcome::Accepted,
        Fate::Released => WireOutcome::Released,
        Fate::Modified { failed, undeliverable, annotations } => {
            let map = annotations.as_deref().and_then(|bytes| Reader::new(bytes).read().ok()?.as_map());
            WireOutcome::Modified(Modified {
                delivery_failed: *failed,
                undeliverable_here: *undeliverable,
                message_annotations: map,
            })
        }
        Fate::Rejected { error } => {
            let error = error.as_ref().map(|(condition, text)| super::error_of(Symbol(condition), text));
            WireOutcome::Rejected(Rejected { error })
        }
    })
}

/// An answer that the peer has not settled yet.
pub(super) struct Posted {
    pub handle: u32,
    pub tag: Box<[u8]>,
    pub verdict: Verdict,
}

/// What one side is told about a delivery.
pub(super) struct Told {
    pub role: Role,
    pub id: u32,
    pub verdict: Option<Verdict>,
    pub settled: bool,
    /// Nobody waits for it.
    pub patient: bool,
}

/// Consecutive deliveries that are told the same.
pub(super) struct Run {
    told: Told,
    last: u32,
}

impl Run {
    /// Is it good news, and not too much of it, for someone who can wait?
    fn may_wait(&self, is_patient: bool) -> bool {
        let told = &self.told;
        let is_good = told.role == Role::Receiver && told.settled && told.verdict == Some(Verdict::Accepted);
        (is_patient || told.patient) && is_good && self.last.wrapping_sub(told.id) < LATE_MAX
    }

    fn write(&self, number: u16, out: &mut Vec<u8>) {
        let mut write = |state: Option<DeliveryState<'_>>| {
            let last = (self.last != self.told.id).then_some(self.last);
            let disposition = Disposition {
                role: self.told.role,
                first: self.told.id,
                last,
                settled: self.told.settled,
                state,
                batchable: false,
            };
            encode(out, number, &disposition);
        };
        match &self.told.verdict {
            Some(verdict) => verdict.with_state(|state| write(Some(state))),
            None => write(None),
        }
    }
}

impl Told {
    /// That a delivery of ours is over.
    pub(super) fn settled(id: u32) -> Self {
        Self { role: Role::Sender, id, verdict: None, settled: true, patient: false }
    }

    /// What becomes of a delivery of the peer's.
    pub(super) fn verdict(id: u32, verdict: Verdict, settled: bool) -> Self {
        Self { role: Role::Receiver, id, verdict: Some(verdict), settled, patient: false }
    }
}

impl super::channel::Channel {
    /// Answers a delivery: with the ones before it if it can be, at the end of the batch at the latest.
    #[inline]
    pub(super) fn report(&mut self, io: &mut crate::conn::Io, number: u16, told: Told) {
        if let Some(Run { told: before, last }) = &mut self.run {
            let next = before.role == told.role && last.wrapping_add(1) == told.id && before.settled == told.settled;
            if next && before.verdict == told.verdict {
                *last = told.id;
                before.patient &= told.patient;
                return;
            }
        }
        self.send_run(number, io);
        self.run = Some(Run { last: told.id, told });
    }

    /// Outcomes of what a peer sent are promises; settlements of what it received are not.
    pub(super) fn send_run(&mut self, number: u16, io: &mut crate::conn::Io) {
        match self.run.take() {
            Some(run) if run.told.role == Role::Receiver => io.promise(number, |out| run.write(number, out)),
            Some(run) => run.write(number, &mut io.output),
            None => {}
        }
    }
}

impl Session {
    /// At the end of a batch: what is owed leaves, unless it can wait for the next message in the same direction. An
    /// answer of its own costs both nodes a wake-up (docs/decisions/0028).
    #[inline]
    pub(super) fn end_batch(&mut self, io: &mut crate::conn::Io, broker: &mut Broker) {
        if !self.owing.is_empty() {
            self.keep_late(io, broker);
        }
        self.send_due(io, broker);
        self.paced.schedule(io, broker);
    }

    fn keep_late(&mut self, io: &mut crate::conn::Io, broker: &mut Broker) {
        let was_empty = self.late.is_empty();
        for number in &self.owing {
            let Some(Some(channel)) = self.channels.get_mut(usize::from(*number)) else { continue };
            // What waits for the disk waits long enough.
            channel.late = io.direct && channel.run.as_ref().is_some_and(|run| run.may_wait(self.patient));
            if channel.late && !self.late.contains(number) {
                self.late.push(*number);
            }
        }
        if was_empty && !self.late.is_empty() {
            self.late_ns = broker.now_ns + LATE_NS_MAX;
            broker.schedule_conn(io, self.late_ns);
        }
    }

    /// Answers that waited leave now.
    pub(super) fn send_late(&mut self, io: &mut crate::conn::Io) {
        while let Some(number) = self.late.pop() {
            if let Some(channel) = self.channel(number).filter(|channel| channel.late) {
                channel.late = false;
                channel.send_run(number, io);
            }
        }
    }

    /// Nothing came that they could have left with. When to look again.
    pub(super) fn end_wait(&mut self, io: &mut crate::conn::Io, broker: &Broker) -> Option<u64> {
        if self.late.is_empty() {
            return None;
        }
        if broker.now_ns < self.late_ns {
            return Some(self.late_ns);
        }
        self.send_late(io);
        None
    }

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
                self.on_sender_settled(number, first, last);
            }
            return Ok(());
        }
        let decision = match disposition.state {
            Some(DeliveryState::Transactional(state)) => {
                return self.retire(io, broker, number, (first, last), &state, disposition.settled);
            }
            Some(DeliveryState::Outcome(WireOutcome::Declared(_))) => {
                return Err(Fault::session(condition::INVALID_FIELD, "declared is no outcome of a message"));
            }
            Some(DeliveryState::Outcome(outcome)) => Some(Decision::of(outcome)),
            Some(DeliveryState::Received(_)) | None if !disposition.settled => return Ok(()),
            Some(DeliveryState::Received(_)) | None => None,
        };
        let ids = channel.unsettled.within(first, last);
        if let Some(acquirer) = ids.iter().find_map(|id| self.transactions.acquirer(number, *id)) {
            self.end_control(io, broker, acquirer);
            return Ok(());
        }
        let Some(channel) = self.channel(number) else { return Ok(()) };
        let mut returned = None;
        for id in ids {
            let Some(held) = channel.unsettled.take(id) else { continue };
            if !disposition.settled {
                channel.report(io, number, Told::settled(id));
            }
            let default = match (&decision, channel.link(held.handle)) {
                (None, Some(Link::Out(outlet))) => outlet.default_outcome.clone(),
                _ => Decision::RELEASED,
            };
            let decision = decision.as_ref().unwrap_or(&default);
            if let Some(peer) = held.peer.filter(|_| held.asked && decision.outcome != Outcome::Accepted) {
                broker.deny(held.queue, held.entry.position, peer);
                settle_held(broker, held, &Decision::RELEASED);
                continue;
            }
            if let Outcome::Returned { .. } = decision.outcome {
                returned = Some(held.handle);
            }
            settle_held(broker, held, decision);
            broker.spend(1);
        }
        if let Some(handle) = returned {
            self.pause_own(io, broker, (number, handle));
        }
        if !disposition.settled {
            self.owe(number);
        }
        Ok(())
    }

    /// The sender has settled what we answered: nothing has to be remembered any more.
    fn on_sender_settled(&mut self, number: u16, first: u32, last: u32) {
        let Some(channel) = self.channel(number) else { return };
        let span = last.wrapping_sub(first);
        let ids: Vec<u32> = channel.posted.keys().copied().filter(|id| id.wrapping_sub(first) <= span).collect();
        for id in ids {
            let Some(posted) = channel.posted.remove(&id) else { continue };
            if let Some(Link::In(inlet)) = channel.link(posted.handle) {
                inlet.posted = inlet.posted.saturating_sub(1);
                if inlet.credit <= inlet.window / 2 {
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

    #[test]
    fn answers_in_a_row_leave_as_one() {
        let mut out = Vec::new();
        let run = Run { told: Told::verdict(3, Verdict::Accepted, true), last: 9 };
        run.write(1, &mut out);
        let mut expected = Vec::new();
        let state = Some(DeliveryState::ACCEPTED);
        let disposition =
            Disposition { role: Role::Receiver, first: 3, last: Some(9), settled: true, state, batchable: false };
        encode(&mut expected, 1, &disposition);
        assert_eq!(out, expected);
    }
}
