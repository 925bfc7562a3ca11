//! Streams in parts: one name, and a stream for each share of its messages.
//!
//! Owns which part a message goes to. A message for the whole comes in; the part that its key chooses goes out, the
//! same for the same key as long as the number of parts is the same. Readers of the whole have a lane in each part. It
//! must never keep a message itself. Rule: MurmurHash3 (32 bits) of the key, seeded as RabbitMQ's clients do for super
//! streams, modulo the number of parts.

use crate::broker::Broker;
use crate::fields;
use crate::message::Message;
use crate::queue::QueueId;

/// The seed that RabbitMQ's stream clients use.
const SEED: u32 = 104_729;

impl Broker {
    /// The part of a stream that a message goes to; the stream itself if it has none.
    #[inline]
    pub(crate) fn part_of(&self, id: QueueId, message: &Message) -> Option<QueueId> {
        let queue = self.queues.get(id)?;
        let parts = &queue.settings.parts;
        if parts.is_empty() {
            return Some(id);
        }
        let at = hash_of(message) as usize % parts.len();
        self.find_queue(queue.vhost, &parts[at])
    }

    /// The parts of a stream in order; itself if it has none.
    pub(crate) fn parts(&self, id: QueueId) -> Vec<QueueId> {
        let Some(queue) = self.queues.get(id) else { return Vec::new() };
        match queue.settings.parts.is_empty() {
            true => vec![id],
            false => queue.settings.parts.iter().filter_map(|name| self.find_queue(queue.vhost, name)).collect(),
        }
    }
}

/// The hash of a message's key: its routing key; by the default exchange, where that is the stream's own name, its id;
/// without one, its number, which spreads.
fn hash_of(message: &Message) -> u32 {
    if !message.exchange.is_empty() {
        return murmur3(&message.routing_key);
    }
    match fields::message_id(message) {
        Some(id) => murmur3(&id),
        None => murmur3(&message.traits.serial.to_le_bytes()),
    }
}

/// MurmurHash3, x86, 32 bits.
fn murmur3(key: &[u8]) -> u32 {
    let mix = |block: u32| block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let blocks = key.chunks_exact(4);
    let rest = blocks.remainder();
    let mut hash = blocks.fold(SEED, |hash, block| {
        let block = block.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        (hash ^ mix(block)).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    });
    if !rest.is_empty() {
        hash ^= mix(rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)));
    }
    hash ^= key.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spread_and_stay() {
        let mut counts = [0; 7];
        for number in 0..70_000 {
            counts[murmur3(format!("key-{number}").as_bytes()) as usize % 7] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert_eq!(murmur3(b"hello"), murmur3(b"hello"));
        let short: Vec<u32> = [&b""[..], b"a", b"ab", b"abc", b"abcd", b"abcde"].map(murmur3).to_vec();
        assert!(short.iter().enumerate().all(|(at, hash)| !short[..at].contains(hash)), "{short:?}");
    }
}
