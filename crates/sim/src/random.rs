//! Random numbers that a seed repeats.
//!
//! Owns one generator (SplitMix64) and the few shapes of choice that fuzzing and simulation need. A seed comes in,
//! numbers go out. It must never be seeded by the clock or the machine. Rule: the same seed gives the same numbers, on
//! every machine.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`; 0 when nothing is below it.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound.max(1) as u64) as usize
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn byte(&mut self) -> u8 {
        self.number() as u8
    }

    /// One of `choices`, which is not empty.
    pub fn pick<'c, T: ?Sized>(&mut self, choices: &[&'c T]) -> &'c T {
        choices[self.below(choices.len())]
    }

    /// Small numbers mostly, the ends of every integer width often.
    pub fn odd_number(&mut self) -> u64 {
        match self.below(8) {
            0..=3 => self.below(8) as u64,
            4 => 1_u64.checked_shl(self.below(65) as u32).unwrap_or(0).wrapping_sub(self.below(2) as u64),
            5 => u64::MAX - self.below(3) as u64,
            6 => self.below(70_000) as u64,
            _ => self.number(),
        }
    }

    /// Up to `len_max` bytes, short ones mostly.
    pub fn bytes(&mut self, len_max: usize) -> Vec<u8> {
        let max = if self.one_in(4) { len_max } else { len_max.min(8) };
        let len = self.below(max + 1);
        (0..len).map(|_| self.byte()).collect()
    }
}
