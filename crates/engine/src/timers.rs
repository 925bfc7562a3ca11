//! Everything that will happen by itself.
//!
//! Owns one heap of deadlines. Queues, connections and delayed messages put in what they wait for; `Engine::advance`
//! takes out what is due, in order of time and then of asking. It must never read a clock. Rule: the only clock is the
//! `now_ns` the node hands in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::conn::ConnId;
use crate::queue::QueueId;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// A queue's head, or the queue itself, expires.
    Queue(QueueId),
    /// A connection's heartbeat or opening is to be looked at.
    Conn(ConnId),
    /// A delayed message (by its number) is to be routed.
    Delayed(u64),
    /// A disk that refused is tried again.
    Disk,
    /// What taps have stored is to be synced.
    Watched,
}

/// A heap of deadlines.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(u64, u64, Due)>>,
    asked: u64,
}

impl Timers {
    /// Wants `due` at `at_ns`.
    pub fn set(&mut self, at_ns: u64, due: Due) {
        self.asked += 1;
        self.heap.push(Reverse((at_ns, self.asked, due)));
    }

    /// The next thing that is due by now.
    pub fn pop(&mut self, now_ns: u64) -> Option<Due> {
        if self.heap.peek()?.0.0 > now_ns {
            return None;
        }
        self.heap.pop().map(|Reverse((_, _, due))| due)
    }

    /// When the next thing is due.
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at_ns, _, _))| *at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_timers_come_out_in_order() {
        let mut timers = Timers::default();
        let mut at = 1_u64;
        for number in 0..1_000_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            timers.set(at >> 40, Due::Delayed(number));
        }
        let (mut count, mut last) = (0, 0);
        while let Some(next) = timers.next_ns() {
            assert!(next >= last && timers.pop(next.saturating_sub(1)).is_none());
            last = next;
            assert!(timers.pop(next).is_some());
            count += 1;
        }
        assert_eq!(count, 1_000_000);
    }
}
