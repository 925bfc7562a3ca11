//! Tables keyed by numbers.
//!
//! Owns `Map`, a hash map for keys that Python counts upwards (queue and barrier numbers). One multiplication per
//! lookup, and the same order of iteration on every run. It must never be keyed by anything a peer chooses: it has no
//! secret. Rule: the journal is deterministic (ARCHITECTURE).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map from numbers the node itself assigned.
pub(crate) type Map<V> = HashMap<u64, V, BuildHasherDefault<Folding>>;

/// Folds a 64-bit key by one wide multiplication.
#[derive(Default)]
pub(crate) struct Folding(u64);

impl Hasher for Folding {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64).rotate_left(32);
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
