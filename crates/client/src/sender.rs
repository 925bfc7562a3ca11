//! A sending link: messages that wait, are on their way, or have an outcome out of turn.
//!
//! Owns one row of messages by number: the front have been sent, the rest wait for credit. A message leaves the row
//! when it and all before it have outcomes, so that everything else can be sent again after a lost connection. It must
//! never write a frame. Rules: AMQP 1.0 part 2, sections 2.6.7 (flow control) and 2.6.12 (transfer).

use std::collections::VecDeque;
use std::rc::Rc;

/// How a message is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// Nobody wants to know what becomes of it.
    pub settled: bool,
    /// Nobody waits for its outcome: the peer may tell it with other frames, later.
    pub batchable: bool,
}

/// A message in the row.
pub(crate) struct Outgoing {
    /// Empty once there is an outcome.
    pub bytes: Box<[u8]>,
    pub manner: Manner,
    pub done: bool,
    pub txn: Option<Rc<[u8]>>,
}

/// What a sending link remembers.
#[derive(Default)]
pub(crate) struct Sender {
    row: VecDeque<Outgoing>,
    /// The number of the row's first message.
    base: u64,
    /// How many of the row have been sent on this connection, wholly.
    sent: usize,
    /// Bytes of the next message that were sent already, for want of window.
    pub offset: usize,
    /// Of a message that is partly sent.
    pub delivery_id: u32,
    pub credit: u32,
    pub delivery_count: u32,
    /// The peer wants its credit used or back.
    pub draining: bool,
    /// The peer's limit, 0 if it has none.
    pub message_bytes_max: u64,
}

impl Sender {
    /// How many messages have no outcome.
    pub(crate) fn held(&self) -> usize {
        self.row.len()
    }

    /// Adds a message; its number.
    pub(crate) fn push(&mut self, message: Outgoing) -> u64 {
        self.row.push_back(message);
        self.base + self.row.len() as u64 - 1
    }

    /// Whether something waits that credit allows.
    pub(crate) fn is_ready(&self) -> bool {
        self.sent < self.row.len() && (self.credit > 0 || self.offset > 0)
    }

    /// Whether nothing waits to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.sent == self.row.len()
    }

    /// The next message to send and its number; those that were given up meanwhile are passed over.
    pub(crate) fn next(&mut self) -> Option<(u64, &Outgoing)> {
        while self.offset == 0 && self.row.get(self.sent).is_some_and(|message| message.done) {
            self.sent += 1;
        }
        self.trim();
        let number = self.base + self.sent as u64;
        self.row.get(self.sent).map(|message| (number, message))
    }

    /// The last byte of the next message has been written.
    pub(crate) fn sent_whole(&mut self) {
        self.offset = 0;
        self.credit = self.credit.saturating_sub(1);
        self.delivery_count = self.delivery_count.wrapping_add(1);
        if let Some(message) = self.row.get_mut(self.sent) {
            if message.manner.settled {
                message.done = true;
                message.bytes = Box::default();
            }
            self.sent += 1;
        }
        self.trim();
    }

    /// An outcome came; false if there was one before.
    pub(crate) fn settle(&mut self, number: u64) -> bool {
        let Some(message) = self.at(number).filter(|message| !message.done) else { return false };
        message.done = true;
        message.bytes = Box::default();
        self.trim();
        true
    }

    /// Gives a message up. True if it was never sent; otherwise it may have arrived, and only its outcome is ignored.
    pub(crate) fn forget(&mut self, number: u64) -> bool {
        let at = number.checked_sub(self.base).and_then(|at| usize::try_from(at).ok());
        let unsent = at.is_some_and(|at| at > self.sent || (at == self.sent && self.offset == 0));
        self.settle(number) && unsent
    }

    /// The connection is gone: what has no outcome is sent again on the next. Returns the numbers that cannot be, since
    /// they belong to a transaction that is gone too.
    pub(crate) fn rewind(&mut self) -> Vec<u64> {
        (self.sent, self.offset, self.credit, self.delivery_count, self.draining) = (0, 0, 0, 0, false);
        let in_transaction = |(at, message): (usize, &Outgoing)| {
            (message.txn.is_some() && !message.done).then_some(self.base + at as u64)
        };
        self.row.iter().enumerate().filter_map(in_transaction).collect()
    }

    fn at(&mut self, number: u64) -> Option<&mut Outgoing> {
        let at = usize::try_from(number.checked_sub(self.base)?).ok()?;
        self.row.get_mut(at)
    }

    fn trim(&mut self) {
        while self.sent > 0 && self.row.front().is_some_and(|message| message.done) {
            self.row.pop_front();
            self.base += 1;
            self.sent -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Outgoing {
        Outgoing { bytes: Box::from(&b"m"[..]), manner: Manner::default(), done: false, txn: None }
    }

    #[test]
    fn what_has_no_outcome_is_sent_again_in_order() {
        let mut sender = Sender { credit: 10, ..Sender::default() };
        for number in 0..4 {
            assert_eq!(sender.push(message()), number);
        }
        for _ in 0..3 {
            assert!(sender.next().is_some());
            sender.sent_whole();
        }
        assert!(sender.settle(1) && !sender.settle(1) && !sender.settle(9));
        assert!(sender.rewind().is_empty());
        sender.credit = 10;
        let mut again = Vec::new();
        while let Some((number, _)) = sender.next() {
            again.push(number);
            sender.sent_whole();
        }
        assert_eq!(again, [0, 2, 3]);
        assert_eq!(sender.held(), 4);
    }

    #[test]
    fn a_message_given_up_before_it_was_sent_is_never_sent() {
        let mut sender = Sender { credit: 1, ..Sender::default() };
        sender.push(message());
        sender.push(message());
        sender.next();
        sender.sent_whole();
        assert!(!sender.forget(0));
        assert!(sender.forget(1));
        assert!(sender.next().is_none());
        assert_eq!(sender.held(), 0);
    }

    #[test]
    fn a_transaction_does_not_outlive_its_connection() {
        let mut sender = Sender { credit: 2, ..Sender::default() };
        sender.push(Outgoing { txn: Some(Rc::from(&b"t"[..])), ..message() });
        sender.push(message());
        assert_eq!(sender.rewind(), [0]);
    }
}
