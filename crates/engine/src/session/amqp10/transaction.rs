//! Transactions of a connection: declare, discharge, and the work in between.
//!
//! Owns the open transactions: messages that wait to be published and deliveries that wait to be settled. Requests
//! come in on control links; discharge does all of it or none. It must never let a message of an open transaction be
//! seen. Rules: AMQP 1.0 part 4, local to the node; a control link that goes rolls its transactions back.

use std::collections::BTreeMap;

use weft_wire::amqp10::{
    Discharge, Flow, Outcome as WireOutcome, Prepare, Resolve, TransactionRequest, TransactionalState, condition,
};

use super::channel::Channel;
use super::flow::TRANSACTION;
use super::incoming::Delivery;
use super::link::Link;
use super::publish::{self, Finished};
use super::settle::{Decision, Told, Verdict, settle_held};
use super::unsettled::Held;
use super::{Fault, Place, Session};
use crate::broker::{Broker, Hold, Outcome, Prepared, Unresolved};
use crate::conn::Io;
use crate::hash::Map;
use crate::queue::{Overflow, QueueId};

/// The open transactions of a connection.
#[derive(Default)]
pub(super) struct Transactions {
    open: BTreeMap<u64, Transaction>,
    made: u64,
    /// Bytes of the messages that wait in all of them.
    bytes: u64,
    /// Unsettled deliveries that one of them has acquired, by session and delivery id.
    acquired: BTreeMap<(u16, u32), u64>,
}

/// An open transaction.
pub(super) struct Transaction {
    /// The control link it was declared on.
    pub control: Place,
    published: Vec<Finished>,
    retired: Vec<Retired>,
    /// Links whose messages are acquired in it.
    outlets: Vec<Place>,
    /// Links on which a message for it began; the rest of it may have come since.
    halves: Vec<Place>,
    bytes: u64,
    /// It asked for too much and can only be rolled back.
    doomed: bool,
}

impl Transaction {
    /// Why it cannot be kept under a global id.
    fn cannot_wait(&self) -> Option<&'static str> {
        if self.published.iter().any(Finished::is_reply) {
            return Some("a direct reply cannot be prepared: who waits for it may be gone");
        }
        let odd = |retired: &Retired| retired.decision.annotates() || retired.held.entry.reader > 0;
        self.retired.iter().any(odd).then_some("outcomes that annotate, and reading of streams, cannot be prepared")
    }
}

/// A delivery that is settled if the transaction is.
struct Retired {
    number: u16,
    id: u32,
    held: Held,
    decision: Decision,
    /// The peer has settled it already.
    settled: bool,
    /// It was acquired in the transaction, too: rolled back, it is nobody's.
    acquired: bool,
}

impl Transactions {
    /// The transaction that a peer's id stands for.
    pub(super) fn find(&self, id: &[u8]) -> Option<u64> {
        let id = u64::from_be_bytes(id.try_into().ok()?);
        self.open.contains_key(&id).then_some(id)
    }

    fn take(&mut self, id: u64) -> Option<Transaction> {
        let transaction = self.open.remove(&id)?;
        self.bytes -= transaction.bytes;
        Some(transaction)
    }

    /// A delivery was acquired. Whoever settles it later holds it; one that was sent settled ends with the transaction.
    pub(super) fn acquire(
        &mut self,
        id: u64,
        (number, delivery): (u16, u32),
        held: Held,
        settled: bool,
    ) -> Option<Held> {
        let Some(transaction) = self.open.get_mut(&id) else { return Some(held) };
        if !settled {
            self.acquired.insert((number, delivery), id);
            return Some(held);
        }
        let decision = Decision::of(WireOutcome::Accepted);
        transaction.retired.push(Retired { number, id: delivery, held, decision, settled, acquired: true });
        None
    }

    /// The transaction that acquired a delivery.
    #[inline]
    pub(super) fn acquirer(&self, number: u16, delivery: u32) -> Option<u64> {
        if self.acquired.is_empty() { None } else { self.acquired.get(&(number, delivery)).copied() }
    }

