//! Deliveries of a stream that a client has not settled, as runs.
//!
//! Owns what stands for messages of a stream that went out one after the other: tags and offsets both rise by one, so
//! a run of any length is a few numbers. Tags come in, whole runs or parts of them go out to be settled. It must never
//! hold a message: a stream keeps its own. Rule: ack.rs, which asks here for tags that it does not know.

use std::collections::VecDeque;

use crate::queue::QueueId;

/// Deliveries with tags and offsets that rise by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Tag of the first.
    pub tag: u64,
    pub count: u32,
    pub queue: QueueId,
    /// Offset of the first.
    pub offset: u64,
    /// `Entry::reader`.
    pub reader: u16,
    /// Slot of the consumer they went to.
    pub tap: u32,
}

impl Run {
    fn end(&self) -> u64 {
        self.tag + u64::from(self.count)
    }

    /// Does `next` go on where this one ends?
    #[inline]
    fn precedes(&self, next: &Self) -> bool {
        let goes_on = self.end() == next.tag && self.offset + u64::from(self.count) == next.offset;
        goes_on && self.queue == next.queue && self.reader == next.reader && self.tap == next.tap
    }

    /// Each delivery for itself.
    pub fn each(self) -> impl Iterator<Item = Self> {
        (0..self.count).map(move |at| self.split(at).1.split(1).0)
    }

    /// The first `count`, and what is left.
    fn split(self, count: u32) -> (Self, Self) {
        let later = u64::from(count);
        let rest = Self { tag: self.tag + later, offset: self.offset + later, count: self.count - count, ..self };
        (Self { count, ..self }, rest)
    }
}

/// Runs in order of their tags.
#[derive(Debug, Default)]
pub(super) struct Runs {
    list: VecDeque<Run>,
    live: usize,
}

impl Runs {
    /// How many deliveries there are in all runs.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Adds deliveries behind all others.
    #[inline]
    pub fn push(&mut self, run: Run) {
        self.live += run.count as usize;
        match self.list.back_mut() {
            Some(last) if last.precedes(&run) => last.count += run.count,
            _ => self.list.push_back(run),
        }
    }

    /// Takes one delivery out of its run.
    pub fn take(&mut self, tag: u64) -> Option<Run> {
        let at = self.list.partition_point(|run| run.end() <= tag);
        let run = *self.list.get(at).filter(|run| run.tag <= tag)?;
        let (before, rest) = run.split((tag - run.tag) as u32);
        let (one, after) = rest.split(1);
        self.live -= 1;
        match (before.count > 0, after.count > 0) {
            (true, true) => {
                self.list[at] = before;
                self.list.insert(at + 1, after);
            }
            (true, false) => self.list[at] = before,
            (false, true) => self.list[at] = after,
            (false, false) => drop(self.list.remove(at)),
        }
        Some(one)
    }

    /// Takes everything up to a tag.
    pub fn take_upto(&mut self, last: u64) -> Vec<Run> {
        let mut taken = Vec::new();
        while let Some(run) = self.list.front().copied().filter(|run| run.tag <= last) {
            self.list.pop_front();
            let (now, later) = run.split(u64::from(run.count).min(last - run.tag + 1) as u32);
            self.live -= now.count as usize;
            taken.push(now);
            if later.count > 0 {
                self.list.push_front(later);
                break;
            }
        }
        taken
    }

    /// The runs themselves.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Run> {
        self.list.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tag: u64, count: u32, offset: u64) -> Run {
        Run { tag, count, queue: QueueId::from_raw(1), offset, reader: 1, tap: 0 }
    }

    #[test]
    fn what_goes_on_is_one_run_and_any_of_it_can_be_taken() {
        let mut runs = Runs::default();
        (1..=10).for_each(|tag| runs.push(run(tag, 1, tag + 99)));
        assert_eq!((runs.list.len(), runs.len()), (1, 10));
        runs.push(run(11, 5, 200));
        runs.push(run(20, 1, 205));
        assert_eq!((runs.list.len(), runs.len()), (3, 16));
        for (tag, offset) in [(1, 100), (10, 109), (5, 104), (20, 205)] {
            assert_eq!(runs.take(tag), Some(run(tag, 1, offset)));
            assert_eq!(runs.take(tag), None);
        }
        assert_eq!((runs.take(0), runs.take(17), runs.take(u64::MAX)), (None, None, None));
        assert_eq!(runs.take_upto(7), [run(2, 3, 101), run(6, 2, 105)]);
        assert_eq!(runs.take_upto(7), []);
        assert_eq!(runs.take_upto(u64::MAX), [run(8, 2, 107), run(11, 5, 200)]);
        assert_eq!((runs.len(), runs.list.len()), (0, 0));
    }
}
