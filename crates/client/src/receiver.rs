//! A receiving link: deliveries on their way, waiting to be taken, and taken but not settled.
//!
//! Owns the count of all three against one window, from which credit follows: a consumer that stands still gets nothing
//! more. Deliveries have numbers of their own, since the protocol's ids end with the connection; settling an old number
//! is harmless. It must never write a frame. Rules: AMQP 1.0 part 2, section 2.6.7 (flow control).

use std::collections::VecDeque;

/// A whole message, with what is needed to settle it.
#[derive(Debug)]
pub struct Arrived {
    pub number: u64,
    pub tag: Box<[u8]>,
    pub payload: Box<[u8]>,
    /// Settled by its sender: there is nothing to decide.
    pub settled: bool,
}

/// A message of which frames are missing.
#[derive(Default)]
pub(crate) struct Partial {
    pub id: u32,
    pub tag: Box<[u8]>,
    pub payload: Vec<u8>,
    pub settled: bool,
}

/// A delivery that was not settled when it came.
struct Held {
    id: u32,
    open: bool,
}

/// What a receiving link remembers.
#[derive(Default)]
pub(crate) struct Receiver {
    pub window: u32,
    pub credit: u32,
    pub delivery_count: u32,
    pub partial: Option<Partial>,
    pub draining: bool,
    /// Credit asked for by the caller, not told to the peer yet.
    granted: u32,
    waiting: VecDeque<Arrived>,
    held: VecDeque<Held>,
    /// The number of the first held delivery.
    base: u64,
    open: usize,
    /// Waiting deliveries that are settled, and so count for the window only until they are taken.
    waiting_settled: usize,
}

impl Receiver {
    pub(crate) fn new(window: u32) -> Self {
        Self { window, ..Self::default() }
    }

    /// A message is complete.
    pub(crate) fn arrived(&mut self, message: Partial) {
        let number = self.base + self.held.len() as u64;
        self.credit = self.credit.saturating_sub(1);
        self.delivery_count = self.delivery_count.wrapping_add(1);
        self.held.push_back(Held { id: message.id, open: !message.settled });
        if message.settled {
            self.waiting_settled += 1;
        } else {
            self.open += 1;
        }
        let payload = message.payload.into_boxed_slice();
        self.waiting.push_back(Arrived { number, tag: message.tag, payload, settled: message.settled });
    }

    /// The next delivery that waits.
    pub(crate) fn take(&mut self) -> Option<Arrived> {
        let taken = self.waiting.pop_front()?;
        if taken.settled {
            self.waiting_settled -= 1;
            self.trim();
        }
        Some(taken)
    }

    /// How many deliveries wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Decides on deliveries first to last; calls `with` for each that was open with the protocol's id.
    pub(crate) fn settle(&mut self, first: u64, last: u64, mut with: impl FnMut(u32)) {
        let end = last.saturating_add(1).saturating_sub(self.base).min(self.held.len() as u64) as usize;
        let start = (first.saturating_sub(self.base) as usize).min(end);
        for held in self.held.range_mut(start..end).filter(|held| held.open) {
            held.open = false;
            self.open -= 1;
            with(held.id);
        }
        self.trim();
    }

    /// The credit to tell the peer, if it is worth a frame.
    pub(crate) fn credit_due(&mut self) -> Option<u32> {
        if self.granted > 0 {
            self.credit = self.credit.saturating_add(std::mem::take(&mut self.granted));
            return Some(self.credit);
        }
        let used = self.credit as usize + self.open + self.waiting_settled;
        let free = (self.window as usize).saturating_sub(used) as u32;
        if free == 0 || free.saturating_mul(2) < self.window || self.draining {
            return None;
        }
        self.credit += free;
        Some(self.credit)
    }

    /// Whether `credit_due` would say something.
    pub(crate) fn is_due(&self) -> bool {
        let used = self.credit as usize + self.open + self.waiting_settled;
        let free = (self.window as usize).saturating_sub(used);
        self.granted > 0 || (free > 0 && free * 2 >= self.window as usize && !self.draining)
    }

    /// The caller gives credit by hand.
    pub(crate) fn grant(&mut self, count: u32) {
        self.granted = self.granted.saturating_add(count);
    }

    /// The connection is gone: what was not settled comes again from the peer, with other numbers.
    pub(crate) fn rewind(&mut self) {
        self.base += self.held.len() as u64;
        self.held.clear();
        self.waiting.clear();
        (self.open, self.waiting_settled, self.credit, self.delivery_count) = (0, 0, 0, 0);
        (self.partial, self.draining) = (None, false);
    }

    fn trim(&mut self) {
        let first_waiting = self.waiting.front().map_or(u64::MAX, |delivery| delivery.number);
        while self.base < first_waiting && self.held.front().is_some_and(|held| !held.open) {
            self.held.pop_front();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(window: u32) -> Receiver {
        let mut receiver = Receiver::new(window);
        assert_eq!(receiver.credit_due(), Some(window));
        receiver
    }

    #[test]
    fn credit_follows_what_is_settled() {
        let mut receiver = receiver(4);
        for id in 0..4 {
            receiver.arrived(Partial { id: 10 + id, ..Partial::default() });
        }
        assert_eq!((receiver.credit, receiver.credit_due()), (0, None));
        let taken: Vec<u64> = std::iter::from_fn(|| receiver.take()).map(|delivery| delivery.number).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        assert_eq!(receiver.credit_due(), None);
        let mut ids = Vec::new();
        receiver.settle(0, 0, |id| ids.push(id));
        assert_eq!(receiver.credit_due(), None);
        receiver.settle(0, 2, |id| ids.push(id));
        assert_eq!(ids, [10, 11, 12]);
        assert_eq!(receiver.credit_due(), Some(3));
    }

    #[test]
    fn settled_deliveries_count_until_they_are_taken() {
        let mut receiver = receiver(2);
        receiver.arrived(Partial { settled: true, ..Partial::default() });
        receiver.arrived(Partial { settled: true, ..Partial::default() });
        assert_eq!(receiver.credit_due(), None);
        assert!(receiver.take().is_some_and(|delivery| delivery.settled));
        assert_eq!(receiver.credit_due(), Some(1));
    }

    #[test]
    fn numbers_of_a_lost_connection_settle_nothing() {
        let mut receiver = receiver(2);
        receiver.arrived(Partial { id: 7, ..Partial::default() });
        receiver.rewind();
        receiver.arrived(Partial { id: 0, ..Partial::default() });
        let mut ids = Vec::new();
        receiver.settle(0, 0, |id| ids.push(id));
        assert!(ids.is_empty());
        receiver.settle(1, u64::MAX - 1, |id| ids.push(id));
        assert_eq!(ids, [0]);
    }
}