    /// A delivery is no transaction's any more.
    pub(super) fn let_go(&mut self, number: u16, delivery: u32) -> Option<u64> {
        self.acquired.remove(&(number, delivery))
    }

    /// None of a session's deliveries is.
    pub(super) fn let_go_all(&mut self, number: u16) {
        self.acquired.retain(|(other, _), _| *other != number);
    }

    /// A message for a transaction begins on a link.
    pub(super) fn begin_half(&mut self, id: Option<u64>, place: Place) {
        if let Some(transaction) = id.and_then(|id| self.open.get_mut(&id))
            && !transaction.halves.contains(&place)
        {
            transaction.halves.push(place);
        }
    }
}

impl Session {
    /// A request on a control link.
    pub(super) fn on_control(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        delivery: &Delivery,
        body: &[u8],
    ) -> Result<(), Fault> {
        let request = TransactionRequest::decode(body);
        if let Ok(
            TransactionRequest::Discharge(Discharge { txn_id, .. })
            | TransactionRequest::Prepare(Prepare { txn_id, .. }),
        ) = request
            && self.is_half_posted(txn_id)
        {
            let text = "a message of the transaction has not come to its end";
            return Err(Fault::link(place.1, condition::TRANSACTION_ROLLBACK, text));
        }
        let verdict = match request {
            Ok(TransactionRequest::Declare(declare)) if declare.global_id.is_some() => {
                Verdict::rejected(condition::NOT_IMPLEMENTED, "distributed transactions are not known here")
            }
            Ok(TransactionRequest::Declare(_)) => self.declare(broker, place),
            Ok(TransactionRequest::Discharge(discharge)) => match self.transactions.find(discharge.txn_id) {
                Some(id) if discharge.fail => {
                    self.roll_back(io, broker, id);
                    Verdict::Accepted
                }
                Some(id) => self.commit(io, broker, id),
                None => Verdict::rejected(condition::TRANSACTION_UNKNOWN_ID, "no such transaction"),
            },
            Ok(TransactionRequest::Prepare(prepare)) => self.prepare(io, broker, &prepare),
            Ok(TransactionRequest::Resolve(resolve)) => resolve_prepared(io, broker, &resolve),
            Err(error) => return Err(Fault::link(place.1, error.condition(), error.to_string())),
        };
        if let Some(channel) = self.channel(place.0) {
            channel.report(io, place.0, Told::verdict(delivery.id, verdict, true));
        }
        self.owe(place.0);
        Ok(())
    }

    fn declare(&mut self, broker: &Broker, control: Place) -> Verdict {
        let transactions = &mut self.transactions;
        if transactions.open.len() >= broker.limits.transactions_max {
            return Verdict::rejected(condition::RESOURCE_LIMIT_EXCEEDED, "too many open transactions");
        }
        transactions.made += 1;
        let (published, retired, outlets, halves) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let transaction = Transaction { control, published, retired, outlets, halves, bytes: 0, doomed: false };
        transactions.open.insert(transactions.made, transaction);
        Verdict::Declared(transactions.made)
    }

    /// A message that is published if the transaction is committed.
    pub(super) fn post_in(&mut self, broker: &Broker, id: u64, finished: Finished) -> Verdict {
        let transactions = &mut self.transactions;
        let Some(transaction) = transactions.open.get_mut(&id) else {
            return Verdict::rejected(condition::TRANSACTION_UNKNOWN_ID, "no such transaction");
        };
        let bytes = finished.message.body_len() as u64 + crate::memory::MESSAGE_OVERHEAD_BYTES;
        if transactions.bytes + bytes > broker.limits.transaction_bytes_max {
            transaction.doomed = true;
            return Verdict::rejected(condition::RESOURCE_LIMIT_EXCEEDED, "the open transactions hold too much");
        }
        transaction.bytes += bytes;
        transactions.bytes += bytes;
        transaction.published.push(finished);
        Verdict::Provisional(id)
    }

