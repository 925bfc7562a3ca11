//! Bytes that lie in memory as they will lie on the disk.
//!
//! Owns the buffer of a batch. Bytes are added at its end. In a buffer that was large before they begin at a place
//! whose distance from a block's border is that of their offset in the file, so that whole blocks can be written past
//! the page cache from where they are. Nobody may count on it: a buffer that had to grow lies anywhere, and whoever
//! writes it looks. Small ones must never be larger for it: thousands may wait for a sync. Rule: decision 0018.

use std::ops::{Deref, DerefMut};

use crate::direct::DIRECT_BYTES_MIN;

/// Direct I/O begins and ends at multiples of this, in the file and in memory.
pub(crate) const BLOCK_BYTES: usize = 4 << 10;
/// A buffer with this much room is filled for direct I/O.
const ROOM_BYTES_MIN: usize = DIRECT_BYTES_MIN + BLOCK_BYTES;

/// A buffer that is filled for one place in a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    /// Where the bytes begin.
    start: usize,
}

impl Aligned {
    /// Begins anew, for bytes that will be written to this offset.
    pub(crate) fn begin(&mut self, offset: u32) {
        self.clear();
        if self.capacity() >= ROOM_BYTES_MIN {
            let address = self.memory.as_ptr() as usize;
            self.start = (offset as usize).wrapping_sub(address) % BLOCK_BYTES;
            self.memory.resize(self.start, 0);
        }
    }

    /// Adds bytes at the end.
    #[inline]
    pub(crate) fn add(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        fill(&mut self.memory);
    }

    /// Room that there is without growing.
    pub(crate) fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Forgets the bytes and keeps the room.
    pub(crate) fn clear(&mut self) {
        self.memory.clear();
        self.start = 0;
    }
}

impl Deref for Aligned {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}

impl DerefMut for Aligned {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_the_file_are_blocks_of_memory() {
        let mut buffer = Aligned::default();
        buffer.add(|out| out.resize(ROOM_BYTES_MIN, 0));
        for offset in [0, 64, 4_095, 4_096, 70_000] {
            buffer.begin(offset);
            assert!(buffer.is_empty());
            buffer.add(|out| out.extend_from_slice(b"bytes"));
            assert_eq!((&buffer[..], buffer.len()), (&b"bytes"[..], 5));
            assert_eq!(buffer.as_ptr() as usize % BLOCK_BYTES, offset as usize % BLOCK_BYTES);
        }
    }

    #[test]
    fn a_small_batch_takes_no_more_than_it_needs() {
        let mut buffer = Aligned::default();
        buffer.begin(70_001);
        buffer.add(|out| out.extend_from_slice(&[1; 100]));
        assert_eq!(buffer.len(), 100);
        assert!(buffer.capacity() < 1_000, "{}", buffer.capacity());
    }
}
