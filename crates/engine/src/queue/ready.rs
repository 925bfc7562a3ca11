//! Messages that wait, in order.
//!
//! Owns the ready entries of one queue: one lane per priority, each sorted by position. Entries come in at the back
//! or, returned by a consumer, at the place they had; they leave at the front, or from the middle for consumers with
//! filters. It must never know a consumer or a connection. Rule: a returned message takes its old place (RabbitMQ's
//! requeue), higher lanes first.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::message::Message;

/// A lane keeps this much room when it runs empty; more is given back to the allocator.
const LANE_KEEP: usize = 64;
/// `Entry::expires_ns` of a message that does not expire.
pub const NEVER: u64 = u64::MAX;

/// The envelope: a message in one queue.
#[derive(Debug)]
pub struct Entry {
    pub message: Rc<Message>,
    pub position: u64,
    pub expires_ns: u64,
    /// Since when it is where it is: in its queue, or with its consumer.
    pub since_ns: u64,
    /// Deliveries that failed.
    pub failures: u32,
    /// Was it delivered before, however that ended?
    pub redelivered: bool,
    /// Is it in the journal?
    pub stored: bool,
    /// From a stream: one more than the place of its reader's tracker, 1 without one. 0: from a queue.
    pub reader: u16,
}

impl Entry {
    /// A second envelope for a browser.
    pub fn copy(&self) -> Self {
        Self { message: Rc::clone(&self.message), ..*self }
    }
}

#[derive(Debug)]
enum Slot {
    Full(Entry),
    /// Taken from the middle; the position keeps the lane sorted.
    Hole(u64),
}

impl Slot {
    fn position(&self) -> u64 {
        match self {
            Self::Full(entry) => entry.position,
            Self::Hole(position) => *position,
        }
    }
}

/// How far a searching consumer has read, lane by lane.
#[derive(Debug, Default)]
pub struct Cursor(Vec<u64>);

impl Cursor {
    fn lane(&mut self, lane: usize) -> &mut u64 {
        if self.0.len() <= lane {
            self.0.resize(lane + 1, 0);
        }
        &mut self.0[lane]
    }

    /// How far it is in a queue without priorities.
    pub fn position(&mut self) -> u64 {
        *self.lane(0)
    }

    /// In a queue without priorities, everything up to this position was looked at.
    pub fn pass(&mut self, position: u64) {
        *self.lane(0) = position + 1;
    }

    /// Something came back to this place.
    pub fn rewind(&mut self, lane: usize, position: u64) {
        let at = self.lane(lane);
        *at = position.min(*at);
    }
}

/// The ready part of a queue.
#[derive(Debug)]
pub struct Ready {
    lanes: Vec<VecDeque<Slot>>,
    len: usize,
    bytes: u64,
    top: usize,
    /// Some entry had a clock since it was last empty.
    timed: bool,
}

impl Ready {
    /// `priority_max` + 1 lanes.
    pub fn new(priority_max: u8) -> Self {
        let lanes = (0..=priority_max).map(|_| VecDeque::new()).collect();
        Self { lanes, len: 0, bytes: 0, top: 0, timed: false }
    }

    pub fn len(&self) -> usize {
        self.len
    }
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Bytes of all bodies.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// May some of them have a clock?
    pub fn is_timed(&self) -> bool {
        self.timed
    }
    /// More than one lane?
    pub fn has_priorities(&self) -> bool {
        self.lanes.len() > 1
    }

    fn lane_of(&self, entry: &Entry) -> usize {
        usize::from(entry.message.traits.priority).min(self.lanes.len() - 1)
    }

    /// One more; its lane.
    #[inline]
    fn count(&mut self, entry: &Entry) -> usize {
        let lane = self.lane_of(entry);
        self.len += 1;
        self.bytes += entry.message.body_len() as u64;
        self.top = self.top.max(lane);
        self.timed |= entry.expires_ns != NEVER;
        lane
    }

    /// A new message, behind all others of its priority.
    #[inline]
    pub fn push_back(&mut self, entry: Entry) {
        let lane = self.count(&entry);
        self.lanes[lane].push_back(Slot::Full(entry));
    }