    /// Deliveries that are settled if the transaction is committed.
    pub(super) fn retire(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        ids: (u32, u32),
        state: &TransactionalState<'_>,
        settled: bool,
    ) -> Result<(), Fault> {
        let Some(id) = self.transactions.find(state.txn_id) else {
            return Err(Fault::session(condition::TRANSACTION_UNKNOWN_ID, "no such transaction"));
        };
        let decision = state.outcome.map_or(Decision::RELEASED, Decision::of);
        let deliveries = self.channel(number).map_or_else(Vec::new, |channel| channel.unsettled.within(ids.0, ids.1));
        let stranger = deliveries.iter().find_map(|delivery| self.transactions.acquirer(number, *delivery));
        if stranger.is_some_and(|other| other != id) {
            self.end_control(io, broker, id);
            return Ok(());
        }
        for delivery in deliveries {
            let Some(held) = self.channel(number).and_then(|channel| channel.unsettled.take(delivery)) else {
                continue;
            };
            let acquired = self.transactions.let_go(number, delivery).is_some();
            if let Some(transaction) = self.transactions.open.get_mut(&id) {
                let decision = decision.clone();
                transaction.retired.push(Retired { number, id: delivery, held, decision, settled, acquired });
            }
            broker.spend(1);
        }
        Ok(())
    }

    /// An outcome outside the transaction that acquired the delivery: the link that declared it ends, and so does it.
    pub(super) fn end_control(&mut self, io: &mut Io, broker: &mut Broker, id: u64) {
        let Some(control) = self.transactions.open.get(&id).map(|transaction| transaction.control) else { return };
        let text = "a delivery was acquired in a transaction and settled outside of it";
        self.detach_link(io, broker, control, condition::TRANSACTION_ROLLBACK, text);
    }

    /// The transaction that a receiver's flow names for what it is to get.
    pub(super) fn acquires_in(&mut self, place: Place, flow: &Flow<'_>) -> Result<Option<u64>, Fault> {
        let Some(named) = flow.properties.and_then(|map| map.get(TRANSACTION)) else { return Ok(None) };
        let found = named.as_binary().and_then(|id| self.transactions.find(id));
        let Some((id, transaction)) = found.and_then(|id| Some((id, self.transactions.open.get_mut(&id)?))) else {
            return Err(Fault::link(place.1, condition::TRANSACTION_UNKNOWN_ID, "no such transaction"));
        };
        if !transaction.outlets.contains(&place) {
            transaction.outlets.push(place);
        }
        Ok(Some(id))
    }

    /// Is a message of this transaction still on its way, of which a part is here?
    fn is_half_posted(&mut self, txn_id: &[u8]) -> bool {
        let Some(id) = self.transactions.find(txn_id) else { return false };
        let halves = self.transactions.open.get(&id).map_or_else(Vec::new, |transaction| transaction.halves.clone());
        halves.into_iter().any(|place| match self.channel(place.0).and_then(|channel| channel.link(place.1)) {
            Some(Link::In(inlet)) => inlet.partial.as_ref().is_some_and(|partial| partial.transaction() == Some(id)),
            _ => false,
        })
    }

