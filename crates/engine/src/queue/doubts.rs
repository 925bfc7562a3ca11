//! Messages of a queue that another node may have already.
//!
//! Owns, for one queue, who may have which of its messages: those that a link held when it was lost, and after a start
//! everything that was there before. Consumers ask before they take; answers of other nodes and time take doubts away.
//! It must never know how a node is asked. Rule: docs/decisions/0021: a message in doubt goes only to those who may
//! have it; all but the last of them are asked for it, and the last gets it.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use sha2::{Digest, Sha256};

use super::ready::NEVER;

/// Another node, by a digest of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(NonZeroU64);

impl Peer {
    pub fn of(node: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(node.as_bytes()).into();
        Self::from_bytes(digest.first_chunk().copied().unwrap_or_default())
    }

    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(NonZeroU64::new(u64::from_le_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
    }

    pub fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_le_bytes()
    }
}

/// What a consumer may do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Take it.
    Take,
    /// Say whether it has it; others may have it too.
    Tell,
    /// Leave it to others.
    Leave,
}

/// Who may have a message, and until when that counts.
#[derive(Clone, Debug)]
struct Doubt {
    peers: Vec<Peer>,
    until_ns: u64,
}

/// Messages that were there before the start: any of these nodes may have any of them.
#[derive(Debug)]
struct Found {
    /// The position they end before.
    end: u64,
    /// Each node, and what it does not have.
    peers: Vec<(Peer, Runs)>,
    until_ns: u64,
}

/// Positions, as the first and the last of each run.
///
/// Nodes are asked in order, so a backlog of any length is a few runs.
#[derive(Debug, Default)]
struct Runs(BTreeMap<u64, u64>);

impl Runs {
    fn contains(&self, position: u64) -> bool {
        self.0.range(..=position).next_back().is_some_and(|(_, last)| position <= *last)
    }

    fn insert(&mut self, position: u64) {
        if self.contains(position) {
            return;
        }
        let last = self.0.remove(&(position + 1)).unwrap_or(position);
        match self.0.range_mut(..position).next_back() {
            Some((_, end)) if *end + 1 == position => *end = last,
            _ => drop(self.0.insert(position, last)),
        }
    }
}

/// The doubts of one queue.
#[derive(Debug)]
pub struct Doubts {
    found: Option<Found>,
    /// Messages that links held when they were lost: at most what their credit was.
    known: BTreeMap<u64, Doubt>,
    next_ns: u64,
}

impl Default for Doubts {
    fn default() -> Self {
        Self { found: None, known: BTreeMap::new(), next_ns: NEVER }
    }
}

impl Doubts {
    /// The doubts of a queue whose messages before `end` were there before the start.
    pub fn found(end: u64, peers: Vec<Peer>, until_ns: u64) -> Self {
        let peers = peers.into_iter().map(|peer| (peer, Runs::default())).collect();
        Self { found: Some(Found { end, peers, until_ns }), known: BTreeMap::new(), next_ns: until_ns }
    }

    /// Who may have this message.
    fn peers(&self, position: u64) -> impl Iterator<Item = Peer> {
        let known = self.known.get(&position);
        let found = self.found.iter().filter(move |found| known.is_none() && position < found.end);
        let found = found.flat_map(|found| &found.peers).filter(move |(_, denied)| !denied.contains(position));
        known.into_iter().flat_map(|doubt| &doubt.peers).copied().chain(found.map(|(peer, _)| *peer))
    }

    /// What may a consumer do with this message? `peer` is the node behind it, if it is one that can be asked.
    pub fn claim(&self, position: u64, peer: Option<Peer>) -> Claim {
        let (mut others, mut is_among) = (0, false);
        for other in self.peers(position) {
            if Some(other) == peer {
                is_among = true;
            } else {
                others += 1;
            }
        }
        match (is_among, others) {
            (_, 0) => Claim::Take,
            (true, _) => Claim::Tell,
            (false, _) => Claim::Leave,
        }
    }

