//! The idempotency barrier: what has been seen within a window of time.
//!
//! Owns the memory of ids in front of one exchange, queue or node, and how an id is read from a message. Ids come in
//! with a time, answers go out: seen, or not. It must never route, store or decide what happens to a duplicate: that
//! is `broker/guard.rs`. Rules: docs/guides/idempotency.md and decision 0007; an id takes 16 bytes in a ring and up
//! to 12 in its index, and the oldest is forgotten first.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use hashbrown::HashTable;
use sha2::{Digest, Sha256};
use weft_journal::RecoveredBarrier;

use crate::durability::Needs;
use crate::fields;
use crate::hash::Seeded;
use crate::message::Message;
use crate::routing::headers::FieldRef;

/// Bytes of an id: half of a SHA-256. Two that differ meet with a chance of one in 2^64 among four billion. That of a
/// message from another node is a number behind a quarter of one: there are few origins and goals.
pub const ID_BYTES: usize = 16;
/// An identity within a barrier.
pub type Id = [u8; ID_BYTES];

/// Expired ids that one look may sweep out: a million that expire at once stop nobody.
const SWEEP_MAX: usize = 1_024;
/// The window is measured in this many steps, so that times cost nothing beside the ids.
const GRAINS: u64 = 1_024;
/// The index holds 32-bit numbers.
const IDS_MAX: usize = 1 << 30;
/// Ids with numbers that follow each other in the ring are found by the first of them: so many at most, and so many of
/// which the index may have to look at for one.
const NEIGHBOURS: u64 = 16;
/// What lies in the ring in place of an id that was forgotten. It follows nothing, and nothing follows it.
const NOTHING: Id = [u8::MAX; ID_BYTES];

/// What makes two messages the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    MessageId,
    /// A header (0-9-1) or application property (1.0).
    Header(Box<str>),
    Body,
    /// The identity that a message keeps on its way through the fabric.
    Fabric,
}

/// Settings of a barrier.
#[derive(Clone, Debug)]
pub struct Settings {
    pub key: Key,
    /// A message without the key is known by its body; otherwise it passes.
    pub or_body: bool,
    pub window_ms: u64,
    pub ids_max: usize,
    /// The number of its ids in the journal; 0 keeps them in memory.
    pub number: u64,
}

/// What one exchange, queue or node remembers.
#[derive(Debug)]
pub struct Barrier {
    pub settings: Settings,
    /// What it takes until the id that was stored last is safe: so are the first copies of all that are known.
    pub needs: Needs,
    pub duplicates: u64,
    /// Ids that had to go before their time, because there were too many.
    pub forgotten: u64,
    /// Oldest first.
    ids: VecDeque<Id>,
    /// Numbers of those that do not follow the one before them, by id. Most messages of other nodes come in a row.
    index: HashTable<u32>,
    /// The number of the oldest.
    first: u32,
    /// When how many of them end, oldest first.
    ends: VecDeque<(u64, usize)>,
    /// So many of the oldest have ended and are yet to be swept out.
    ended: usize,
    seed: Seeded,
}

impl Barrier {
    pub fn new(settings: Settings, seed: Seeded) -> Self {
        Self {
            settings,
            needs: Needs::default(),
            duplicates: 0,
            forgotten: 0,
            ids: VecDeque::new(),
            index: HashTable::new(),
            first: 0,
            ends: VecDeque::new(),
            ended: 0,
            seed,
        }
    }

