//! Transactions of a channel: tx.select, commit, rollback.
//!
//! Owns what a channel in tx mode published and settled since its last commit. Publishes are kept, settlements are
//! marked; commit does both, rollback forgets them. It must never let a message of an open transaction be seen. Rule:
//! AMQP 0-9-1 section 1.9 with RabbitMQ's reading: after rollback the deliveries are unsettled as before, and are not
//! delivered again by themselves.

use weft_wire::amqp091::{Method, reply};

use super::publish::Finished;
use super::{Fault, Session};
use crate::broker::{Broker, Outcome};
use crate::conn::{Io, Wait};

/// An open transaction.
#[derive(Default)]
pub(super) struct Transaction {
    pub published: Vec<Finished>,
    pub bytes: u64,
    pub settled: Vec<(u64, Outcome)>,
}

impl Session {
    pub(super) fn on_tx_select(&mut self, io: &mut Io, number: u16) -> Result<(), Fault> {
        let Some(channel) = self.channel(number) else { return Ok(()) };
        if channel.confirms.is_some() {
            return Err(Fault::channel(reply::PRECONDITION_FAILED, "cannot switch from confirm to tx mode"));
        }
        channel.transaction.get_or_insert_with(Transaction::default);
        Method::TxSelectOk.encode_frame(number, &mut io.output);
        Ok(())
    }

    fn take_transaction(&mut self, number: u16) -> Result<Transaction, Fault> {
        let open = self.channel(number).and_then(|channel| channel.transaction.as_mut());
        let not_open = || Fault::channel(reply::PRECONDITION_FAILED, "channel is not transactional");
        open.map(std::mem::take).ok_or_else(not_open)
    }

    pub(super) fn on_tx_commit(&mut self, io: &mut Io, broker: &mut Broker, number: u16) -> Result<(), Fault> {
        let transaction = self.take_transaction(number)?;
        broker.begin();
        for finished in transaction.published {
            self.route(io, broker, number, finished);
        }
        for (tag, outcome) in transaction.settled {
            self.settle_tag(broker, number, tag, outcome);
        }
        broker.commit();
        broker.totals.committed += 1;
        io.direct &= broker.store.is_none();
        io.promise(number, |out| Method::TxCommitOk.encode_frame(number, out));
        if broker.store.is_some() {
            // Nothing is read before the commit is safe, so that answers keep their order.
            io.parked = Some(Wait::Sync);
        }
        Ok(())
    }

    pub(super) fn on_tx_rollback(&mut self, io: &mut Io, broker: &mut Broker, number: u16) -> Result<(), Fault> {
        let transaction = self.take_transaction(number)?;
        broker.totals.rolled_back += 1;
        if let Some(channel) = self.channel(number) {
            for (tag, _) in transaction.settled {
                if let Some(held) = channel.unacked.get_mut(tag) {
                    held.marked = false;
                }
            }
        }
        Method::TxRollbackOk.encode_frame(number, &mut io.output);
        Ok(())
    }
}