    /// A link was lost before it said what became of this message.
    pub fn add(&mut self, position: u64, peer: Peer, until_ns: u64) {
        let mut peers: Vec<Peer> = self.peers(position).collect();
        if peers.is_empty() {
            peers.push(peer);
        }
        self.known.insert(position, Doubt { peers, until_ns });
        self.next_ns = self.next_ns.min(until_ns);
    }

    /// A node says that it does not have this message.
    pub fn deny(&mut self, position: u64, peer: Peer) {
        if let Some(doubt) = self.known.get_mut(&position) {
            doubt.peers.retain(|other| *other != peer);
        } else if let Some(found) = self.found.as_mut().filter(|found| position < found.end) {
            let denied = found.peers.iter_mut().find(|(other, _)| *other == peer);
            denied.into_iter().for_each(|(_, denied)| denied.insert(position));
        }
    }

    /// This message is done with.
    pub fn forget(&mut self, position: u64) {
        self.known.remove(&position);
    }

    /// When the next doubt ends by itself.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Ends the doubts whose time is over. The position before which everything is free now, if that was one of them,
    /// and how many single messages are.
    pub fn end(&mut self, now_ns: u64) -> (Option<u64>, u64) {
        let found = self.found.take_if(|found| found.until_ns <= now_ns).map(|found| found.end);
        let before = self.known.len();
        self.known.retain(|_, doubt| doubt.until_ns > now_ns);
        let ends = self.known.values().map(|doubt| doubt.until_ns).chain(self.found.iter().map(|found| found.until_ns));
        self.next_ns = ends.min().unwrap_or(NEVER);
        (found, (before - self.known.len()) as u64)
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_none() && self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_last_are_asked() {
        let (one, other, third) = (Peer::of("one"), Peer::of("other"), Peer::of("third"));
        let mut doubts = Doubts::found(10, vec![one, other], 100);
        assert_eq!(doubts.claim(9, Some(one)), Claim::Tell);
        assert_eq!(doubts.claim(9, Some(third)), Claim::Leave);
        assert_eq!(doubts.claim(9, None), Claim::Leave);
        assert_eq!(doubts.claim(10, None), Claim::Take);
        doubts.deny(9, one);
        assert_eq!((doubts.claim(9, Some(one)), doubts.claim(9, Some(other))), (Claim::Leave, Claim::Take));
        doubts.add(9, other, 150);
        assert_eq!((doubts.claim(9, Some(one)), doubts.claim(9, Some(other))), (Claim::Leave, Claim::Take));
        assert_eq!(doubts.claim(8, Some(other)), Claim::Tell);
    }

    #[test]
    fn a_backlog_of_denials_is_a_few_runs() {
        let (one, other) = (Peer::of("one"), Peer::of("other"));
        let mut doubts = Doubts::found(1_000, vec![one, other], 100);
        let mut order: Vec<u64> = (0..1_000).filter(|position| position % 100 != 50).collect();
        order.swap(3, 700);
        order.iter().for_each(|position| doubts.deny(*position, one));
        let runs = |doubts: &Doubts| doubts.found.as_ref().map(|found| found.peers[0].1.0.len());
        assert_eq!((runs(&doubts), doubts.known.len()), (Some(11), 0));
        for position in 0..1_000 {
            let denied = position % 100 != 50;
            assert_eq!(doubts.claim(position, Some(one)), if denied { Claim::Leave } else { Claim::Tell });
            assert_eq!(doubts.claim(position, Some(other)), if denied { Claim::Take } else { Claim::Tell });
            doubts.deny(position, one);
        }
        assert_eq!(runs(&doubts), Some(1));
    }

    #[test]
    fn what_was_lost_with_a_link_is_for_its_node_until_the_time_is_over() {
        let (one, other) = (Peer::of("one"), Peer::of("other"));
        let mut doubts = Doubts::default();
        doubts.add(3, one, 100);
        doubts.add(4, one, 200);
        assert_eq!((doubts.claim(3, Some(one)), doubts.claim(3, Some(other))), (Claim::Take, Claim::Leave));
        assert_eq!((doubts.next_ns(), doubts.end(100)), (100, (None, 1)));
        assert_eq!((doubts.claim(3, Some(other)), doubts.next_ns()), (Claim::Take, 200));
        doubts.forget(4);
        assert!(doubts.is_empty());
    }
}
