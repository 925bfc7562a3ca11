//! The head of a stored message: everything about it but its body, as bytes.
//!
//! Owns the layout that the engine writes with every message and that readers without an engine understand: traits,
//! names, deaths, and the message's own head in its own protocol. Values become bytes at the end of a buffer; bytes
//! become borrowed values, or `None` where they are not that. The rest of this crate passes heads through unread. It
//! must never look into the protocols' parts. Rule: docs/internals/segment.md, "What the engine writes".

use std::ops::Range;

use crate::bytes::Reader;

/// Version of this encoding, the first byte of every head.
const VERSION: u8 = 2;
const AMQP10: u8 = 1;
const DURABLE: u8 = 2;
const COPIED: u8 = 4;
const RELAYED: u8 = 8;
/// No time to live.
const NEVER: u64 = u64::MAX;

/// A message without its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// `own` is in the format of AMQP 1.0, else of 0-9-1.
    pub is_amqp10: bool,
    pub durable: bool,
    /// Was routed by its CC header too.
    pub copied: bool,
    /// Came from another node: what it says of its identity and its way is true.
    pub relayed: bool,
    pub priority: u8,
    pub ttl_ms: Option<u64>,
    /// Deliveries that failed.
    pub delivery_count: u32,
    /// Arrival at the node, in microseconds since 1970.
    pub arrived_us: u64,
    pub serial: u64,
    pub exchange: &'a [u8],
    pub routing_key: &'a [u8],
    pub deaths: Deaths<'a>,
    /// 0-9-1 property flags and values, or the AMQP 1.0 sections before the body.
    pub own: &'a [u8],
}

/// Where a message died before, newest first; the count in front of them is in the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deaths<'a>(&'a [u8]);

/// One death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDeath<'a> {
    pub queue: &'a [u8],
    pub reason: &'a [u8],
    pub count: u64,
    pub time_s: u64,
    pub exchange: &'a [u8],
    pub routing_keys: Vec<&'a [u8]>,
    pub expiration_ms: Option<u64>,
}

impl<'a> Envelope<'a> {
    /// Where arrival and serial stand, which no two messages have in common: behind version, flags, priority, time to
    /// live and count of deliveries.
    pub const OWN_FACTS: Range<usize> = 15..31;

    /// Reads what `encode` wrote.
    #[inline]
    pub fn decode(head: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(head);
        let (version, flags, priority) = (reader.u8()?, reader.u8()?, reader.u8()?);
        if version != VERSION {
            return None;
        }
        let ttl_ms = Some(reader.u64()?).filter(|ttl_ms| *ttl_ms != NEVER);
        let delivery_count = reader.u32()?;
        let (arrived_us, serial) = (reader.u64()?, reader.u64()?);
        let (exchange, routing_key) = (name(&mut reader)?, name(&mut reader)?);
        let deaths = Deaths::take(&mut reader)?;
        Some(Self {
            is_amqp10: flags & AMQP10 != 0,
            durable: flags & DURABLE != 0,
            copied: flags & COPIED != 0,
            relayed: flags & RELAYED != 0,
            priority,
            ttl_ms,
            delivery_count,
            arrived_us,
            serial,
            exchange,
            routing_key,
            deaths,
            own: reader.rest(),
        })
    }

    /// When the message with this head arrived, without reading the rest.
    pub fn arrival(head: &[u8]) -> Option<u64> {
        let mut reader = Reader::new(head);
        let version = reader.u8()?;
        // Flags, priority, time to live and count of deliveries stand before it.
        reader.take(1 + 1 + 8 + 4)?;
        reader.u64().filter(|_| version == VERSION)
    }

    /// Do two heads differ in arrival and serial only? Whatever was made of the one serves for the other then.
    #[inline]
    pub fn is_alike(one: &[u8], other: &[u8]) -> bool {
        one.len() == other.len()
            && one.get(..Self::OWN_FACTS.start) == other.get(..Self::OWN_FACTS.start)
            && one.get(Self::OWN_FACTS.end..) == other.get(Self::OWN_FACTS.end..)
    }