    /// Takes a transaction out of the table; what its links get from now on is acquired in none.
    fn take_transaction(&mut self, id: u64) -> Option<Transaction> {
        let transaction = self.transactions.take(id)?;
        for place in &transaction.outlets {
            if let Some(Link::Out(outlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) {
                outlet.transaction = outlet.transaction.filter(|other| *other != id);
            }
        }
        Some(transaction)
    }

    /// Does everything, unless something of it cannot be done.
    fn commit(&mut self, io: &mut Io, broker: &mut Broker, id: u64) -> Verdict {
        let Some(transaction) = self.transactions.open.get(&id) else {
            return Verdict::rejected(condition::TRANSACTION_UNKNOWN_ID, "no such transaction");
        };
        let obstacle = match transaction.doomed {
            true => Some("it held too much"),
            false => (!fits(broker, &transaction.published)).then_some("a queue is full and takes no more messages"),
        };
        if let Some(text) = obstacle {
            self.roll_back(io, broker, id);
            return Verdict::rejected(condition::TRANSACTION_ROLLBACK, text);
        }
        let Some(transaction) = self.take_transaction(id) else { return Verdict::Released };
        self.transactions.acquired.retain(|_, acquirer| *acquirer != id);
        broker.begin();
        for finished in &transaction.published {
            publish::route(broker, finished);
        }
        for Retired { number, id, held, decision, settled, .. } in transaction.retired {
            if !settled {
                self.tell_settled(io, (number, id), &held);
            }
            settle_held(broker, held, &decision);
        }
        broker.commit();
        broker.totals.committed += 1;
        io.direct &= broker.store.is_none();
        Verdict::Accepted
    }

    /// Lets go of a transaction that promises to be committed, if it can.
    fn prepare(&mut self, io: &mut Io, broker: &mut Broker, asked: &Prepare<'_>) -> Verdict {
        let open = self.transactions.find(asked.txn_id).and_then(|id| Some((id, self.transactions.open.get(&id)?)));
        let Some((id, transaction)) = open else {
            return Verdict::rejected(condition::TRANSACTION_UNKNOWN_ID, "no such transaction");
        };
        let owner = broker.principal(io.principal).map(|own| (own.user.clone(), own.vhost));
        let place = owner.and_then(|(user, vhost)| Some((user, broker.vhosts.get(vhost)?.name.clone())));
        let obstacle = match (transaction.doomed, transaction.cannot_wait()) {
            (true, _) => Some("it held too much"),
            (_, Some(text)) => Some(text),
            _ if !fits(broker, &transaction.published) => Some("a queue is full and takes no more messages"),
            _ => broker.cannot_prepare(asked.global_id, transaction.bytes),
        };
        let (Some((user, vhost)), None) = (place, obstacle) else {
            self.roll_back(io, broker, id);
            return Verdict::rejected(condition::TRANSACTION_ROLLBACK, obstacle.unwrap_or("nobody asks"));
        };
        let Some(transaction) = self.take_transaction(id) else { return Verdict::Released };
        self.transactions.acquired.retain(|_, acquirer| *acquirer != id);
        let mut prepared = Prepared::new(user, vhost, broker.wall_ns / 1_000_000);
        prepared.bytes = transaction.bytes;
        prepared.posts = transaction.published.into_iter().map(|finished| finished.promised(broker)).collect();
        for Retired { number, id, held, decision, settled, .. } in transaction.retired {
            if !settled {
                self.tell_settled(io, (number, id), &held);
            }
            let stored = broker.queues.get(held.queue).filter(|_| held.entry.stored);
            let (queue_no, position) = (stored.map_or(0, |queue| queue.settings.number), held.entry.position);
            let (queue, outcome) = (Some(held.queue), decision.outcome());
            prepared.holds.push(Hold { queue, queue_no, position, outcome, entry: Some(held.entry) });
        }
        io.direct &= broker.store.is_none();
        match broker.prepare(asked.global_id, prepared) {
            None => Verdict::Accepted,
            Some(back) => {
                broker.end_holds(back.holds, false);
                Verdict::rejected(condition::TRANSACTION_ROLLBACK, "the disk does not take it")
            }
        }
    }

    /// Forgets a transaction; deliveries whose link is still there are as they were before, and those acquired in it
    /// are nobody's.
    fn roll_back(&mut self, io: &mut Io, broker: &mut Broker, id: u64) {
        let Some(transaction) = self.take_transaction(id) else { return };
        broker.totals.rolled_back += 1;
        for Retired { number, id, held, settled, acquired, .. } in transaction.retired {
            match self.channel_of(number, &held).filter(|_| !settled && !acquired) {
                Some(channel) => channel.unsettled.restore(id, held),
                None => self.undo(io, broker, (number, id), held, settled),
            }
        }
        let acquired = self.transactions.acquired.iter().filter(|(_, acquirer)| **acquirer == id);
        for (number, delivery) in acquired.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.transactions.let_go(number, delivery);
            if let Some(held) = self.channel(number).and_then(|channel| channel.unsettled.take(delivery)) {
                self.undo(io, broker, (number, delivery), held, false);
            }
        }
    }

