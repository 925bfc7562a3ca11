//! How a search reads the part of a queue that is on disk.
//!
//! Owns what was read ahead for one browser or selector: a bounded piece behind the queue's window, and where the next
//! piece begins. `broker/searching.rs` fills and empties it. It must never hold more than one read, so that a search
//! through a backlog of any length costs each consumer the same little memory. Rule: what is passed over stays on disk,
//! for whoever wants it.

use std::collections::VecDeque;

use super::ready::Entry;

/// Messages, and bytes, read from disk for a search at a time.
pub const SCAN_COUNT: usize = 256;
pub const SCAN_BYTES: usize = 512 << 10;

/// A search behind the window.
#[derive(Debug, Default)]
pub struct Scan {
    /// What was read, in order of position. Some of it may have left the queue since.
    pub ahead: VecDeque<Entry>,
    /// Where the next piece begins.
    pub from: u64,
    /// A read is under way.
    pub reading: bool,
}

impl Scan {
    /// A message came back to this place: what was read from there on is to be looked at again.
    pub fn rewind(&mut self, position: u64) {
        if position < self.from {
            self.ahead.clear();
            self.from = position;
        }
    }

    /// Has it seen everything in front of this position?
    pub fn has_reached(&self, position: u64) -> bool {
        self.ahead.is_empty() && !self.reading && self.from >= position
    }
}
