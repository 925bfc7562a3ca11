//! The positions that live: which messages of one queue wait in one segment.
//!
//! Owns `Positions`: two numbers while the set is one run, as it is for a queue that is consumed in order; pieces of
//! 65,536 positions otherwise, each a few runs or a bitmap. So a waiting message costs at most one bit, whatever
//! consumers do. It must never hold a run that was not counted entry by entry: a run of unknown length would become
//! pieces without end. Rule: memory per waiting message is O(0) (docs/internals/segment.md, "Memory").

use std::collections::BTreeMap;

use crate::chunk::{CHUNK_LAST, Chunk};

const CHUNK_BITS: u32 = 16;

/// A set of positions.
#[derive(Clone, Debug)]
pub(crate) enum Positions {
    /// `first..=last`; empty when `first > last`.
    Run {
        first: u64,
        last: u64,
    },
    Chunks(Box<Chunks>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Chunks {
    map: BTreeMap<u64, Chunk>,
    len: u64,
}

impl Default for Positions {
    fn default() -> Self {
        Self::Run { first: 1, last: 0 }
    }
}

fn split(position: u64) -> (u64, u16) {
    (position >> CHUNK_BITS, position as u16)
}

fn join(key: u64, low: u16) -> u64 {
    key << CHUNK_BITS | u64::from(low)
}

impl Positions {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Run { first, last } => (last + 1).saturating_sub(*first),
            Self::Chunks(chunks) => chunks.len,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.next_run(0).map(|run| run.0)
    }

    pub(crate) fn last(&self) -> Option<u64> {
        match self {
            Self::Run { first, last } => (first <= last).then_some(*last),
            Self::Chunks(chunks) => chunks.map.last_key_value().map(|(key, chunk)| join(*key, chunk.last())),
        }
    }

    #[inline]
    pub(crate) fn contains(&self, position: u64) -> bool {
        match self {
            Self::Run { first, last } => (*first..=*last).contains(&position),
            Self::Chunks(chunks) => {
                let (key, low) = split(position);
                chunks.map.get(&key).is_some_and(|chunk| chunk.contains(low))
            }
        }
    }

    /// Adds a position; false if it was there.
    #[inline]
    pub(crate) fn insert(&mut self, position: u64) -> bool {
        if let Self::Run { first, last } = self {
            if first > last {
                (*first, *last) = (position, position);
                return true;
            }
            if position == *last + 1 {
                *last = position;
                return true;
            }
            if (*first..=*last).contains(&position) {
                return false;
            }
        }
        let (key, low) = split(position);
        let chunks = self.chunks();
        let added = chunks.map.entry(key).or_default().insert(low);
        chunks.len += u64::from(added);
        added
    }

    /// Takes a position out; false if it was not there.
    #[inline]
    pub(crate) fn remove(&mut self, position: u64) -> bool {
        if let Self::Run { first, last } = self {
            if !(*first..=*last).contains(&position) {
                return false;
            }
            if position == *first {
                *first += 1;
                return true;
            }
            if position == *last {
                *last -= 1;
                return true;
            }
        }
        self.remove_range(position, position) == 1
    }

    /// Takes `from..=to` out; how many were there.
    pub(crate) fn remove_range(&mut self, from: u64, to: u64) -> u64 {
        if let Self::Run { first, last } = self {
            let (low, high) = (from.max(*first), to.min(*last));
            if low > high {
                return 0;
            }
            if low == *first || high == *last {
                (*first, *last) = if low == *first { (high + 1, *last) } else { (*first, low - 1) };
                return high - low + 1;
            }
        }
        let chunks = self.chunks();
        let before = chunks.len;
        chunks.remove_range(from, to);
        let removed = before - chunks.len;
        if removed > 0 {
            self.simplify();
        }
        removed
    }

    /// The first run that ends at or after `from`, cut to begin no earlier.
    pub(crate) fn next_run(&self, from: u64) -> Option<(u64, u64)> {
        match self {
            Self::Run { first, last } => {
                let start = from.max(*first);
                (start <= *last).then_some((start, *last))
            }
            Self::Chunks(chunks) => chunks.next_run(from),
        }
    }

    /// All runs, rising.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut from = Some(0_u64);
        std::iter::from_fn(move || {
            let run = self.next_run(from?)?;
            from = run.1.checked_add(1);
            Some(run)
        })
    }

