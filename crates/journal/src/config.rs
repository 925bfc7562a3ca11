//! The bounds of one journal.
//!
//! Owns `Config`, each number with its reason. It comes in once, when the store is opened. It must never be read from
//! a file here: the node has a configuration, the journal has values. Rule: every buffer, loop and file has a limit
//! with a name.

/// Sizes of one journal.
#[derive(Clone, Debug)]
pub struct Config {
    /// A segment is closed before it grows past this; only a message or a transaction that alone is larger makes a
    /// larger file. 64 MiB: large enough that closing one (a sidecar, two syncs) is rare, small enough that dead ones
    /// free space soon.
    pub segment_bytes: u32,
    /// A segment is also closed once it holds this many messages, one for each queue they are in: until then memory
    /// has an entry of 32 bytes for each.
    pub segment_messages: u64,
    /// Bytes written but not synced are kept in memory up to here, so that a failed sync loses nothing; then a sync
    /// is asked for.
    pub unsynced_bytes_max: usize,
    /// Segments that are mostly dead are compacted once this much could be won back: less is not worth the copying.
    pub compact_bytes: u64,
    /// Dead segment files kept for the next segments: writing into blocks that are already there costs a tenth of the
    /// CPU and half of the wait of writing into new ones.
    pub spares_max: usize,
    /// How much of a new spare file is filled with zeros by one job; 0 prepares none.
    pub prepare_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            segment_messages: 512 << 10,
            unsynced_bytes_max: 2 << 20,
            compact_bytes: 128 << 20,
            spares_max: 2,
            prepare_bytes: 4 << 20,
        }
    }
}

/// A segment smaller than this would be closed by every batch.
const SEGMENT_BYTES_MIN: u32 = 4 << 10;
/// Places are 32-bit offsets: a segment, plus one record or transaction of up to a gibibyte, must stay below four.
const SEGMENT_BYTES_MAX: u32 = 1 << 30;

impl Config {
    /// The same, with sizes in the range that works.
    pub(crate) fn bounded(mut self) -> Self {
        self.segment_bytes = self.segment_bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX) & !7;
        self
    }
}
