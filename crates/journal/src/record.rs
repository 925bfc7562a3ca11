//! What records say: batches, messages, acknowledgements, barriers.
//!
//! Owns the payloads. Values become bytes at the end of a buffer; bytes become borrowed values, or `None` when they
//! are malformed. A message's head and body are the engine's: they pass through unread. It must never know where a
//! record lies. Rule: docs/internals/segment.md, "Records".

use crate::bytes::Reader;
use crate::format::POSITION_MAX;
use crate::ranges::Ranges;

/// A queue that holds a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The queue's number, which is never used again.
    pub queue_no: u64,
    /// Where the message stands in the queue; no two messages of a queue share a position. What is not transient must
    /// come at rising positions, after a restart from `RecoveredQueue::next_position` on; transient ones may come late.
    pub position: u64,
    /// When it expires in this queue, in milliseconds since 1970; 0 for never.
    pub expires_ms: u64,
    /// On disk for want of memory only: gone after a restart.
    pub transient: bool,
}

const TRANSIENT: u64 = 1 << 63;
pub(crate) const TARGET_BYTES: usize = 24;
pub(crate) const MESSAGE_PREFIX_BYTES: usize = 8;
pub(crate) const BATCH_PAYLOAD_BYTES: usize = 24;

impl Target {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; TARGET_BYTES];
        bytes[..8].copy_from_slice(&self.queue_no.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.position.to_le_bytes());
        bytes[16..].copy_from_slice(&self.expires().to_le_bytes());
        out.extend_from_slice(&bytes);
    }

    /// Time and transience in one word, as files hold them.
    pub(crate) fn expires(&self) -> u64 {
        self.expires_ms.min(TRANSIENT - 1) | if self.transient { TRANSIENT } else { 0 }
    }

    pub(crate) fn new(queue_no: u64, position: u64, expires: u64) -> Self {
        Self { queue_no, position, expires_ms: expires & !TRANSIENT, transient: expires & TRANSIENT != 0 }
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        Some(Self::new(reader.u64()?, reader.u64()?, reader.u64()?))
    }
}

/// A MESSAGE payload.
#[derive(Clone, Debug)]
pub(crate) struct Message<'a> {
    targets: &'a [u8],
    pub(crate) head: &'a [u8],
    pub(crate) body: &'a [u8],
}

impl<'a> Message<'a> {
    #[inline]
    pub(crate) fn decode(payload: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        let (head, targets) = (reader.u32()? as usize, reader.u32()? as usize);
        let targets = reader.take(targets.checked_mul(TARGET_BYTES)?)?;
        let message = Self { targets, head: reader.take(head)?, body: reader.rest() };
        message.targets().all(|target| target.position <= POSITION_MAX).then_some(message)
    }

    #[inline]
    pub(crate) fn targets(&self) -> impl Iterator<Item = Target> + 'a {
        self.targets.chunks_exact(TARGET_BYTES).filter_map(Target::decode)
    }
}

/// Writes all of a MESSAGE payload but its body.
pub(crate) fn encode_message_front(targets: &[Target], head: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(head.len() as u32).to_le_bytes());
    out.extend_from_slice(&(targets.len() as u32).to_le_bytes());
    targets.iter().for_each(|target| target.encode(out));
    out.extend_from_slice(head);
}

/// A BATCH payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHead {
    pub(crate) number: u64,
    /// Every batch up to this one was synced when this one was handed to the disk.
    pub(crate) synced: u64,
    /// The batch's bytes, this record included.
    pub(crate) bytes: u32,
    /// The records that follow.
    pub(crate) records: u32,
}

impl BatchHead {
    pub(crate) fn encode(&self) -> [u8; BATCH_PAYLOAD_BYTES] {
        let mut out = [0; BATCH_PAYLOAD_BYTES];
        out[..8].copy_from_slice(&self.number.to_le_bytes());
        out[8..16].copy_from_slice(&self.synced.to_le_bytes());
        out[16..20].copy_from_slice(&self.bytes.to_le_bytes());
        out[20..].copy_from_slice(&self.records.to_le_bytes());
        out
    }

    pub(crate) fn decode(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        let head = Self { number: reader.u64()?, synced: reader.u64()?, bytes: reader.u32()?, records: reader.u32()? };
        // Numbers are counted by ones: what passes the largest position was not counted.
        (head.number <= POSITION_MAX && head.synced < head.number).then_some(head)
    }
}

/// An ACKS payload: these positions of this queue are settled.
pub(crate) fn decode_acks(payload: &[u8]) -> Option<(u64, Ranges)> {
    let mut reader = Reader::new(payload);
    Some((reader.u64()?, Ranges::decode(&mut reader)?))
}

/// A QUEUE_DELETED payload.
pub(crate) fn decode_deleted(payload: &[u8]) -> Option<u64> {
    Reader::new(payload).u64()
}

/// A BARRIER payload: the barrier, until when its ids count, and the ids, which are the engine's.
pub(crate) fn decode_barrier(payload: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut reader = Reader::new(payload);
    Some((reader.u64()?, reader.u64()?, reader.rest()))
}
