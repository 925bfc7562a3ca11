//! Acknowledged positions as they come: a list of ranges.
//!
//! Owns `Ranges`. Positions come in one by one or in ranges, mostly rising, and come out sorted, merged and as bytes:
//! the form they have in ACKS records and in sidecars. It must never expand a range: a range may be as long as a
//! queue's whole history. Rule: docs/internals/segment.md, "Ranges".

use crate::bytes::{Reader, put_varint};
use crate::format::POSITION_MAX;

/// Inclusive ranges of positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds `first..=last`; touching the range added last makes it longer.
    #[inline]
    pub(crate) fn push(&mut self, first: u64, last: u64) {
        debug_assert!(first <= last && last <= POSITION_MAX);
        if let Some(end) = self.0.last_mut() {
            if first <= end.1 + 1 && first >= end.0 {
                end.1 = end.1.max(last);
                return;
            }
            if last + 1 == end.0 {
                end.0 = first;
                return;
            }
        }
        self.0.push((first, last));
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|&(first, last)| self.push(first, last));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Sorts and merges.
    pub(crate) fn normalize(&mut self) {
        if self.0.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0) {
            return;
        }
        let mut old = std::mem::take(&mut self.0);
        old.sort_unstable();
        old.into_iter().for_each(|(first, last)| self.push(first, last));
    }

    /// How many ranges.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Writes a sorted, merged list: a count, then for each range its distance from the end of the one before and its
    /// length.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        encode_runs(self.count() as u64, self.iter(), out);
    }

    /// Reads what `encode` wrote; `None` if it is not that.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let mut ranges = Self::default();
        decode_runs(reader, |first, last| ranges.0.push((first, last)))?;
        Some(ranges)
    }
}

/// Writes `count` rising, disjoint runs.
pub(crate) fn encode_runs(count: u64, runs: impl Iterator<Item = (u64, u64)>, out: &mut Vec<u8>) {
    put_varint(out, count);
    let mut next = 0;
    for (first, last) in runs {
        put_varint(out, first - next);
        put_varint(out, last - first);
        next = last + 1;
    }
}

/// Reads runs written by `encode_runs`; `None` if they are malformed or pass the largest position.
pub(crate) fn decode_runs(reader: &mut Reader<'_>, mut each: impl FnMut(u64, u64)) -> Option<()> {
    let count = reader.varint()?;
    let mut next = 0_u64;
    for _ in 0..count {
        let first = next.checked_add(reader.varint()?)?;
        let last = first.checked_add(reader.varint()?).filter(|last| *last <= POSITION_MAX)?;
        each(first, last);
        next = last + 1;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_in_order_are_one_range_and_disorder_is_merged() {
        let mut ranges = Ranges::default();
        (5..9).for_each(|position| ranges.push(position, position));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(5, 8)]);
        for position in [20, 19, 3, 21, 4] {
            ranges.push(position, position);
        }
        ranges.normalize();
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(3, 8), (19, 21)]);
    }

    #[test]
    fn what_is_written_is_read_again_and_nonsense_is_refused() {
        let mut ranges = Ranges::default();
        for (first, last) in [(0, 0), (7, 1_000_000), (2_000_000, POSITION_MAX)] {
            ranges.push(first, last);
        }
        let mut out = Vec::new();
        ranges.encode(&mut out);
        assert_eq!(Ranges::decode(&mut Reader::new(&out)), Some(ranges));
        for end in 0..out.len() {
            assert_eq!(Ranges::decode(&mut Reader::new(&out[..end])), None);
        }
        let mut beyond = Vec::new();
        encode_runs(1, std::iter::once((POSITION_MAX, POSITION_MAX + 1)), &mut beyond);
        assert_eq!(Ranges::decode(&mut Reader::new(&beyond)), None);
    }
}
