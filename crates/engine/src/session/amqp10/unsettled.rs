//! Deliveries that the peer has not settled yet.
//!
//! Owns them by delivery id, for one session. Deliveries come in as they are sent, in order of their ids, and leave one
//! by one, by ranges or by link. It must never grow with what was settled: places of settled deliveries are given up.
//! Rule: ids rise by one and wrap (RFC 1982); some are missing because they went settled.

use std::collections::VecDeque;

use crate::queue::QueueId;
use crate::queue::doubts::Peer;
use crate::queue::ready::Entry;

/// A queue of unsettled deliveries shorter than this is not worth compacting.
const COMPACT_MIN: usize = 64;

/// A delivery that the peer has not settled.
pub(super) struct Held {
    pub queue: QueueId,
    pub entry: Entry,
    pub handle: u32,
    /// The outlet's number.
    pub link: u32,
    pub tag: u32,
    /// The node that it went to, if that is to be asked should it give no answer.
    pub peer: Option<Peer>,
    /// It was only asked whether it has the message.
    pub asked: bool,
    /// Its end is told to whoever watches the link.
    pub reports: bool,
}

/// Unsettled deliveries in order of their ids, which rise and wrap; some are missing because they went settled.
#[derive(Default)]
pub(super) struct Unsettled {
    items: VecDeque<(u32, Option<Held>)>,
    live: usize,
}

impl Unsettled {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    #[inline]
    pub(super) fn hold(&mut self, id: u32, held: Held) {
        self.items.push_back((id, Some(held)));
        self.live += 1;
    }

    /// Where the delivery is, or would be.
    #[inline]
    fn index(&self, id: u32) -> usize {
        let Some((base, _)) = self.items.front() else { return 0 };
        let ahead = id.wrapping_sub(*base);
        if ahead > i32::MAX as u32 {
            return 0;
        }
        match self.items.get(ahead as usize) {
            Some((other, _)) if *other == id => ahead as usize,
            _ => self.items.partition_point(|(other, _)| other.wrapping_sub(*base) < ahead),
        }
    }

    #[inline]
    pub(super) fn take(&mut self, id: u32) -> Option<Held> {
        let index = self.index(id);
        let item = self.items.get_mut(index).filter(|item| item.0 == id)?;
        let held = item.1.take()?;
        self.live -= 1;
        while matches!(self.items.front(), Some((_, None))) {
            self.items.pop_front();
        }
        if self.items.len() > COMPACT_MIN && self.live * 4 < self.items.len() {
            self.items.retain(|item| item.1.is_some());
        }
        Some(held)
    }

    /// A delivery that a transaction had, and gave back.
    pub(super) fn restore(&mut self, id: u32, held: Held) {
        let index = self.index(id);
        self.live += 1;
        match self.items.get_mut(index) {
            Some(item) if item.0 == id => item.1 = Some(held),
            _ => self.items.insert(index, (id, Some(held))),
        }
    }

    /// Ids of the unsettled deliveries from `first` to `last`.
    pub(super) fn within(&self, first: u32, last: u32) -> Vec<u32> {
        let span = last.wrapping_sub(first);
        let items = self.items.range(self.index(first).min(self.items.len())..);
        let inside = items.take_while(|item| item.0.wrapping_sub(first) <= span);
        inside.filter(|item| item.1.is_some()).map(|item| item.0).collect()
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Held> + use<> {
        self.live = 0;
        std::mem::take(&mut self.items).into_iter().filter_map(|item| item.1)
    }

    /// Everything that one outlet sent.
    pub(super) fn take_link(&mut self, link: u32) -> Vec<(u32, Held)> {
        let mut taken = Vec::new();
        for (id, item) in &mut self.items {
            if let Some(held) = item.take_if(|held| held.link == link) {
                taken.push((*id, held));
            }
        }
        self.live -= taken.len();
        self.items.retain(|item| item.1.is_some());
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::ready::NEVER;
    use crate::slab::Id;
    use crate::testing::message;

    fn held(tag: u32, link: u32) -> Held {
        let entry = Entry {
            message: message(b"x", 0),
            position: 0,
            expires_ns: NEVER,
            since_ns: 0,
            failures: 0,
            redelivered: false,
            stored: false,
            reader: 0,
        };
        Held { queue: Id::from_raw(1), entry, handle: 0, link, tag, peer: None, asked: false, reports: false }
    }

    #[test]
    fn ids_are_found_across_the_wrap_and_across_gaps() {
        let mut unsettled = Unsettled::default();
        let ids: Vec<u32> = (0..10).map(|i: u32| (u32::MAX - 5).wrapping_add(i * 2)).collect();
        ids.iter().for_each(|id| unsettled.hold(*id, held(*id, id % 4)));
        assert!(unsettled.take(ids[0].wrapping_add(1)).is_none());
        assert!(unsettled.take(ids[0].wrapping_sub(1)).is_none());
        assert_eq!(unsettled.take(ids[4]).map(|held| held.tag), Some(ids[4]));
        assert!(unsettled.take(ids[4]).is_none());
        assert_eq!(unsettled.within(ids[3], ids[6]), [ids[3], ids[5], ids[6]]);
        assert_eq!(unsettled.within(ids[0].wrapping_sub(7), ids[1]), [ids[0], ids[1]]);
        unsettled.restore(ids[4], held(7, 9));
        assert_eq!(unsettled.take_link(9).len(), 1);
        assert_eq!(unsettled.within(ids[0], ids[9]).len(), 9);
    }

    #[test]
    fn one_old_delivery_does_not_keep_the_places_of_settled_ones() {
        let mut unsettled = Unsettled::default();
        unsettled.hold(0, held(0, 0));
        for id in 1..10_000 {
            unsettled.hold(id, held(id, 0));
            assert!(unsettled.take(id).is_some());
        }
        assert!(unsettled.items.len() <= COMPACT_MIN + 1, "{}", unsettled.items.len());
        assert!(unsettled.take(0).is_some());
        assert!(unsettled.items.is_empty());
    }
}
