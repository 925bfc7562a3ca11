//! A stored message becomes an entry of its queue again.
//!
//! Owns the way back from the journal's record: what the message says of itself, how much of its time is left, and how
//! often it came back. Records of one read come in, entries go out; names that they share are made once. It must never
//! know where the entry goes. Rule: docs/internals/segment.md, "What the engine writes".

use std::rc::Rc;

use weft_journal::Stored;

use super::counted::Counts;
use crate::memory::Account;
use crate::queue::ready::{Entry, NEVER};
use crate::record;

/// What the messages of one read have in common.
pub(super) struct Reading<'b> {
    now_ns: u64,
    wall_ns: u64,
    account: &'b Rc<Account>,
    counts: &'b Counts,
    names: record::Names,
}

impl<'b> Reading<'b> {
    pub(super) fn new(now_ns: u64, wall_ns: u64, account: &'b Rc<Account>, counts: &'b Counts) -> Self {
        Self { now_ns, wall_ns, account, counts, names: record::Names::default() }
    }

    /// A message of this queue; None if its bytes are not one. Positions below `known` were there before this start.
    pub(super) fn entry(&mut self, queue_no: u64, known: u64, stored: &Stored<'_>) -> Option<Entry> {
        let message = record::decode(stored.head, stored.body, self.account, &mut self.names)?;
        let left_ms = stored.expires_ms.saturating_sub(self.wall_ns / 1_000_000);
        let arrived_ns = message.traits.arrived_us.saturating_mul(1_000);
        Some(Entry {
            failures: message.traits.delivery_count.max(self.counts.of(queue_no, stored.position)),
            message: Rc::new(message),
            position: stored.position,
            expires_ns: match stored.expires_ms {
                0 => NEVER,
                _ => self.now_ns.saturating_add(left_ms.saturating_mul(1_000_000)),
            },
            since_ns: self.now_ns.saturating_sub(self.wall_ns.saturating_sub(arrived_ns)),
            // It may have been delivered before the node was started again: nobody knows.
            redelivered: stored.position < known,
            stored: true,
            reader: 0,
        })
    }
}
