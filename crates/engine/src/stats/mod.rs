//! What the engine counts of itself, beyond plain counters.
//!
//! Owns the latencies of a queue and of the node: time in queue, from delivery to settlement, from publish to confirm,
//! and time in queue by the size and by the type of the message. The pump, settlements and promises add to them;
//! `inspect` reads them.
//! It must never cost a message more than a few nanoseconds. Rule: docs/reference/metrics.md; a queue's are allocated
//! with its first delivery.

mod runs;
mod sketch;
mod spans;
mod types;

pub use runs::Runs;
pub use sketch::{Quantiles, Sketch};
pub use spans::{Span, Spans};
pub use types::{ByType, TypeId, Types};

/// Bodies of up to so many bytes are counted together, larger ones in a bucket of their own. Each is four times the one
/// before it.
pub const SIZES: [u64; 7] = [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Latencies of one queue.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    pub in_queue: Sketch,
    pub to_settle: Sketch,
    /// Time in queue, by type of message.
    pub by_type: ByType,
}

/// Latencies of the node.
#[derive(Clone, Debug, Default)]
pub struct NodeLatency {
    /// Time in queue, by size of the body.
    pub by_size: [Sketch; SIZES.len() + 1],
    pub to_settle: Sketch,
    pub to_confirm: Sketch,
}

impl NodeLatency {
    /// Time in queue of messages of all sizes.
    pub fn in_queue(&self) -> Sketch {
        let mut all = Sketch::default();
        self.by_size.iter().for_each(|sketch| all.merge(sketch));
        all
    }
}

impl Latency {
    /// The latencies of a queue, made when they are first needed.
    fn of(place: &mut Option<Box<Self>>) -> &mut Self {
        place.get_or_insert_default()
    }
}

/// The bucket of a size.
#[inline]
pub fn size_bucket(bytes: usize) -> usize {
    let bits = usize::BITS - bytes.saturating_sub(1).leading_zeros();
    ((bits.saturating_sub(7) / 2) as usize).min(SIZES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_in_the_first_bucket_that_holds_it() {
        for bytes in (0..70_000).chain([(256 << 10) - 1, 256 << 10, (256 << 10) + 1, 1 << 20, (1 << 20) + 1, 1 << 40]) {
            let right = SIZES.iter().position(|max| bytes as u64 <= *max).unwrap_or(SIZES.len());
            assert_eq!(size_bucket(bytes), right, "{bytes}");
        }
    }
}
