//! A piece of a set of positions: up to 65,536 of them.
//!
//! Owns `Chunk`: a short list of runs, or a bitmap once the list would be half as large as one. Offsets within the
//! piece come in and go out. It must never know which positions it stands for. Rule: docs/internals/segment.md,
//! "Memory"; the idea is that of Roaring bitmaps (Lemire et al. 2016).

/// The largest offset in a chunk.
pub(crate) const CHUNK_LAST: u16 = u16::MAX;
/// A list of this many runs takes 4 KiB, a bitmap 8 KiB.
const RUNS_MAX: usize = 1024;
const WORDS: usize = 1024;

/// A set of 16-bit offsets.
#[derive(Clone, Debug)]
pub(crate) enum Chunk {
    Runs(Vec<(u16, u16)>),
    Bits(Box<[u64; WORDS]>),
}

impl Default for Chunk {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

impl Chunk {
    pub(crate) fn run(first: u16, last: u16) -> Self {
        Self::Runs(vec![(first, last)])
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Runs(runs) => runs.is_empty(),
            Self::Bits(words) => words.iter().all(|word| *word == 0),
        }
    }

    /// The largest member; 0 of an empty chunk.
    pub(crate) fn last(&self) -> u16 {
        match self {
            Self::Runs(runs) => runs.last().map_or(0, |run| run.1),
            Self::Bits(words) => {
                let at = words.iter().rposition(|word| *word != 0).unwrap_or(0);
                (at * 64 + 63 - (words[at] | 1).leading_zeros() as usize) as u16
            }
        }
    }

    pub(crate) fn contains(&self, low: u16) -> bool {
        match self {
            Self::Runs(runs) => {
                let at = runs.partition_point(|run| run.1 < low);
                runs.get(at).is_some_and(|run| run.0 <= low)
            }
            Self::Bits(words) => words[usize::from(low) / 64] >> (low % 64) & 1 == 1,
        }
    }

    pub(crate) fn insert(&mut self, low: u16) -> bool {
        match self {
            Self::Bits(words) => {
                let (word, bit) = (&mut words[usize::from(low) / 64], 1 << (low % 64));
                let added = *word & bit == 0;
                *word |= bit;
                added
            }
            Self::Runs(runs) => {
                let at = runs.partition_point(|run| run.1 < low);
                if runs.get(at).is_some_and(|run| run.0 <= low) {
                    return false;
                }
                let before = at > 0 && runs[at - 1].1 == low.wrapping_sub(1) && low > 0;
                let after = runs.get(at).is_some_and(|run| low < CHUNK_LAST && run.0 == low + 1);
                match (before, after) {
                    (true, true) => {
                        runs[at - 1].1 = runs[at].1;
                        runs.remove(at);
                    }
                    (true, false) => runs[at - 1].1 = low,
                    (false, true) => runs[at].0 = low,
                    (false, false) => runs.insert(at, (low, low)),
                }
                self.bound();
                true
            }
        }
    }

    /// Takes `from..=to` out; how many were there.
    pub(crate) fn remove_range(&mut self, from: u16, to: u16) -> u32 {
        let removed = match self {
            Self::Bits(words) => remove_bits(words, from, to),
            Self::Runs(runs) => remove_runs(runs, from, to),
        };
        self.bound();
        removed
    }

    /// The first run that ends at or after `from`, cut to begin no earlier.
    pub(crate) fn next_run(&self, from: u16) -> Option<(u16, u16)> {
        match self {
            Self::Runs(runs) => {
                let at = runs.partition_point(|run| run.1 < from);
                runs.get(at).map(|run| (run.0.max(from), run.1))
            }
            Self::Bits(words) => {
                let start = next_bit(words, from, false)?;
                let end = next_bit(words, start, true).map_or(CHUNK_LAST, |zero| zero - 1);
                Some((start, end))
            }
        }
    }

    /// A list that grew too long becomes a bitmap.
    fn bound(&mut self) {
        let Self::Runs(runs) = self else { return };
        if runs.len() <= RUNS_MAX {
            return;
        }
        let mut words = Box::new([0; WORDS]);
        for &(first, last) in runs.iter() {
            for low in first..=last {
                words[usize::from(low) / 64] |= 1 << (low % 64);
            }
        }
        *self = Self::Bits(words);
    }
}

fn remove_runs(runs: &mut Vec<(u16, u16)>, from: u16, to: u16) -> u32 {
    let start = runs.partition_point(|run| run.1 < from);
    let end = start + runs[start..].partition_point(|run| run.0 <= to);
    if start == end {
        return 0;
    }
    let touched = &runs[start..end];
    let removed = touched.iter().map(|run| u32::from(run.1.min(to) - run.0.max(from)) + 1).sum();
    let left = Some((touched[0].0, from.wrapping_sub(1))).filter(|run| run.0 < from);
    let right = Some((to.wrapping_add(1), touched[touched.len() - 1].1)).filter(|run| run.1 > to);
    runs.splice(start..end, left.into_iter().chain(right));
    removed
}

fn remove_bits(words: &mut [u64; WORDS], from: u16, to: u16) -> u32 {
    let mut removed = 0;
    for (at, word) in words.iter_mut().enumerate().take(usize::from(to) / 64 + 1).skip(usize::from(from) / 64) {
        let mut mask = u64::MAX;
        if at == usize::from(from) / 64 {
            mask &= u64::MAX << (from % 64);
        }
        if at == usize::from(to) / 64 {
            mask &= u64::MAX >> (63 - to % 64);
        }
        removed += (*word & mask).count_ones();
        *word &= !mask;
    }
    removed
}

/// The first bit at or after `from` that is set, or with `zero` the first that is not.
fn next_bit(words: &[u64; WORDS], from: u16, zero: bool) -> Option<u16> {
    let mut mask = u64::MAX << (from % 64);
    for (at, word) in words.iter().enumerate().skip(usize::from(from) / 64) {
        let word = if zero { !word & mask } else { word & mask };
        if word != 0 {
            return Some((at * 64) as u16 + word.trailing_zeros() as u16);
        }
        mask = u64::MAX;
    }
    None
}
