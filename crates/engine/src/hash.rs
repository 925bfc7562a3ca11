//! The engine's hasher: fast for short names, seeded, the same for the same seed.
//!
//! Owns `Seeded` and the `Map` type built on it. Bytes of names come in, table slots come out. It must never be used
//! where an outsider could learn the seed. Rule: the engine has no randomness of its own (ARCHITECTURE); the seed comes
//! from the node.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

/// A hash map keyed by names or ids.
pub type Map<K, V> = HashMap<K, V, Seeded>;

/// Builds hashers from one secret.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seeded(pub u64);

/// Folded multiplication over eight bytes at a time.
pub struct Folding(u64);

const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Folding {
    #[inline]
    fn mix(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word).wrapping_mul(u128::from(ODD));
        self.0 = (wide as u64) ^ ((wide >> 64) as u64).rotate_left(23);
    }
}

impl Hasher for Folding {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        let rest = chunks.remainder();
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(word) ^ (bytes.len() as u64) << 56);
    }
    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }
    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }
    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
    #[inline]
    fn finish(&self) -> u64 {
        let wide = u128::from(self.0) * u128::from(ODD | 1);
        (wide as u64) ^ (wide >> 64) as u64
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folding;
    #[inline]
    fn build_hasher(&self) -> Folding {
        Folding(self.0 ^ ODD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_little_hash_apart() {
        let seeded = Seeded(7);
        let mut low = std::collections::HashSet::new();
        for i in 0..10_000_u32 {
            low.insert(seeded.hash_one(format!("queue.{i}").as_bytes()) & 0xFFFF);
        }
        // 10,000 balls in 65,536 bins leave about 9,270 bins used.
        assert!(low.len() > 9_000, "{}", low.len());
        assert_ne!(seeded.hash_one(b"a".as_slice()), Seeded(8).hash_one(b"a".as_slice()));
    }
}
