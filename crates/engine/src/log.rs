//! What only memory knows of a stored queue.
//!
//! Owns the engine's share of reading a stream as columns: the messages that the disk has not answered for, copied out
//! in one call, so that whoever reads the rest from files can do so on another thread. It must never read a file. Rule:
//! docs/internals/segment.md, "Readers without the node".

use std::ops::Range;

use weft_journal::Messages;

use crate::engine::Engine;
use crate::record;
use crate::stream::Stream;

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
    /// What memory knows of a queue that is stored, or all there is in a range of a stream on a node without a disk.
    /// None if there is no such queue.
    pub fn log_tail(&self, vhost: &str, queue: &str, range: Range<u64>) -> Option<Tail> {
        let id = self.broker.find_queue(self.broker.find_vhost(vhost.as_bytes())?, queue.as_bytes())?;
        let queue = self.broker.queues.get(id)?;
        let number = queue.settings.number;
        let (messages, bounds) = match &self.broker.store {
            Some(store) if number != 0 => store.journal.tail(number),
            Some(_) => return None,
            None => copied(queue.stream.as_deref()?, range),
        };
        Some(Tail { number, messages, bounds })
    }
}

/// A stream that is in memory alone.
fn copied(stream: &Stream, range: Range<u64>) -> (Messages, Range<u64>) {
    let bounds = stream.first()..stream.visible();
    let (mut messages, mut head) = (Messages::default(), Vec::new());
    for offset in range.start.max(bounds.start)..range.end.min(bounds.end) {
        let Some(message) = stream.recent(offset) else { continue };
        head.clear();
        record::encode(message, &mut head);
        messages.add(offset, &head, message.body().parts());
    }
    (messages, bounds)
}
