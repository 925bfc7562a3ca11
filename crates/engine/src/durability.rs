//! How safe a message has to be before its publisher is told so.
//!
//! Owns the three levels of durability and the two numbers they wait for. A queue's level comes in with its settings;
//! what a connection's promises wait for goes out. It must never wait itself. Rule: docs/guides/durability.md, "How
//! safe is safe": `sync` survives the end of the power, `write` that of the process, `memory` neither.

/// What a durable message of a queue survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    #[default]
    Sync,
    Write,
    Memory,
}

/// How far the disk has to be: batches that must be written, and those that must be synced too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub written: u64,
    pub synced: u64,
}

impl Needs {
    /// Both this and that.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { written: self.written.max(other.written), synced: self.synced.max(other.synced) }
    }

    /// Is the disk, which is at `reached`, far enough?
    #[inline]
    pub fn are_met(self, reached: Self) -> bool {
        self.written <= reached.written && self.synced <= reached.synced
    }

    /// Nothing was ever needed.
    #[inline]
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}