    /// A message that came back, at its old place; which lane that is.
    pub fn put_back(&mut self, entry: Entry) -> usize {
        let lane = self.count(&entry);
        let slots = &mut self.lanes[lane];
        let at = slots.partition_point(|slot| slot.position() < entry.position);
        match slots.get_mut(at) {
            Some(slot) if slot.position() == entry.position => *slot = Slot::Full(entry),
            _ => slots.insert(at, Slot::Full(entry)),
        }
        lane
    }

    /// The lane with the next entry; holes in front of it are swept.
    #[inline]
    fn front_lane(&mut self) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        loop {
            let lane = &mut self.lanes[self.top];
            while matches!(lane.front(), Some(Slot::Hole(_))) {
                lane.pop_front();
            }
            if !lane.is_empty() {
                return Some(self.top);
            }
            self.top = self.top.checked_sub(1)?;
        }
    }

    /// The first entry, without sweeping: of the highest lane that has any.
    pub fn peek(&self) -> Option<&Entry> {
        self.lanes.iter().rev().flatten().find_map(|slot| match slot {
            Slot::Full(entry) => Some(entry),
            Slot::Hole(_) => None,
        })
    }

    /// The next entry to deliver.
    #[inline]
    pub fn front(&mut self) -> Option<&Entry> {
        let lane = self.front_lane()?;
        match self.lanes[lane].front() {
            Some(Slot::Full(entry)) => Some(entry),
            _ => None,
        }
    }

    /// Takes the next entry.
    #[inline]
    pub fn pop_front(&mut self) -> Option<Entry> {
        let lane = self.front_lane()?;
        let Some(Slot::Full(entry)) = self.lanes[lane].pop_front() else { return None };
        self.took(&entry);
        if self.len == 0 {
            self.shrink();
        }
        Some(entry)
    }

    /// The first entry that `wanted` likes, looking at most at `steps` entries. The cursor moves past all that were
    /// looked at, so that a consumer with a filter reads a queue once, however often it has to stop.
    pub fn find(&self, cursor: &mut Cursor, steps: &mut u32, mut wanted: impl FnMut(&Entry) -> bool) -> Option<u64> {
        for (index, lane) in self.lanes.iter().enumerate().rev() {
            let from = cursor.lane(index);
            let at = lane.partition_point(|slot| slot.position() < *from);
            for slot in lane.range(at..) {
                let Slot::Full(entry) = slot else { continue };
                if *steps == 0 {
                    return None;
                }
                *steps -= 1;
                *from = entry.position + 1;
                if wanted(entry) {
                    return Some(entry.position);
                }
            }
        }
        None
    }

    /// Looks at the entry with this position.
    pub fn get(&self, position: u64) -> Option<&Entry> {
        self.lanes.iter().find_map(|lane| {
            let at = lane.partition_point(|slot| slot.position() < position);
            match lane.get(at) {
                Some(Slot::Full(entry)) if entry.position == position => Some(entry),
                _ => None,
            }
        })
    }

    /// Takes the entry with this position out of the middle.
    pub fn take(&mut self, position: u64) -> Option<Entry> {
        for index in 0..self.lanes.len() {
            let lane = &mut self.lanes[index];
            let at = lane.partition_point(|slot| slot.position() < position);
            let Some(slot) = lane.get_mut(at) else { continue };
            if slot.position() != position || matches!(slot, Slot::Hole(_)) {
                continue;
            }
            let Slot::Full(entry) = std::mem::replace(slot, Slot::Hole(position)) else { continue };
            self.took(&entry);
            self.sweep(index);
            return Some(entry);
        }
        None
    }

    /// Holes behind a message that nobody wants would pile up for ever.
    fn sweep(&mut self, lane: usize) {
        let lane = &mut self.lanes[lane];
        if lane.len() > 2 * self.len + LANE_KEEP {
            lane.retain(|slot| matches!(slot, Slot::Full(_)));
        }
    }

    fn took(&mut self, entry: &Entry) {
        self.len -= 1;
        self.bytes -= entry.message.body_len() as u64;
    }

    fn shrink(&mut self) {
        for lane in &mut self.lanes {
            lane.clear();
            if lane.capacity() > LANE_KEEP {
                lane.shrink_to(LANE_KEEP);
            }
        }
        self.top = 0;
        self.timed = false;
    }

    /// Takes everything, in order of delivery.
    pub fn drain(&mut self) -> Vec<Entry> {
        let mut all = Vec::with_capacity(self.len);
        while let Some(entry) = self.pop_front() {
            all.push(entry);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::message;

    fn entry(position: u64, priority: u8) -> Entry {
        Entry {
            message: message(b"x", priority),
            position,
            expires_ns: NEVER,
            since_ns: 0,
            failures: 0,
            redelivered: false,
            stored: false,
            reader: 0,
        }
    }

    fn order(ready: &mut Ready) -> Vec<u64> {
        ready.drain().iter().map(|entry| entry.position).collect()
    }

    #[test]
    fn a_returned_message_takes_its_old_place() {
        let mut ready = Ready::new(0);
        (0..6).for_each(|position| ready.push_back(entry(position, 0)));
        let taken: Vec<_> = (0..4).filter_map(|_| ready.pop_front()).collect();
        for entry in taken.into_iter().rev().filter(|entry| entry.position != 2) {
            ready.put_back(entry);
        }
        assert_eq!(order(&mut ready), [0, 1, 3, 4, 5]);
    }

    #[test]
    fn higher_priorities_go_first_and_keep_their_own_order() {
        let mut ready = Ready::new(5);
        for (position, priority) in [(0, 0), (1, 5), (2, 9), (3, 1), (4, 5)] {
            ready.push_back(entry(position, priority));
        }
        assert_eq!(order(&mut ready), [1, 2, 4, 3, 0]);
    }

    #[test]
    fn a_search_in_small_steps_sees_every_entry_once_and_what_came_back_again() {
        let mut ready = Ready::new(2);
        (0..9).for_each(|position| ready.push_back(entry(position, (position % 3) as u8)));
        let (mut cursor, mut seen) = (Cursor::default(), Vec::new());
        loop {
            let mut steps = 1;
            let found = ready.find(&mut cursor, &mut steps, |entry| {
                seen.push(entry.position);
                false
            });
            assert_eq!(found, None);
            if steps == 1 {
                break;
            }
        }
        assert_eq!(seen, [2, 5, 8, 1, 4, 7, 0, 3, 6]);
        let back = ready.take(4).expect("it is there");
        let lane = ready.put_back(back);
        cursor.rewind(lane, 4);
        assert_eq!(ready.find(&mut cursor, &mut 9, |_| true), Some(4));
    }

    #[test]
    fn taking_from_the_middle_leaves_the_rest_in_order() {
        let mut ready = Ready::new(0);
        (0..5).for_each(|position| ready.push_back(entry(position, 0)));
        let (mut cursor, mut steps) = (Cursor::default(), 100);
        assert_eq!(ready.find(&mut cursor, &mut steps, |entry| entry.position == 2), Some(2));
        assert_eq!(steps, 97);
        let taken = ready.take(2).expect("it is there");
        assert!(ready.take(2).is_none());
        assert_eq!(ready.len(), 4);
        ready.put_back(taken);
        assert_eq!(ready.len(), 5);
        assert!(ready.take(0).is_some());
        assert_eq!(order(&mut ready), [1, 2, 3, 4]);
        assert_eq!(ready.bytes(), 0);
    }

    #[test]
    fn what_was_taken_behind_an_unwanted_message_leaves_no_trace() {
        let mut ready = Ready::new(0);
        (0..1_000).for_each(|position| ready.push_back(entry(position, 0)));
        for position in 1..1_000 {
            assert!(ready.take(position).is_some());
        }
        assert!(ready.lanes[0].len() <= 2 + LANE_KEEP, "{} slots for one message", ready.lanes[0].len());
        assert_eq!(order(&mut ready), [0]);
    }
}
