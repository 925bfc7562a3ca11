//! Whose turn it is.
//!
//! Owns the ring of consumers of one queue: all of them in order of arrival, and those that can take a message now, by
//! priority and round robin. Consumers join, leave, go to sleep when they have no credit and wake when they have. It
//! must never know how a consumer is reached. Rules: round robin among equals, higher consumer priorities first while
//! they can take, one at a time for single active consumers (RabbitMQ).

use std::collections::VecDeque;

use super::doubts::Peer;
use super::ready::Cursor;
use super::scan::Scan;
use crate::slab::Id;
use crate::stream::reader::Reader;

/// One subscription: a 0-9-1 consumer, a 1.0 sending link, or Python itself.
#[derive(Debug)]
pub struct Consumer {
    pub queue: super::QueueId,
    /// The raw id of its connection; 0 for a local consumer.
    pub conn: u64,
    pub target: Target,
    pub priority: i32,
    pub exclusive: bool,
    /// What it wants to see, if not everything.
    pub filter: Option<Box<crate::filter::Filter>>,
    /// Drops what it does not want, because the queue is its own.
    pub discards: bool,
    /// Reads without taking (distribution mode copy).
    pub browse: bool,
    /// Where a browser or a filter has read to.
    pub cursor: Cursor,
    /// What a browser or a filter reads where the queue is on disk.
    pub scan: Option<Box<Scan>>,
    /// Its place, if it reads a stream.
    pub reader: Option<Box<Reader>>,
    /// The node behind it, if it is one that can be asked what it has.
    pub peer: Option<Peer>,
    /// Deliveries to it.
    pub delivered: u64,
    awake: bool,
}

/// Where deliveries for a consumer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Amqp091 { channel: u16, slot: u32 },
    Amqp10 { session: u16, handle: u32 },
    Local { handle: u64 },
}

/// Names a consumer.
pub type ConsumerId = Id<Consumer>;

impl Consumer {
    pub fn new(queue: super::QueueId, conn: u64, target: Target) -> Self {
        Self {
            queue,
            conn,
            target,
            priority: 0,
            exclusive: false,
            filter: None,
            discards: false,
            browse: false,
            cursor: Cursor::default(),
            scan: None,
            reader: None,
            peer: None,
            delivered: 0,
            awake: false,
        }
    }

    /// Does it look for its messages instead of taking the first?
    #[inline]
    pub fn searches(&self) -> bool {
        self.browse || self.filter.is_some() && !self.discards
    }

    /// A message came back to this place, and is looked at again.
    pub fn rewind(&mut self, lane: usize, position: u64) {
        self.cursor.rewind(lane, position);
        self.scan.iter_mut().for_each(|scan| scan.rewind(position));
    }

    /// Has a search behind the window of its queue seen everything in front of this position?
    pub fn has_searched(&self, position: u64) -> bool {
        self.scan.as_ref().is_some_and(|scan| scan.has_reached(position))
    }
}

/// The consumers of one queue.
#[derive(Debug, Default)]
pub struct Ring {
    /// All consumers, oldest first.
    members: Vec<(ConsumerId, i32)>,
    /// Those that can take a message, highest priority first.
    turns: Vec<(i32, VecDeque<ConsumerId>)>,
    /// Searching consumers that have seen everything; new messages wake them.
    searched: Vec<ConsumerId>,
}

impl Ring {
    pub fn len(&self) -> usize {
        self.members.len()
    }
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
    /// All consumers, oldest first.
    pub fn members(&self) -> impl Iterator<Item = ConsumerId> {
        self.members.iter().map(|member| member.0)
    }

    pub fn join(&mut self, id: ConsumerId, priority: i32) {
        self.members.push((id, priority));
    }

    pub fn leave(&mut self, id: ConsumerId) {
        self.members.retain(|member| member.0 != id);
        self.turns.iter_mut().for_each(|turn| turn.1.retain(|other| *other != id));
        self.turns.retain(|turn| !turn.1.is_empty());
        self.searched.retain(|other| *other != id);
    }

