//! One session: windows, handles, and which delivery id belongs to which message.
//!
//! Owns the numbers both sides count by and the settlements that wait to be written. Frames' fields come in from
//! `frames.rs`, ranges and ids go out to `output.rs`. It must never know what a link is for. Rules: AMQP 1.0 part 2,
//! sections 2.5 and 2.6.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use weft_wire::amqp10::{DeliveryState, Error, Modified, Outcome, Rejected, Symbol, TransactionalState};

use crate::event::Ending;

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Asked for; the connection is not open.
    Wanted,
    /// `begin` is written.
    Beginning,
    Begun,
    /// `end` is written.
    Ending,
    Ended,
}

/// A decision on a delivery, as a caller gives it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    Accepted,
    Released,
    Rejected(Ending),
    Modified { failed: bool, undeliverable_here: bool },
}

impl Decision {
    pub(crate) fn outcome(&self) -> Outcome<'_> {
        match self {
            Self::Accepted => Outcome::Accepted,
            Self::Released => Outcome::Released,
            Self::Rejected(ending) if ending.condition.is_empty() => Outcome::Rejected(Rejected::default()),
            Self::Rejected(ending) => {
                let (condition, text) = (Symbol(&ending.condition), ending.description.as_str());
                let error = Error { condition, description: (!text.is_empty()).then_some(text), info: None };
                Outcome::Rejected(Rejected { error: Some(error) })
            }
            Self::Modified { failed, undeliverable_here } => Outcome::Modified(Modified {
                delivery_failed: *failed,
                undeliverable_here: *undeliverable_here,
                message_annotations: None,
            }),
        }
    }
}

/// Deliveries in a row with one decision, by the protocol's ids.
pub(crate) struct Settling {
    pub first: u32,
    pub last: u32,
    pub decision: Decision,
    pub txn: Option<Rc<[u8]>>,
}

impl Settling {
    /// What the disposition says.
    pub(crate) fn state(&self) -> DeliveryState<'_> {
        let outcome = self.decision.outcome();
        match &self.txn {
            Some(txn_id) => DeliveryState::Transactional(TransactionalState { txn_id, outcome: Some(outcome) }),
            None => DeliveryState::Outcome(outcome),
        }
    }
}

/// A delivery that was sent.
struct Sent {
    link: u32,
    number: u64,
    open: bool,
}

/// What a session remembers.
pub(crate) struct Session {
    pub stage: Stage,
    /// Whoever began it ended it, and speaks of it no more.
    pub given_back: bool,
    /// The peer's channel.
    pub remote_channel: Option<u16>,
    pub next_outgoing_id: u32,
    /// Transfer frames the peer still takes.
    pub remote_window: u32,
    pub next_incoming_id: u32,
    /// Transfer frames the peer may still send.
    pub incoming_left: u32,
    /// Our handles: the link behind each.
    pub handles: Vec<Option<u32>>,
    pub handle_max: u32,
    /// The peer's handles.
    pub remote: HashMap<u32, u32>,
    /// Senders that wait for the peer's window.
    pub blocked: Vec<u32>,
    pub settling: Vec<Settling>,
    /// Deliveries of the peer's mode "second", which want our settlement too.
    pub confirming: Vec<(u32, u32)>,
    sent: VecDeque<Sent>,
    /// The delivery id of the first in `sent`.
    sent_base: u32,
}

impl Session {
    pub(crate) fn new(window: u32) -> Self {
        Self {
            stage: Stage::Wanted,
            given_back: false,
            remote_channel: None,
            next_outgoing_id: 0,
            remote_window: 0,
            next_incoming_id: 0,
            incoming_left: window,
            handles: Vec::new(),
            handle_max: u32::MAX,
            remote: HashMap::new(),
            blocked: Vec::new(),
            settling: Vec::new(),
            confirming: Vec::new(),
            sent: VecDeque::new(),
            sent_base: 0,
        }
    }

    /// A free handle for a link; none if the peer takes no more.
    pub(crate) fn take_handle(&mut self, link: u32) -> Option<u32> {
        let at = self.handles.iter().position(Option::is_none).unwrap_or(self.handles.len());
        let handle = u32::try_from(at).ok().filter(|handle| *handle <= self.handle_max)?;
        if at == self.handles.len() {
            self.handles.push(Some(link));
        } else {
            self.handles[at] = Some(link);
        }
        Some(handle)
    }