    fn chunks(&mut self) -> &mut Chunks {
        if let Self::Run { first, last } = *self {
            let mut chunks = Chunks::default();
            let mut from = first;
            while from <= last {
                let (key, low) = split(from);
                let end = last.min(join(key, CHUNK_LAST));
                chunks.map.insert(key, Chunk::run(low, end as u16));
                chunks.len += end - from + 1;
                from = end + 1;
            }
            *self = Self::Chunks(Box::new(chunks));
        }
        match self {
            Self::Chunks(chunks) => chunks,
            Self::Run { .. } => unreachable!("made into chunks above"),
        }
    }

    /// Back to two numbers, once that is all there is to say.
    fn simplify(&mut self) {
        match (self.first(), self.last()) {
            (Some(first), Some(last)) if last - first + 1 == self.len() => *self = Self::Run { first, last },
            (None, _) => *self = Self::default(),
            _ => {}
        }
    }
}

impl Chunks {
    fn remove_range(&mut self, from: u64, to: u64) {
        let (mut at, end) = (from >> CHUNK_BITS, (to >> CHUNK_BITS) + 1);
        while at < end {
            let Some((&key, chunk)) = self.map.range_mut(at..end).next() else { break };
            let low = if key == from >> CHUNK_BITS { from as u16 } else { 0 };
            let high = if key == to >> CHUNK_BITS { to as u16 } else { CHUNK_LAST };
            self.len -= u64::from(chunk.remove_range(low, high));
            if chunk.is_empty() {
                self.map.remove(&key);
            }
            at = key + 1;
        }
    }

    fn next_run(&self, from: u64) -> Option<(u64, u64)> {
        let (from_key, from_low) = split(from);
        let mut run: Option<(u64, u64)> = None;
        for (&key, chunk) in self.map.range(from_key..) {
            let low = if key == from_key { from_low } else { 0 };
            if run.is_some_and(|(_, last)| last + 1 != key << CHUNK_BITS || !chunk.contains(0)) {
                break;
            }
            let Some((start, end)) = chunk.next_run(low) else { continue };
            run = Some((run.map_or(join(key, start), |run| run.0), join(key, end)));
            if end != CHUNK_LAST {
                break;
            }
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::BTreeSet;

    fn runs_of(model: &BTreeSet<u64>) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &position in model {
            match runs.last_mut() {
                Some(run) if run.1 + 1 == position => run.1 = position,
                _ => runs.push((position, position)),
            }
        }
        runs
    }

    #[test]
    fn it_is_a_set() {
        for seed in 0..8 {
            let mut random = Random::new(seed);
            let (mut positions, mut model) = (Positions::default(), BTreeSet::new());
            let span = [300, 70_000, 200_000][random.below(3) as usize];
            for _ in 0..1_500 {
                let (from, length) = (random.below(span), random.below(40).pow(2));
                match random.below(4) {
                    0 => assert_eq!(positions.insert(from), model.insert(from)),
                    1 => assert_eq!(positions.remove(from), model.remove(&from)),
                    2 => (from..from + length).for_each(|at| assert_eq!(positions.insert(at), model.insert(at))),
                    _ => {
                        let gone: Vec<u64> = model.range(from..=from + length).copied().collect();
                        assert_eq!(positions.remove_range(from, from + length), gone.len() as u64);
                        gone.iter().for_each(|at| assert!(model.remove(at)));
                    }
                }
                assert_eq!(positions.len(), model.len() as u64);
                assert_eq!(positions.first(), model.first().copied());
                assert_eq!(positions.contains(from), model.contains(&from));
            }
            assert_eq!(positions.runs().collect::<Vec<_>>(), runs_of(&model));
            let next = positions.next_run(span / 2).map(|run| run.0);
            assert_eq!(next, model.range(span / 2..).next().copied());
        }
    }

    #[test]
    fn a_queue_consumed_in_order_stays_two_numbers() {
        let mut positions = Positions::default();
        (0..200_000).for_each(|position| assert!(positions.insert(position)));
        for at in (0..100_000).step_by(4) {
            // Four consumers, each acknowledging when it likes.
            [at + 2, at, at + 3, at + 1].iter().for_each(|position| assert!(positions.remove(*position)));
            assert!(matches!(positions, Positions::Run { .. }));
        }
        assert_eq!(positions.len(), 100_000);
    }
}