    /// Appends all of it; `deaths` stand where the envelope's own would.
    #[inline]
    pub fn encode<'d>(&self, deaths: impl ExactSizeIterator<Item = StoredDeath<'d>>, out: &mut Vec<u8>) {
        let flag = |yes: bool, flag: u8| if yes { flag } else { 0 };
        let marks = flag(self.copied, COPIED) | flag(self.relayed, RELAYED);
        let flags = flag(self.is_amqp10, AMQP10) | flag(self.durable, DURABLE) | marks;
        out.extend_from_slice(&[VERSION, flags, self.priority]);
        out.extend_from_slice(&self.ttl_ms.unwrap_or(NEVER).to_le_bytes());
        out.extend_from_slice(&self.delivery_count.to_le_bytes());
        out.extend_from_slice(&self.arrived_us.to_le_bytes());
        out.extend_from_slice(&self.serial.to_le_bytes());
        put(out, self.exchange);
        put(out, self.routing_key);
        out.extend_from_slice(&(deaths.len() as u16).to_le_bytes());
        deaths.take(usize::from(u16::MAX)).for_each(|death| death.encode(out));
        out.extend_from_slice(self.own);
    }
}

impl<'a> Deaths<'a> {
    /// Cuts them from the front of what a reader has.
    #[inline]
    fn take(reader: &mut Reader<'a>) -> Option<Self> {
        let whole = reader.rest();
        for _ in 0..reader.u16()? {
            StoredDeath::decode(reader)?;
        }
        whole.get(..whole.len() - reader.rest().len()).map(Self)
    }

    /// Most messages have none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.len() <= 2
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = StoredDeath<'a>> + use<'a> {
        let mut reader = Reader::new(self.0);
        let count = reader.u16().unwrap_or(0);
        (0..count).map_while(move |_| StoredDeath::decode(&mut reader))
    }
}

impl<'a> StoredDeath<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put(out, self.queue);
        put(out, self.reason);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.time_s.to_le_bytes());
        put(out, self.exchange);
        out.extend_from_slice(&(self.routing_keys.len() as u16).to_le_bytes());
        self.routing_keys.iter().take(usize::from(u16::MAX)).for_each(|key| put(out, key));
        out.extend_from_slice(&self.expiration_ms.unwrap_or(NEVER).to_le_bytes());
    }

    fn decode(reader: &mut Reader<'a>) -> Option<Self> {
        Some(Self {
            queue: name(reader)?,
            reason: name(reader)?,
            count: reader.u64()?,
            time_s: reader.u64()?,
            exchange: name(reader)?,
            routing_keys: {
                let keys = reader.u16()?;
                (0..keys).map(|_| name(reader)).collect::<Option<Vec<_>>>()?
            },
            expiration_ms: Some(reader.u64()?).filter(|ms| *ms != NEVER),
        })
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

#[inline]
fn name<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let count = reader.u32()? as usize;
    reader.take(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_shorter_is() {
        let death = StoredDeath {
            queue: b"q",
            reason: b"expired",
            count: 3,
            time_s: 9,
            exchange: b"",
            routing_keys: vec![b"a", b"b"],
            expiration_ms: Some(60_000),
        };
        let envelope = Envelope {
            is_amqp10: true,
            durable: true,
            priority: 7,
            ttl_ms: Some(5),
            delivery_count: 2,
            arrived_us: 11,
            serial: 12,
            exchange: b"ex",
            routing_key: b"key",
            own: b"own head",
            ..Envelope::default()
        };
        let mut head = Vec::new();
        envelope.encode(std::iter::once(death.clone()), &mut head);
        let back = Envelope::decode(&head).expect("it is one");
        assert_eq!(Envelope::arrival(&head), Some(11));
        assert_eq!(back.deaths.iter().collect::<Vec<_>>(), std::slice::from_ref(&death));
        assert_eq!(Envelope { deaths: Deaths::default(), ..back }, envelope);
        for len in 0..head.len() - envelope.own.len() {
            assert_eq!(Envelope::decode(&head[..len]), None, "{len}");
        }
        let mut later = Vec::new();
        Envelope { arrived_us: 99, serial: u64::MAX, ..envelope }.encode(std::iter::once(death.clone()), &mut later);
        assert!(later != head && Envelope::is_alike(&head, &later));
        for changed in [Envelope { delivery_count: 3, ..envelope }, Envelope { exchange: b"ey", ..envelope }] {
            later.clear();
            changed.encode(std::iter::once(death.clone()), &mut later);
            assert!(!Envelope::is_alike(&head, &later));
        }
        assert!(!Envelope::is_alike(&head, &head[1..]));
        head[0] += 1;
        assert_eq!(Envelope::decode(&head), None, "a version that is not ours");
    }
}