    /// The consumer that a single-active queue serves: the oldest of the highest priority.
    pub fn single(&self) -> Option<ConsumerId> {
        let best = self.members.iter().map(|member| member.1).max()?;
        self.members.iter().find(|member| member.1 == best).map(|member| member.0)
    }

    /// It can take a message: it goes to the end of its priority's line.
    pub fn wake(&mut self, id: ConsumerId, consumer: &mut Consumer) {
        if std::mem::replace(&mut consumer.awake, true) {
            return;
        }
        let priority = consumer.priority;
        match self.turns.iter_mut().find(|turn| turn.0 == priority) {
            Some(turn) => turn.1.push_back(id),
            None => {
                let at = self.turns.partition_point(|turn| turn.0 > priority);
                self.turns.insert(at, (priority, VecDeque::from([id])));
            }
        }
    }

    /// Whose turn is it?
    #[inline]
    pub fn next(&self) -> Option<ConsumerId> {
        self.turns.iter().find_map(|turn| turn.1.front().copied())
    }

    /// The one whose turn it was has taken a message: the next one's turn.
    #[inline]
    pub fn rotate(&mut self) {
        if let Some(turn) = self.turns.iter_mut().find(|turn| !turn.1.is_empty()) {
            turn.1.rotate_left(1);
        }
    }

    /// The one that was just served is first again: it had looked and found nothing.
    pub fn unrotate(&mut self) {
        if let Some(turn) = self.turns.iter_mut().find(|turn| !turn.1.is_empty()) {
            turn.1.rotate_right(1);
        }
    }

    /// The one whose turn it is cannot take a message now.
    pub fn sleep(&mut self, consumer: &mut Consumer) {
        consumer.awake = false;
        if let Some(turn) = self.turns.iter_mut().find(|turn| !turn.1.is_empty()) {
            turn.1.pop_front();
        }
        self.turns.retain(|turn| !turn.1.is_empty());
    }

    /// The one whose turn it is has looked at everything there is.
    pub fn park_searched(&mut self, id: ConsumerId, consumer: &mut Consumer) {
        self.sleep(consumer);
        if !self.searched.contains(&id) {
            self.searched.push(id);
        }
    }

    /// Searching consumers to wake because there is something new.
    #[inline]
    pub fn take_searched(&mut self) -> Vec<ConsumerId> {
        std::mem::take(&mut self.searched)
    }
    #[inline]
    pub fn has_searched(&self) -> bool {
        !self.searched.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    fn ring_of(priorities: &[i32]) -> (Ring, Slab<Consumer>, Vec<ConsumerId>) {
        let (mut ring, mut slab, mut ids) = (Ring::default(), Slab::default(), Vec::new());
        for priority in priorities {
            let mut consumer = Consumer::new(Id::from_raw(1), 1, Target::Local { handle: 0 });
            consumer.priority = *priority;
            let id = slab.insert(consumer);
            ring.join(id, *priority);
            if let Some(consumer) = slab.get_mut(id) {
                ring.wake(id, consumer);
            }
            ids.push(id);
        }
        (ring, slab, ids)
    }

    fn serve(ring: &mut Ring, count: usize) -> Vec<ConsumerId> {
        let mut served = Vec::new();
        for _ in 0..count {
            served.extend(ring.next());
            ring.rotate();
        }
        served
    }

    #[test]
    fn equals_are_served_in_turn() {
        let (mut ring, _, ids) = ring_of(&[0, 0, 0]);
        assert_eq!(serve(&mut ring, 4), [ids[0], ids[1], ids[2], ids[0]]);
    }

    #[test]
    fn the_higher_priority_takes_all_until_it_sleeps() {
        let (mut ring, mut slab, ids) = ring_of(&[0, 10]);
        assert_eq!(serve(&mut ring, 2), [ids[1], ids[1]]);
        ring.sleep(slab.get_mut(ids[1]).expect("alive"));
        assert_eq!(serve(&mut ring, 1), [ids[0]]);
        assert_eq!(ring.single(), Some(ids[1]));
        ring.leave(ids[1]);
        assert_eq!((ring.single(), ring.len()), (Some(ids[0]), 1));
    }
}
