//! Links that may carry only so many bytes a second.
//!
//! Owns the account of such a link and its waits. The sizes of messages come in as they cross; out comes how much more
//! may cross now: a push rests, a pull gives no credit, until time has paid for what crossed. It must never look at a
//! message. Rule: a token bucket, kept as one moment (the generic cell rate algorithm of ATM): by then everything that
//! crossed is paid for; what the future has to pay may begin now, but nothing after it.

use super::link::Link;
use super::{Place, Session};
use crate::broker::Broker;
use crate::conn::Io;

/// Unused time that counts: enough to make up for a busy machine, a hundredth of what crosses in ten seconds.
const BURST_NS: u64 = 100_000_000;
/// How often a link that has to wait is looked at: many messages at a time, yet smooth for who waits for them.
const STEP_NS: u64 = 10_000_000;
/// Messages over which the mean size is taken.
const MEAN_OF: u64 = 16;

/// What a link may carry.
pub(super) struct Pace {
    bytes_per_s: u64,
    /// By then everything that crossed is paid for.
    paid_ns: u64,
    /// The sizes of the last messages, `MEAN_OF` of them in sum.
    sizes: u64,
}

impl Pace {
    pub(super) fn new(bytes_per_s: u64, now_ns: u64) -> Box<Self> {
        Box::new(Self { bytes_per_s: bytes_per_s.max(1), paid_ns: now_ns, sizes: 0 })
    }

    /// Bytes cross, of a new message or of one that has begun.
    pub(super) fn take(&mut self, bytes: usize, begins: bool, now_ns: u64) {
        let cost_ns = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_s);
        let from_ns = self.paid_ns.max(now_ns.saturating_sub(BURST_NS));
        self.paid_ns = from_ns.saturating_add(u64::try_from(cost_ns).unwrap_or(u64::MAX));
        self.sizes -= if begins { self.sizes / MEAN_OF } else { 0 };
        self.sizes = self.sizes.saturating_add(bytes as u64);
    }

    /// Must time pay first?
    pub(super) fn is_spent(&self, now_ns: u64) -> bool {
        self.paid_ns > now_ns
    }

    /// Has nothing crossed for so long that more of it would not count?
    fn is_full(&self, now_ns: u64) -> bool {
        self.paid_ns.saturating_add(BURST_NS) <= now_ns
    }

    /// Messages that may cross now, of the size that they have been; one tells the size.
    pub(super) fn messages(&self, now_ns: u64) -> u32 {
        let Some(left_ns) = now_ns.checked_sub(self.paid_ns) else { return 0 };
        let bytes = u128::from(left_ns.min(BURST_NS)) * u128::from(self.bytes_per_s) / 1_000_000_000;
        match self.sizes / MEAN_OF {
            0 => 1,
            mean => u32::try_from(bytes / u128::from(mean)).unwrap_or(u32::MAX).max(1),
        }
    }
}

/// The links of a connection that wait for their time.
#[derive(Default)]
pub(super) struct Paced {
    places: Vec<Place>,
    /// When they are looked at; 0 if nothing says so yet.
    due_ns: u64,
}

impl Paced {
    pub(super) fn add(&mut self, place: Place) {
        if !self.places.contains(&place) {
            self.places.push(place);
        }
    }

    /// Has them looked at in a moment.
    pub(super) fn schedule(&mut self, io: &mut Io, broker: &mut Broker) {
        if !self.places.is_empty() && self.due_ns == 0 {
            self.due_ns = broker.now_ns + STEP_NS;
            broker.schedule_conn(io, self.due_ns);
        }
    }
}

impl Session {
    /// A link of ours that gives credit by time is to be looked at again while there is some to come.
    pub(super) fn keep_pace(&mut self, place: Place, now_ns: u64) {
        if let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1))
            && inlet.common.pace.as_ref().is_some_and(|pace| !pace.is_full(now_ns))
        {
            self.paced.add(place);
        }
    }

    /// Links that waited for time go on, as far as it has come. When to look again.
    pub(super) fn end_pace(&mut self, io: &mut Io, broker: &mut Broker) -> Option<u64> {
        if self.paced.due_ns == 0 || broker.now_ns < self.paced.due_ns {
            return Some(self.paced.due_ns).filter(|due_ns| *due_ns > 0);
        }
        self.paced.due_ns = 0;
        for place in std::mem::take(&mut self.paced.places) {
            match self.channel(place.0).and_then(|channel| channel.link(place.1)) {
                Some(Link::In(_)) => self.grant(io, broker, place),
                Some(Link::Out(outlet)) => {
                    outlet.paced = outlet.common.pace.as_ref().is_some_and(|pace| pace.is_spent(broker.now_ns));
                    match outlet.paced {
                        true => self.paced.add(place),
                        false => outlet.wake(broker),
                    }
                }
                _ => {}
            }
        }
        self.paced.schedule(io, broker);
        Some(self.paced.due_ns).filter(|due_ns| *due_ns > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_crosses_is_what_was_allowed_whatever_its_size() {
        for (bytes_per_s, size) in [(1_000, 1), (1_000, 3_000), (1_000_000, 999), (u64::MAX, 1 << 30)] {
            let (mut pace, mut crossed) = (Pace::new(bytes_per_s, 0), 0_u128);
            for now_ms in 0..20_000_u64 {
                let now_ns = now_ms * 1_000_000;
                for _ in 0..10 {
                    if !pace.is_spent(now_ns) {
                        pace.take(size, true, now_ns);
                        crossed += size as u128;
                    }
                }
            }
            let paid = u128::from(bytes_per_s) * 20;
            assert!(crossed <= paid + size as u128, "{crossed} of {paid}");
            assert!(crossed * 20 >= paid * 19 || bytes_per_s == u64::MAX, "{crossed} of {paid}");
        }
    }

    #[test]
    fn credit_is_for_as_many_messages_as_time_has_paid_for() {
        let mut pace = Pace::new(100_000, 0);
        assert_eq!(pace.messages(BURST_NS), 1, "nobody knows how large they are");
        for _ in 0..200 {
            pace.take(1_000, true, 0);
        }
        assert_eq!(pace.messages(1_000_000_000), 0);
        assert_eq!(pace.messages(2_000_000_000 + BURST_NS / 2), 5);
        assert_eq!(pace.messages(100 * BURST_NS), 10, "an hour of silence is not saved up");
    }
}