    /// Ids that are remembered.
    pub fn len(&self) -> usize {
        self.ids.len() - self.ended
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id of a message here; None if it has none and passes.
    pub fn id_of(&self, message: &Message) -> Option<Id> {
        let found = match &self.settings.key {
            Key::MessageId => fields::message_id(message).map(|id| digest(b'm', &id)),
            Key::Header(name) => fields::header(message, name).and_then(digest_of_field),
            Key::Fabric => fields::fabric_id(message).map(|id| digest(b'f', id)),
            Key::Body => Some(digest_of_body(message)),
        };
        found.or_else(|| self.settings.or_body.then(|| digest_of_body(message)))
    }

    /// Was this seen within the window?
    pub fn knows(&mut self, id: &Id, now_ms: u64) -> bool {
        self.sweep(now_ms);
        self.place(id).is_some()
    }

    /// Where an id lies in the ring, unless it has ended.
    fn place(&self, id: &Id) -> Option<usize> {
        let (ids, first, (_, number)) = (&self.ids, self.first, parts(id));
        let place = |head: &u32| {
            let at = head.wrapping_sub(first) as usize;
            let ahead = number.wrapping_sub(parts(ids.get(at)?).1);
            let at = at.checked_add(usize::try_from(ahead).ok()?)?;
            (at >= self.ended && ids.get(at)? == id).then_some(at)
        };
        self.index.find(hash(self.seed, id), |head| place(head).is_some()).and_then(place)
    }

    /// Remembers an id that is not known; until when is told, in milliseconds since 1970.
    pub fn remember(&mut self, id: Id, now_ms: u64) -> u64 {
        let grain_ms = (self.settings.window_ms / GRAINS).max(1);
        let until_ms = (now_ms.saturating_add(self.settings.window_ms) / grain_ms).saturating_add(1) * grain_ms;
        // A clock that was set back does not make anything end earlier than what came before it.
        let until_ms = until_ms.max(self.ends.back().map_or(0, |last| last.0));
        self.insert(id, until_ms);
        until_ms
    }

    /// Does not know an id any more: its place in the ring stays, and means nothing.
    pub fn forget(&mut self, id: &Id) {
        let Some(at) = self.place(id) else { return };
        self.ids[at] = NOTHING;
        self.end_place(id, self.first.wrapping_add(at as u32), at + 1);
    }

    /// A place of the ring means nothing any more: what follows it there in a row is found by itself from now on.
    fn end_place(&mut self, id: &Id, number: u32, next: usize) {
        let (ids, first, seed, next_number) = (&self.ids, self.first, self.seed, number.wrapping_add(1));
        let goes_on = ids.get(next).is_some_and(|next| follows(id, next));
        let hash = hash(seed, id);
        match self.index.find_entry(hash, |head| *head == number) {
            Ok(mut entry) if goes_on => *entry.get_mut() = next_number,
            Ok(entry) => {
                entry.remove();
            }
            Err(_) if goes_on => {
                self.index.insert_unique(hash, next_number, |head| hash_at(seed, ids, first, *head));
            }
            Err(_) => {}
        }
    }

    fn insert(&mut self, id: Id, until_ms: u64) {
        let most = self.settings.ids_max.clamp(1, IDS_MAX);
        for _ in 0..SWEEP_MAX {
            if self.ids.len() < most || self.ids.is_empty() {
                break;
            }
            self.forgotten += u64::from(self.ended == 0);
            self.drop_oldest();
        }
        let number = self.first.wrapping_add(self.ids.len() as u32);
        let goes_on = self.ids.back().is_some_and(|last| follows(last, &id));
        self.ids.push_back(id);
        if !goes_on {
            let (ids, first, seed) = (&self.ids, self.first, self.seed);
            self.index.insert_unique(hash(seed, &id), number, |head| hash_at(seed, ids, first, *head));
        }
        match self.ends.back_mut() {
            Some(last) if last.0 == until_ms => last.1 += 1,
            _ => self.ends.push_back((until_ms, 1)),
        }
    }

    /// Takes in what was found on disk; later than all of it come the ids of this start.
    pub fn restore(&mut self, mut found: Vec<RecoveredBarrier>, now_ms: u64) {
        found.sort_by_key(|record| record.until_ms);
        for record in found {
            let (ids, _) = record.ids.as_chunks::<ID_BYTES>();
            for id in ids {
                if !self.knows(id, now_ms) {
                    self.insert(*id, record.until_ms);
                }
            }
        }
    }

    /// Notes what has ended, and lets go of a part of it.
    fn sweep(&mut self, now_ms: u64) {
        while let Some((_, count)) = self.ends.front().copied().filter(|end| end.0 <= now_ms) {
            self.ended += count;
            self.ends.pop_front();
        }
        for _ in 0..self.ended.min(SWEEP_MAX) {
            self.drop_oldest();
        }
        if self.ids.is_empty() && self.ids.capacity() > SWEEP_MAX {
            (self.ids, self.index) = (VecDeque::new(), HashTable::new());
        }
    }

    fn drop_oldest(&mut self) {
        let Some(id) = self.ids.pop_front() else { return };
        let number = self.first;
        self.first = number.wrapping_add(1);
        self.end_place(&id, number, 0);
        match self.ended.checked_sub(1) {
            Some(left) => self.ended = left,
            None => {
                if let Some(end) = self.ends.front_mut() {
                    end.1 -= 1;
                    if end.1 == 0 {
                        self.ends.pop_front();
                    }
                }
            }
        }
    }
}

/// Both halves of an id: origin and goal, and the number there.
#[inline]
fn parts(id: &Id) -> (u64, u64) {
    let whole = u128::from_le_bytes(*id);
    (whole as u64, (whole >> 64) as u64)
}

/// Is the second found by the first, if it lies behind it in the ring?
#[inline]
fn follows(id: &Id, next: &Id) -> bool {
    let ((lane, number), (next_lane, next_number)) = (parts(id), parts(next));
    lane == next_lane && number.wrapping_add(1) == next_number && next_number % NEIGHBOURS != 0
}

/// Where an id lies in the index, with its neighbours.
#[inline]
fn hash(seed: Seeded, id: &Id) -> u64 {
    let (lane, number) = parts(id);
    seed.hash_one((lane, number / NEIGHBOURS))
}

/// The same for the id of this number.
fn hash_at(seed: Seeded, ids: &VecDeque<Id>, first: u32, number: u32) -> u64 {
    ids.get(number.wrapping_sub(first) as usize).map_or(0, |id| hash(seed, id))
}

fn finish(hasher: Sha256) -> Id {
    let whole: [u8; 32] = hasher.finalize().into();
    let mut id = [0; ID_BYTES];
    id.copy_from_slice(&whole[..ID_BYTES]);
    id
}

pub(crate) fn digest(kind: u8, bytes: &[u8]) -> Id {
    finish(Sha256::new_with_prefix([kind]).chain_update(bytes))
}

fn digest_of_body(message: &Message) -> Id {
    let mut hasher = Sha256::new_with_prefix(b"b");
    message.body().parts().for_each(|part| hasher.update(part));
    finish(hasher)
}

fn digest_of_field(value: FieldRef<'_>) -> Option<Id> {
    Some(match value {
        FieldRef::Void | FieldRef::Nested(_) | FieldRef::Other(_) => return None,
        FieldRef::Str(bytes) | FieldRef::Bytes(bytes) => digest(b's', bytes),
        FieldRef::Int(number) => digest(b'i', &number.to_le_bytes()),
        FieldRef::Uint(number) => digest(b'u', &number.to_le_bytes()),
        FieldRef::Bool(yes) => digest(b'y', &[u8::from(yes)]),
        FieldRef::Float(number) => digest(b'd', &number.to_bits().to_le_bytes()),
        FieldRef::Timestamp(seconds) => digest(b't', &seconds.to_le_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::{FabricIds, LANE_BYTES};

    fn barrier(window_ms: u64, ids_max: usize) -> Barrier {
        Barrier::new(Settings { key: Key::Body, or_body: false, window_ms, ids_max, number: 0 }, Seeded(7))
    }

    fn id(number: u32) -> Id {
        digest(b'm', &number.to_le_bytes())
    }

    /// The id of a message on its way to one queue.
    fn fabric_id(ids: &mut FabricIds, identity: &str, queue: &str) -> Id {
        ids.begin(identity.as_bytes());
        ids.part(queue.as_bytes());
        ids.finish()
    }

    #[test]
    fn numbers_in_a_row_are_known_one_by_one() {
        let (mut ids, mut barrier) = (FabricIds::default(), barrier(1_000_000, 5_000));
        for number in 0..10_000_u64 {
            // Two origins, one of which leaves most numbers out.
            for (origin, number) in [("a", number), ("b", number * 977)] {
                let id = fabric_id(&mut ids, &format!("{origin}:{number}"), "q");
                assert!(!barrier.knows(&id, 1), "{origin}:{number}");
                barrier.remember(id, 1);
                assert!(barrier.knows(&id, 1), "{origin}:{number}");
            }
        }
        assert_eq!((barrier.len(), barrier.forgotten), (5_000, 15_000));
        for number in 0..10_000 {
            let id = fabric_id(&mut ids, &format!("a:{number}"), "q");
            assert_eq!(barrier.knows(&id, 1), number >= 7_500);
        }
    }

    #[test]
    fn an_id_is_known_for_its_window_and_not_much_longer() {
        for window_ms in [1, 10, 1_000, 600_000] {
            let mut barrier = barrier(window_ms, 100);
            assert!(!barrier.knows(&id(1), 50));
            barrier.remember(id(1), 50);
            assert!(barrier.knows(&id(1), 50 + window_ms));
            let late_ms = 52 + window_ms + window_ms / 512;
            assert!(!barrier.knows(&id(1), late_ms), "{window_ms}");
            barrier.remember(id(1), late_ms);
            assert!(barrier.knows(&id(1), late_ms + window_ms));
            assert_eq!(barrier.len(), 1);
        }
    }

    #[test]
    fn the_oldest_are_forgotten_first_and_counted() {
        let mut barrier = barrier(1_000_000, 100);
        for number in 0..250 {
            barrier.remember(id(number), u64::from(number));
        }
        assert_eq!((barrier.len(), barrier.forgotten), (100, 150));
        for number in 0..250 {
            assert_eq!(barrier.knows(&id(number), 300), number >= 150);
        }
    }

    #[test]
    fn a_forgotten_id_is_new_again_and_disturbs_no_other() {
        let mut barrier = barrier(1_000_000, 3);
        for number in 0..3 {
            barrier.remember(id(number), 1);
        }
        barrier.forget(&id(1));
        barrier.forget(&id(9));
        assert_eq!([0, 1, 2].map(|number| barrier.knows(&id(number), 1)), [true, false, true]);
        barrier.remember(id(1), 1);
        assert_eq!([0, 1, 2].map(|number| barrier.knows(&id(number), 1)), [false, true, true]);
        barrier.remember(id(4), 1);
        assert_eq!([1, 2, 4].map(|number| barrier.knows(&id(number), 1)), [true; 3]);
    }

    #[test]
    fn many_that_end_at_once_are_unknown_at_once_and_swept_out_bit_by_bit() {
        let mut barrier = barrier(1_000, 1 << 20);
        for number in 0..10_000 {
            barrier.remember(id(number), 5);
        }
        assert!(barrier.knows(&id(0), 100));
        assert!(!barrier.knows(&id(9_999), 5_000));
        assert!(barrier.is_empty());
        barrier.remember(id(9_999), 5_000);
        for look in 0..20 {
            assert!(barrier.knows(&id(9_999), 5_000 + look), "{look}");
            assert!(!barrier.knows(&id(9_998), 5_000 + look));
        }
        assert_eq!((barrier.len(), barrier.ids.len(), barrier.index.len()), (1, 1, 1));
    }

    #[test]
    fn it_agrees_with_a_plain_list() {
        let mut barrier = barrier(100, 50);
        let mut plain: Vec<(u32, u64)> = Vec::new();
        let mut word = 1_u32;
        for now_ms in 0..5_000_u64 {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = word >> 24;
            plain.retain(|(_, until_ms)| *until_ms > now_ms);
            let known = plain.iter().any(|(other, _)| *other == number);
            assert_eq!(barrier.knows(&id(number), now_ms), known, "at {now_ms}");
            if !known {
                plain.push((number, barrier.remember(id(number), now_ms)));
                let excess = plain.len().saturating_sub(50);
                plain.drain(..excess);
            }
        }
        assert!(barrier.forgotten > 0);
    }

    #[test]
    fn rows_of_numbers_agree_with_a_plain_list() {
        let mut barrier = barrier(100, 60);
        let mut plain: Vec<(Id, u64)> = Vec::new();
        let (mut word, mut next, mut longest) = (1_u32, [0_u64; 3], 0);
        for step in 0..20_000_u64 {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (now_ms, lane) = (step / 7 + step / 2_000 * 150, (step / 40 % 3) as usize);
            // Mostly the next number, sometimes one that was before it, sometimes one is left out.
            let number = match word >> 28 {
                0..12 => next[lane],
                12..15 => next[lane].saturating_sub(u64::from(word >> 20 & 31)),
                _ => next[lane] + 1,
            };
            let mut id = [lane as u8; ID_BYTES];
            id[LANE_BYTES..].copy_from_slice(&number.to_le_bytes());
            plain.retain(|(_, until_ms)| *until_ms > now_ms);
            let known = plain.iter_mut().find(|(other, _)| *other == id);
            assert_eq!(barrier.knows(&id, now_ms), known.is_some(), "{number} of {lane} at {step}");
            match known {
                Some(place) if word >> 8 & 1 == 0 => {
                    barrier.forget(&id);
                    place.0 = NOTHING;
                }
                Some(_) => {}
                None => {
                    plain.push((id, barrier.remember(id, now_ms)));
                    plain.drain(..plain.len().saturating_sub(60));
                    next[lane] = next[lane].max(number + 1);
                }
            }
            let before = |at: usize| at.checked_sub(1).map_or(NOTHING, |at| barrier.ids[at]);
            let is_found = |(at, id): &(usize, &Id)| **id != NOTHING && !follows(&before(*at), id);
            assert_eq!(barrier.index.len(), barrier.ids.iter().enumerate().filter(is_found).count(), "at {step}");
            longest = longest.max(barrier.ids.len() - barrier.index.len());
        }
        assert!(barrier.forgotten > 0 && longest > 30, "{longest}");
    }

    #[test]
    fn what_was_found_on_disk_is_known_whatever_its_order() {
        let record = |until_ms, numbers: [u32; 2]| RecoveredBarrier {
            barrier_no: 1,
            until_ms,
            ids: numbers.iter().flat_map(|number| id(*number)).collect(),
        };
        let mut barrier = barrier(1_000, 10);
        barrier.restore(vec![record(900, [3, 4]), record(500, [1, 2]), record(900, [4, 5])], 100);
        assert_eq!(barrier.len(), 5);
        assert!((1..=5).all(|number| barrier.knows(&id(number), 499)));
        assert!(!barrier.knows(&id(2), 500));
        assert!((3..=5).all(|number| barrier.knows(&id(number), 899)));
    }

    #[test]
    fn an_id_costs_less_than_forty_five_bytes() {
        let mut barrier = barrier(1_000_000, 1 << 20);
        for number in 0..70_000 {
            barrier.remember(id(number), u64::from(number) / 100);
        }
        let bytes = barrier.ids.capacity() * ID_BYTES + barrier.index.allocation_size() + barrier.ends.capacity() * 16;
        assert!(bytes / 70_000 < 45, "{} bytes", bytes / 70_000);
    }
}