    /// A link is gone; what it calls its handle may be another's, if it never got one.
    pub(crate) fn free_handle(&mut self, handle: u32, link: u32) {
        if let Some(slot) = self.handles.get_mut(handle as usize).filter(|slot| **slot == Some(link)) {
            *slot = None;
        }
    }

    /// The id that the next delivery gets; `open` if it waits for an outcome.
    pub(crate) fn next_delivery(&mut self, link: u32, number: u64, open: bool) -> u32 {
        let id = self.sent_base.wrapping_add(self.sent.len() as u32);
        self.sent.push_back(Sent { link, number, open });
        self.trim();
        id
    }

    /// Takes the deliveries first to last that wait for an outcome: link and number of each go to `with`.
    pub(crate) fn decided(&mut self, first: u32, last: u32, mut with: impl FnMut(u32, u64)) {
        // Ids wrap: both ends are measured from the first that is known, and anything before it is long settled.
        let start = first.wrapping_sub(self.sent_base) as usize;
        let end = last.wrapping_sub(self.sent_base) as usize;
        let start = if start > end { 0 } else { start };
        if end >= self.sent.len() && start >= self.sent.len() {
            return;
        }
        let end = end.min(self.sent.len().saturating_sub(1));
        for sent in self.sent.range_mut(start..=end).filter(|sent| sent.open) {
            sent.open = false;
            with(sent.link, sent.number);
        }
        self.trim();
    }

    /// A decision on the delivery `id`, put with its neighbours where it is the same.
    pub(crate) fn settle(&mut self, id: u32, decision: &Decision, txn: Option<&Rc<[u8]>>) {
        if let Some(last) = self.settling.last_mut()
            && last.last.wrapping_add(1) == id
            && last.decision == *decision
            && last.txn.as_ref() == txn
        {
            last.last = id;
            return;
        }
        let (decision, txn) = (decision.clone(), txn.cloned());
        self.settling.push(Settling { first: id, last: id, decision, txn });
    }

    /// The connection is gone.
    pub(crate) fn rewind(&mut self, window: u32) {
        if self.stage != Stage::Ended && self.stage != Stage::Ending {
            *self = Self::new(window);
        } else {
            self.stage = Stage::Ended;
        }
    }

    fn trim(&mut self) {
        // The newest stays: a message sent in pieces takes its id long before its last byte.
        while self.sent.len() > 1 && self.sent.front().is_some_and(|sent| !sent.open) {
            self.sent.pop_front();
            self.sent_base = self.sent_base.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_found_by_id_in_any_order_and_once() {
        let mut session = Session::new(10);
        session.sent_base = u32::MAX - 1;
        let ids: Vec<u32> = (0..4).map(|number| session.next_delivery(3, number, true)).collect();
        assert_eq!(ids, [u32::MAX - 1, u32::MAX, 0, 1]);
        let mut found = Vec::new();
        session.decided(0, 0, |link, number| found.push((link, number)));
        session.decided(u32::MAX - 1, 1, |link, number| found.push((link, number)));
        session.decided(u32::MAX - 1, 1, |link, number| found.push((link, number)));
        assert_eq!(found, [(3, 2), (3, 0), (3, 1), (3, 3)]);
        session.decided(900, 1000, |_, _| panic!("nothing was sent under these ids"));
    }

    #[test]
    fn neighbours_with_one_decision_are_one_range() {
        let mut session = Session::new(10);
        for id in [4, 5, 6] {
            session.settle(id, &Decision::Accepted, None);
        }
        session.settle(7, &Decision::Released, None);
        session.settle(9, &Decision::Released, None);
        let ranges: Vec<(u32, u32)> = session.settling.iter().map(|range| (range.first, range.last)).collect();
        assert_eq!(ranges, [(4, 6), (7, 7), (9, 9)]);
    }

    #[test]
    fn handles_are_used_again_and_end_where_the_peer_says() {
        let mut session = Session::new(10);
        session.handle_max = 1;
        assert_eq!((session.take_handle(5), session.take_handle(6), session.take_handle(7)), (Some(0), Some(1), None));
        session.free_handle(0, 7);
        assert_eq!(session.take_handle(8), None, "the seventh never had one");
        session.free_handle(0, 5);
        assert_eq!(session.take_handle(8), Some(0));
    }
}
