//! What only memory knows of a stored queue.
//!
//! Owns the engine's share of reading a stream as columns: the messages that the disk has not answered for, copied out
//! in one call, so that whoever reads the rest from files can do so on another thread. It must never read a file. Rule:
//! docs/internals/segment.md, "Readers without the node".

use std::ops::Range;

use weft_journal::Messages;

use crate::engine::Engine;

/// The newest messages of a queue.
#[derive(Debug)]
pub struct Tail {
    /// Names the queue in the journal.
    pub number: u64,
    /// Those that may not be on the disk yet, in order.
    pub messages: Messages,
    /// The first position that waits, and the one after the last.
    pub bounds: Range<u64>,
}

impl Engine {
    /// What memory knows of a queue that is stored; None if there is no such queue.
    pub fn log_tail(&self, vhost: &str, queue: &str) -> Option<Tail> {
        let id = self.broker.find_queue(self.broker.find_vhost(vhost.as_bytes())?, queue.as_bytes())?;
        let number = self.broker.queues.get(id)?.settings.number;
        let (messages, bounds) = self.broker.store.as_ref().filter(|_| number != 0)?.journal.tail(number);
        Some(Tail { number, messages, bounds })
    }
}
