//! Slots with generations: the only way things name each other inside the engine.
//!
//! Owns `Slab` and its typed `Id`. Values come in by `insert` and leave by `remove`; an id of something gone finds
//! nothing, so a queue may be deleted while a hundred channels still hold deliveries of it. It must never hand out a
//! slot twice under one id. Rule: decision 0001 (one engine owns everything; ids, not references, cross between its
//! parts).

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// Names one value of a `Slab<T>`: slot in the low half, generation in the high half.
pub struct Id<T>(u64, PhantomData<fn() -> T>);

impl<T> Id<T> {
    /// The id as a plain number, for peers and for Python.
    #[inline]
    pub fn raw(self) -> u64 {
        self.0
    }
    /// The id behind a number from outside; it finds nothing if it never was one.
    #[inline]
    pub fn from_raw(raw: u64) -> Self {
        Self(raw, PhantomData)
    }
    #[inline]
    fn slot(self) -> usize {
        (self.0 & 0xFFFF_FFFF) as usize
    }
    #[inline]
    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl<T> Clone for Id<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<T> Eq for Id<T> {}
impl<T> PartialOrd for Id<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Id<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}
impl<T> Hash for Id<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.slot(), self.generation())
    }
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A growable table of slots.
pub struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    /// Makes room for so many in all, so that nothing is moved before there are more.
    pub fn make_room(&mut self, count: usize) {
        self.slots.reserve(count.saturating_sub(self.slots.len()));
    }

    /// Puts a value in and names it.
    pub fn insert(&mut self, value: T) -> Id<T> {
        self.len += 1;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot { generation: 0, value: None });
                (self.slots.len() - 1) as u32
            }
        };
        let place = &mut self.slots[slot as usize];
        // Generations start at 1, so that no id is ever the number 0.
        place.generation = place.generation.wrapping_add(1).max(1);
        place.value = Some(value);
        Id(u64::from(place.generation) << 32 | u64::from(slot), PhantomData)
    }

    /// Takes a value out; its id is dead from now on.
    pub fn remove(&mut self, id: Id<T>) -> Option<T> {
        let place = self.slots.get_mut(id.slot())?;
        if place.generation != id.generation() {
            return None;
        }
        let value = place.value.take()?;
        self.free.push(id.slot() as u32);
        self.len -= 1;
        Some(value)
    }

    /// The value, if it is still there.
    #[inline]
    pub fn get(&self, id: Id<T>) -> Option<&T> {
        let place = self.slots.get(id.slot())?;
        if place.generation == id.generation() { place.value.as_ref() } else { None }
    }

    /// The value for changing, if it is still there.
    #[inline]
    pub fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        let place = self.slots.get_mut(id.slot())?;
        if place.generation == id.generation() { place.value.as_mut() } else { None }
    }

    /// How many slots there are, empty ones among them.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// What is in a slot.
    pub fn at(&self, slot: usize) -> Option<(Id<T>, &T)> {
        let place = self.slots.get(slot)?;
        Some((Id(u64::from(place.generation) << 32 | slot as u64, PhantomData), place.value.as_ref()?))
    }

    /// Everything there is, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        self.slots.iter().enumerate().filter_map(|(slot, place)| {
            let value = place.value.as_ref()?;
            Some((Id(u64::from(place.generation) << 32 | slot as u64, PhantomData), value))
        })
    }

    /// Everything there is, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|place| place.value.as_mut())
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_id_finds_nothing_after_its_slot_was_reused() {
        let mut slab = Slab::default();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_eq!(first.slot(), second.slot());
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"b"));
        assert_eq!(slab.len(), 1);
    }

    #[test]
    fn a_number_from_outside_finds_nothing() {
        let slab: Slab<u8> = Slab::default();
        assert!(slab.get(Id::from_raw(u64::MAX)).is_none());
        assert!(slab.get(Id::from_raw(0)).is_none());
    }
}
