//! Choices read from an input: how a list of bytes becomes a list of operations.
//!
//! Owns a position in the input. Targets ask for small numbers and get them from the next bytes; when the bytes are
//! used up every answer is zero, so any input means something. It must never look back. Rule: one byte per choice, so
//! that a changed byte changes one choice.

/// An input that is read choice by choice.
pub struct Source<'i> {
    rest: &'i [u8],
}

impl<'i> Source<'i> {
    pub fn new(input: &'i [u8]) -> Self {
        Self { rest: input }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn rest(&self) -> &'i [u8] {
        self.rest
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// One of `choices`, which is not empty.
    pub fn pick<'c, T: ?Sized>(&mut self, choices: &[&'c T]) -> &'c T {
        choices[self.below(choices.len())]
    }

    /// Small numbers mostly, and those at the ends of the integer widths.
    pub fn odd_number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => u64::from(small),
            byte @ 200..=231 => 1 << (2 * (byte - 200)),
            byte @ 232..=247 => u64::MAX >> (4 * (byte - 232)),
            byte => u64::MAX - u64::from(byte - 248),
        }
    }
}
