//! How many messages each binding matched.
//!
//! Owns a counter for every row of every exchange's table, and the ways that sessions remember. Routing notes the rows
//! it met; a publish counts them, and runs of publishes along a remembered route are added to it until somebody reads.
//! It must never be called for a message that goes the same way as the one before (stats/runs.rs). Rule: a message that
//! matches two bindings to the same queue counts for both and is delivered once; rows that are gone take their counters
//! along.

use std::cell::Cell;
use std::rc::Rc;

use super::ExchangeId;
use crate::queue::QueueId;
use crate::slab::{Id, Slab};
use crate::stream::tap;

/// Names the counter of a row.
pub type MatchId = Id<u64>;

/// Routes that are kept track of before those that nobody remembers any more are let go.
const ROUTES_MIN: usize = 64;

/// Where messages with one key go, as a session remembers it.
#[derive(Debug)]
pub struct Trail {
    pub exchange: ExchangeId,
    pub targets: Box<[QueueId]>,
    /// How many of them are queues that take it, and not streams that only watch.
    pub queues: usize,
    matched: Box<[MatchId]>,
    published: Cell<u64>,
}

impl Trail {
    fn new(exchange: ExchangeId, targets: &[QueueId], matched: &[MatchId]) -> Rc<Self> {
        let queues = tap::split(targets).0.len();
        let published = Cell::new(0);
        Rc::new(Self { exchange, targets: targets.into(), queues, matched: matched.into(), published })
    }

    /// A way that no binding had a part in.
    pub fn straight(exchange: ExchangeId, target: QueueId) -> Rc<Self> {
        Self::new(exchange, &[target], &[])
    }

    /// So many messages went this way.
    pub fn count(&self, messages: u64) {
        self.published.set(self.published.get() + messages);
    }
}

/// The counters of all bindings.
#[derive(Default)]
pub struct Matches {
    counters: Slab<u64>,
    /// The rows that the last routing met.
    found: Vec<MatchId>,
    routes: Vec<Rc<Trail>>,
    routes_max: usize,
}

impl Matches {
    /// A counter for a new row.
    pub fn add(&mut self) -> MatchId {
        self.counters.insert(0)
    }

    /// The row is gone.
    pub fn remove(&mut self, id: MatchId) {
        self.counters.remove(id);
    }

    /// A message is being routed.
    #[inline]
    pub fn begin(&mut self) {
        self.found.clear();
    }

    /// It matched a row.
    #[inline]
    pub fn note(&mut self, id: MatchId) {
        if !cfg!(feature = "without-statistics") {
            self.found.push(id);
        }
    }

    /// The message that was routed last is published.
    #[inline]
    pub fn count(&mut self) {
        for id in &self.found {
            self.counters.get_mut(*id).into_iter().for_each(|counter| *counter += 1);
        }
    }

    /// The way of the message that was routed last, to be remembered.
    pub fn remember(&mut self, exchange: ExchangeId, targets: &[QueueId]) -> Rc<Trail> {
        let route = Trail::new(exchange, targets, &self.found);
        if !route.matched.is_empty() {
            if self.routes.len() >= self.routes_max.max(ROUTES_MIN) {
                self.gather();
                self.routes_max = 2 * self.routes.len();
            }
            self.routes.push(Rc::clone(&route));
        }
        route
    }

    /// Adds what remembered routes have counted; those that nobody remembers are let go.
    pub fn gather(&mut self) {
        let counters = &mut self.counters;
        self.routes.retain(|route| {
            let published = route.published.take();
            for id in route.matched.iter().filter(|_| published > 0) {
                counters.get_mut(*id).into_iter().for_each(|counter| *counter += published);
            }
            Rc::strong_count(route) > 1
        });
    }

    /// Messages that matched a row; call `gather` first.
    pub fn get(&self, id: MatchId) -> u64 {
        self.counters.get(id).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembered_routes_count_for_every_row_and_are_let_go() {
        let mut matches = Matches::default();
        let (one, other) = (matches.add(), matches.add());
        matches.note(one);
        matches.note(other);
        matches.count();
        let exchange = ExchangeId::from_raw(0);
        let route = matches.remember(exchange, &[]);
        route.count(3);
        matches.remove(other);
        matches.gather();
        matches.gather();
        assert_eq!((matches.get(one), matches.get(other)), (4, 0));
        route.count(1);
        drop(route);
        matches.gather();
        assert_eq!((matches.get(one), matches.routes.len()), (5, 0));
        for _ in 0..1_000 {
            matches.begin();
            matches.note(one);
            matches.remember(exchange, &[]).count(1);
        }
        assert!(matches.routes.len() <= ROUTES_MIN);
        matches.gather();
        assert_eq!(matches.get(one), 1_005);
    }
}
