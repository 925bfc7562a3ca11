//! Time in queue by type of message.
//!
//! Owns the names of types that came by and how long their messages waited, on the node and in each queue. A message's
//! type comes in (`type` of 0-9-1, `subject` of 1.0) and becomes a small number; sketches go out by name. It must never
//! keep more than its limits allow, whatever peers send: what is beyond them is counted as `other`. Rule:
//! docs/guides/management.md, "Latencies"; a message without a type costs a look at one byte.

use super::Sketch;
use crate::hash::{Map, Seeded};

/// Types that the node keeps apart.
pub const TYPES_MAX: usize = 256;
/// Types that one queue keeps apart.
pub const QUEUE_TYPES_MAX: usize = 16;
/// Longer names are not kept.
pub const TYPE_BYTES_MAX: usize = 128;
/// The type of all others.
pub const OTHER: &[u8] = b"other";

/// Stands for a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeId(u16);

impl TypeId {
    /// Of messages that have none.
    pub const NONE: Self = Self(0);
    const OTHER: Self = Self(1);
}

/// The types of a node.
pub struct Types {
    numbers: Map<Box<[u8]>, TypeId>,
    /// In the order of their numbers, from `other` on.
    all: Vec<(Box<[u8]>, Sketch)>,
    last: (Vec<u8>, TypeId),
}

impl Types {
    pub fn new(seed: Seeded) -> Self {
        let mut types = Self { numbers: Map::with_hasher(seed), all: Vec::new(), last: (Vec::new(), TypeId::NONE) };
        types.insert(OTHER);
        types
    }

    fn insert(&mut self, name: &[u8]) -> TypeId {
        self.all.push((name.into(), Sketch::default()));
        let id = TypeId(self.all.len() as u16);
        self.numbers.insert(name.into(), id);
        id
    }

    /// The number of a type.
    #[inline]
    pub fn id_of(&mut self, name: &[u8]) -> TypeId {
        if self.last.0 == name { self.last.1 } else { self.look_up(name) }
    }

    fn look_up(&mut self, name: &[u8]) -> TypeId {
        if name.is_empty() {
            return TypeId::NONE;
        }
        let id = match self.numbers.get(name) {
            Some(id) => *id,
            None if self.all.len() <= TYPES_MAX && name.len() <= TYPE_BYTES_MAX => self.insert(name),
            None => TypeId::OTHER,
        };
        self.last.0.clear();
        self.last.0.extend_from_slice(name);
        self.last.1 = id;
        id
    }

    /// Messages of a type waited so long.
    pub fn add(&mut self, id: TypeId, us: u64, count: u32, now_ns: u64) {
        if let Some((_, sketch)) = self.at(id).and_then(|at| self.all.get_mut(at)) {
            sketch.add(us, count, now_ns);
        }
    }

    fn at(&self, id: TypeId) -> Option<usize> {
        usize::from(id.0).checked_sub(1)
    }

    /// Every type with what its messages waited on this node.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Sketch)> {
        self.all.iter().map(|(name, sketch)| (&**name, sketch))
    }

    /// The same for one queue.
    pub fn of<'q>(&'q self, queue: &'q ByType) -> impl Iterator<Item = (&'q [u8], &'q Sketch)> {
        queue.0.iter().filter_map(|(id, sketch)| Some((&*self.all.get(self.at(*id)?)?.0, sketch)))
    }
}

/// The types of one queue.
#[derive(Clone, Debug, Default)]
pub struct ByType(Vec<(TypeId, Sketch)>);

impl ByType {
    /// Messages of a type waited so long.
    pub fn add(&mut self, id: TypeId, us: u64, count: u32, now_ns: u64) {
        let is_known = self.0.iter().any(|row| row.0 == id);
        let id = if is_known || self.0.len() < QUEUE_TYPES_MAX { id } else { TypeId::OTHER };
        match self.0.iter_mut().find(|row| row.0 == id) {
            Some((_, sketch)) => sketch.add(us, count, now_ns),
            None => {
                let mut sketch = Sketch::default();
                sketch.add(us, count, now_ns);
                self.0.push((id, sketch));
            }
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_beyond_the_limits_are_counted_together() {
        let mut types = Types::new(Seeded(7));
        let mut queue = ByType::default();
        for number in 0..1_000 {
            let id = types.id_of(format!("type-{number}").as_bytes());
            types.add(id, 10, 1, 0);
            queue.add(id, 10, 1, 0);
        }
        let long = types.id_of(&[b'x'; TYPE_BYTES_MAX + 1]);
        assert_eq!(long, TypeId::OTHER);
        assert_eq!(types.id_of(OTHER), TypeId::OTHER);
        assert_eq!(types.id_of(b""), TypeId::NONE);
        let all: Vec<(&[u8], u64)> = types.iter().map(|(name, sketch)| (name, sketch.len())).collect();
        assert_eq!((all.len(), all[0]), (TYPES_MAX + 1, (OTHER, 1_000 - TYPES_MAX as u64)));
        let here: Vec<(&[u8], u64)> = types.of(&queue).map(|(name, sketch)| (name, sketch.len())).collect();
        assert_eq!(here.len(), QUEUE_TYPES_MAX + 1);
        assert_eq!(here[QUEUE_TYPES_MAX], (OTHER, 1_000 - QUEUE_TYPES_MAX as u64));
    }

    #[test]
    fn a_type_keeps_its_number() {
        let mut types = Types::new(Seeded(7));
        let (order, refund) = (types.id_of(b"order"), types.id_of(b"refund"));
        assert_eq!((types.id_of(b"order"), types.id_of(b"refund")), (order, refund));
        assert_ne!(order, refund);
    }
}
