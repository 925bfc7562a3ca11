//! Bytes of a connection that came and were not read yet.
//!
//! Owns one buffer that is filled at its end and read from its front. What a read left behind comes in; sessions take
//! from the front as much as they understand or have budget for. It must never know a frame. What was read is cut off
//! only when it is half of the buffer: who reads one message at a time moves each byte once, not with every message.

/// The buffer keeps this much room when it ran empty.
const KEEP_BYTES: usize = 1 << 10;

/// Bytes that wait to be read.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    read: usize,
}

impl Input {
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.read
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it has room for.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// What was not read yet.
    #[inline]
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.read..]
    }

    pub fn extend(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
    }

    /// The first `count` of them were read.
    pub fn consume(&mut self, count: usize) {
        self.read += count;
        if self.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(KEEP_BYTES);
        } else if self.read > self.len() {
            self.bytes.drain(..self.read);
        } else {
            return;
        }
        self.read = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_the_same_however_it_is_read() {
        let data: Vec<u8> = (0..=255).collect();
        for step in [1, 3, 100, 256] {
            let mut input = Input::default();
            let mut read = Vec::new();
            for piece in data.chunks(50) {
                input.extend(piece);
                while input.len() >= step {
                    read.extend_from_slice(&input.unread()[..step]);
                    input.consume(step);
                }
            }
            read.extend_from_slice(input.unread());
            input.consume(input.len());
            assert_eq!((read, input.len(), input.bytes.len()), (data.clone(), 0, 0), "{step}");
        }
    }
}
