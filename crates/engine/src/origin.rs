//! Ids of messages that came from other nodes: where from, where to, and the number there.
//!
//! Owns how such an id is made for the node's own barrier, and how numbers are read. Identities come in as relay links
//! carry them, with the words that a goal here is known by; ids go out. It must never remember a message: that is
//! `barrier.rs`. Rule: decision 0035; an identity that some other program made up is a digest as a whole.

use crate::barrier::{ID_BYTES, Id, digest};

/// Bytes of an id that stand for where a message came from and goes to; its number there is the rest.
pub(crate) const LANE_BYTES: usize = 8;

/// Ids of messages that came from other nodes, each on its way to one goal here. Origin and goal are the same for most
/// messages of a link, so their digest is made when they change; the number of the message does the rest.
#[derive(Default)]
pub struct FabricIds {
    /// Origin and goal of the message at hand, and those that `lane` stands for.
    parts: Vec<u8>,
    known: Vec<u8>,
    lane: [u8; LANE_BYTES],
    number: Option<u64>,
}

impl FabricIds {
    /// The next message, by the identity it carries.
    pub fn begin(&mut self, id: &[u8]) {
        let digits = numbered(id);
        self.number = digits.and_then(number_of);
        self.parts.clear();
        self.part(&id[..id.len() - digits.map_or(0, <[u8]>::len)]);
    }

    /// Adds a word of what the goal is known by.
    pub fn part(&mut self, part: &[u8]) {
        self.parts.extend_from_slice(&(part.len() as u32).to_le_bytes());
        self.parts.extend_from_slice(part);
    }

    /// The id of the message among all others.
    pub fn finish(&mut self) -> Id {
        // An identity that some other program made up is a digest as a whole.
        let Some(number) = self.number else { return digest(b'g', &self.parts) };
        if self.parts != self.known {
            self.lane.copy_from_slice(&digest(b'n', &self.parts)[..LANE_BYTES]);
            self.known.clone_from(&self.parts);
        }
        let mut id = [0; ID_BYTES];
        id[..LANE_BYTES].copy_from_slice(&self.lane);
        id[LANE_BYTES..].copy_from_slice(&number.to_le_bytes());
        id
    }
}

/// The digits at the end of an identity, if nodes write such ones.
pub fn numbered(id: &[u8]) -> Option<&[u8]> {
    let at = id.iter().rposition(|byte| *byte == b':')?;
    id.get(at + 1..).filter(|digits| number_of(digits).is_some())
}

/// The id of another message of the same origin on its way to the same goal.
pub fn with_number(mut id: Id, digits: &[u8]) -> Option<Id> {
    id[LANE_BYTES..].copy_from_slice(&number_of(digits)?.to_le_bytes());
    Some(id)
}

/// A number as nodes write it: there is one way to write each.
#[inline]
fn number_of(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 1 && digits[0] == b'0' {
        return None;
    }
    let (eights, rest) = digits.as_chunks();
    let join = |number: u64, eight: &[u8; 8]| number.checked_mul(100_000_000)?.checked_add(eight_of(*eight)?);
    let number = eights.iter().try_fold(0, join)?;
    rest.iter().try_fold(number, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Eight digits at once: neighbours are put together to numbers of two digits, these to four, and those to eight.
#[inline]
fn eight_of(digits: [u8; 8]) -> Option<u64> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let text = u64::from_le_bytes(digits);
    // A digit is 0x3N, and stays so with six added.
    let is_3x = |text: u64| text & (0xF0 * EACH) == 0x30 * EACH;
    if !is_3x(text) || !is_3x(text.wrapping_add(6 * EACH)) {
        return None;
    }
    let ones = text - 0x30 * EACH;
    let twos = (ones * 10 + (ones >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (twos * 100 + (twos >> 16)) & 0x0000_FFFF_0000_FFFF;
    Some((fours * 10_000 + (fours >> 32)) & 0xFFFF_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id of a message on its way to one queue.
    fn fabric_id(ids: &mut FabricIds, identity: &str, queue: &str) -> Id {
        ids.begin(identity.as_bytes());
        ids.part(queue.as_bytes());
        ids.finish()
    }

    #[test]
    fn ids_of_messages_from_other_nodes_differ_by_origin_goal_and_number() {
        let identities = [
            "a:1",
            "a:2",
            "a:10",
            "b:1",
            "a:b:1",
            "a",
            "a:",
            "",
            ":",
            "a:01",
            "a:0",
            "a:00",
            "a:x1",
            "a:+1",
            "a:-1",
            "a:18446744073709551615",
            "a:18446744073709551616",
            "a:118446744073709551615",
        ];
        let (mut ids, mut seen) = (FabricIds::default(), std::collections::HashSet::new());
        for identity in identities {
            for queue in ["q", "", "a:1"] {
                assert!(seen.insert(fabric_id(&mut ids, identity, queue)), "{identity} to {queue}");
            }
        }
        let mut again = FabricIds::default();
        for queue in ["q", "", "a:1"] {
            for identity in identities {
                assert!(seen.contains(&fabric_id(&mut again, identity, queue)), "whatever came before");
            }
        }
        assert_eq!(seen.len(), identities.len() * 3);
    }

    #[test]
    fn a_number_is_read_as_it_is_written() {
        let powers = (0..20).map(|power| 10_u64.pow(power));
        for number in powers.flat_map(|power| [power - 1, power, power + 1, power / 7 * 6]).chain([u64::MAX]) {
            let text = number.to_string();
            assert_eq!(number_of(text.as_bytes()), Some(number));
            for at in 0..text.len() {
                for other in (0..=255_u8).filter(|other| !other.is_ascii_digit()) {
                    let mut wrong = text.clone().into_bytes();
                    wrong[at] = other;
                    assert_eq!(number_of(&wrong), None, "{wrong:?}");
                }
            }
        }
        for wrong in
            ["", "00", "01", "0123456789", "18446744073709551616", "99999999999999999999", "118446744073709551615"]
        {
            assert_eq!(number_of(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