    /// Gives a delivery back to its queue, and tells the peer that it is over.
    fn undo(&mut self, io: &mut Io, broker: &mut Broker, (number, id): (u16, u32), held: Held, settled: bool) {
        let is_there = self.channel_of(number, &held).is_some();
        if is_there && !self.abort(io, (number, held.handle), id) && !settled {
            self.tell_settled(io, (number, id), &held);
        }
        // Somebody tried and did not get to the end: that is a failed delivery.
        broker.settle(held.queue, held.entry, Outcome::Returned { failed: true });
    }

    /// Rolls back every transaction that `which` names, because its control link is gone.
    pub(super) fn roll_back_all(&mut self, io: &mut Io, broker: &mut Broker, which: impl Fn(&Transaction) -> bool) {
        let ids: Vec<u64> = self.transactions.open.iter().filter(|open| which(open.1)).map(|open| *open.0).collect();
        ids.into_iter().for_each(|id| self.roll_back(io, broker, id));
    }

    fn tell_settled(&mut self, io: &mut Io, (number, id): (u16, u32), held: &Held) {
        if let Some(channel) = self.channel_of(number, held) {
            channel.report(io, number, Told::settled(id));
            self.owe(number);
        }
    }

    /// The session of a delivery, if its link is still there. A later session may have the same number, and deliveries
    /// with the same ids: it must not hear of this one.
    fn channel_of(&mut self, number: u16, held: &Held) -> Option<&mut Channel> {
        let is_there = |link: &mut Link| matches!(link, Link::Out(outlet) if outlet.number == held.link);
        let channel = self.channel(number)?;
        channel.link(held.handle).is_some_and(is_there).then_some(channel)
    }
}

/// Ends a prepared transaction, whoever prepared it.
fn resolve_prepared(io: &mut Io, broker: &mut Broker, asked: &Resolve<'_>) -> Verdict {
    let resolved = broker.resolve_as(io.principal, asked.global_id, !asked.fail);
    io.direct &= broker.store.is_none();
    match resolved {
        Ok(()) => Verdict::Accepted,
        Err(Unresolved::Unknown) => {
            Verdict::rejected(condition::TRANSACTION_UNKNOWN_ID, "no such transaction is prepared here")
        }
        Err(Unresolved::NotYours) => {
            Verdict::rejected(condition::UNAUTHORIZED_ACCESS, "another user has prepared this transaction")
        }
        Err(Unresolved::NotYet) => {
            Verdict::rejected(condition::RESOURCE_LOCKED, "prepared transactions are being read, try again")
        }
    }
}

/// Would every queue take its share of these messages?
fn fits(broker: &mut Broker, published: &[Finished]) -> bool {
    let mut more: Map<QueueId, (u64, u64)> = Map::default();
    for finished in published {
        let targets = publish::targets(broker, finished);
        let bytes = finished.message.body_len() as u64;
        let full = targets.iter().any(|id| {
            let Some(queue) = broker.queues.get(*id).filter(|queue| queue.settings.overflow != Overflow::DropHead)
            else {
                return false;
            };
            let (count, size) = more.entry(*id).or_default();
            (*count, *size) = (*count + 1, *size + bytes);
            queue.settings.length_max.is_some_and(|max| queue.len() as u64 + *count > max)
                || queue.settings.length_bytes_max.is_some_and(|max| queue.ready.bytes() + *size > max)
        });
        broker.recycle_route(targets);
        if full {
            return false;
        }
    }
    true
}
