//! A message as the journal keeps it.
//!
//! Owns the encoding of everything about a message but its body: names, traits, death record, head. Messages become
//! bytes when they are stored and come back when a queue is read from disk. It must never look into a body, and never
//! fail on bytes that rotted: they come back as None. Rule: docs/internals/segment.md, "What the engine writes".

use std::rc::Rc;

use weft_wire::amqp10::sections;

use crate::broker::{Death, Reason};
use crate::memory::Account;
use crate::message::{Body, Kind, Message, Name, Traits};

/// Version of this encoding, the first byte of every head.
const VERSION: u8 = 2;
const AMQP10: u8 = 1;
const DURABLE: u8 = 2;
const COPIED: u8 = 4;
const NO_TTL: u64 = u64::MAX;

/// Appends everything but the body.
pub fn encode(message: &Message, out: &mut Vec<u8>) {
    let traits = &message.traits;
    let protocol = if matches!(message.kind, Kind::Amqp10(_)) { AMQP10 } else { 0 };
    let flags = protocol | if traits.durable { DURABLE } else { 0 } | if traits.copied { COPIED } else { 0 };
    out.extend_from_slice(&[VERSION, flags, traits.priority]);
    out.extend_from_slice(&traits.ttl_ms.unwrap_or(NO_TTL).to_le_bytes());
    out.extend_from_slice(&traits.delivery_count.to_le_bytes());
    out.extend_from_slice(&traits.arrived_us.to_le_bytes());
    out.extend_from_slice(&traits.serial.to_le_bytes());
    put(out, &message.exchange);
    put(out, &message.routing_key);
    let deaths = message.deaths.as_deref().unwrap_or_default();
    out.extend_from_slice(&(deaths.len() as u16).to_le_bytes());
    deaths.iter().for_each(|death| put_death(out, death));
    out.extend_from_slice(message.head());
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_death(out: &mut Vec<u8>, death: &Death) {
    put(out, &death.queue);
    put(out, death.reason.word().as_bytes());
    out.extend_from_slice(&death.count.to_le_bytes());
    out.extend_from_slice(&death.time_s.to_le_bytes());
    put(out, &death.exchange);
    out.extend_from_slice(&(death.routing_keys.len() as u16).to_le_bytes());
    death.routing_keys.iter().for_each(|key| put(out, key));
    out.extend_from_slice(&death.expiration_ms.unwrap_or(NO_TTL).to_le_bytes());
}

/// When a message arrived, from what `encode` wrote; None if the bytes are not that.
pub fn arrived_us(head: &[u8]) -> Option<u64> {
    let mut reader = Reader(head);
    let [version, ..]: [u8; 3 + 8 + 4] = reader.array()?;
    (version == VERSION).then(|| reader.array().map(u64::from_le_bytes))?
}

/// A message again; None if the bytes are not one.
pub fn decode(head: &[u8], body: &[u8], account: &Rc<Account>) -> Option<Message> {
    let mut reader = Reader(head);
    let [version, flags, priority] = reader.array()?;
    if version != VERSION {
        return None;
    }
    let ttl_ms = Some(u64::from_le_bytes(reader.array()?)).filter(|ttl_ms| *ttl_ms != NO_TTL);
    let delivery_count = u32::from_le_bytes(reader.array()?);
    let (arrived_us, serial) = (u64::from_le_bytes(reader.array()?), u64::from_le_bytes(reader.array()?));
    let names = (reader.name()?, reader.name()?);
    let deaths = u16::from_le_bytes(reader.array()?);
    let deaths = (0..deaths).map(|_| reader.death()).collect::<Option<Vec<_>>>()?;
    let own = reader.0;
    let kind = match flags & AMQP10 != 0 {
        true => Kind::Amqp10(Box::new(sections::scan(own).ok()?.head)),
        false => Kind::Amqp091,
    };
    let (durable, copied) = (flags & DURABLE != 0, flags & COPIED != 0);
    let traits = Traits { durable, priority, ttl_ms, delivery_count, publisher: 0, copied, arrived_us, serial };
    let mut bytes = Vec::with_capacity(own.len() + body.len());
    bytes.extend_from_slice(own);
    bytes.extend_from_slice(body);
    let charge = account.charge(bytes.len() as u64);
    let letter = Body::new(Rc::from(bytes.as_slice()), own.len()..bytes.len());
    let mut message = Message::new(kind, names, traits, 0..own.len(), letter, charge);
    message.deaths = if deaths.is_empty() { None } else { Some(Rc::from(deaths)) };
    Some(message)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn name(&mut self) -> Option<Name> {
        let len = u32::from_le_bytes(self.array()?) as usize;
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(Name::from(front))
    }

    fn death(&mut self) -> Option<Death> {
        Some(Death {
            queue: self.name()?,
            reason: Reason::from_word(&self.name()?)?,
            count: u64::from_le_bytes(self.array()?),
            time_s: u64::from_le_bytes(self.array()?),
            exchange: self.name()?,
            routing_keys: {
                let keys = u16::from_le_bytes(self.array()?);
                (0..keys).map(|_| self.name()).collect::<Option<Vec<_>>>()?
            },
            expiration_ms: Some(u64::from_le_bytes(self.array()?)).filter(|ms| *ms != NO_TTL),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Ledger;
    use crate::testing::message;

    #[test]
    fn a_message_comes_back_as_it_was() {
        let names = (Name::from(&b"ex"[..]), Name::from(&b"key"[..]));
        let death = Death {
            queue: Name::from(&b"q"[..]),
            reason: Reason::Expired,
            count: 3,
            time_s: 9,
            exchange: Name::from(&b""[..]),
            routing_keys: vec![Name::from(&b"a"[..]), Name::from(&b"b"[..])],
            expiration_ms: Some(60_000),
        };
        let traits =
            Traits { durable: true, priority: 7, ttl_ms: Some(5), arrived_us: 11, serial: 12, ..Traits::default() };
        let own = message(b"the body", 0).relabel(names, traits, Some(Rc::from(vec![death])));
        let mut head = Vec::new();
        encode(&own, &mut head);
        let account = Ledger::new(1 << 20).account();
        let back = decode(&head, b"the body", &account).expect("it is one");
        assert_eq!(format!("{:?}", back.traits), format!("{:?}", own.traits));
        assert_eq!((&back.exchange, &back.routing_key), (&own.exchange, &own.routing_key));
        assert_eq!(format!("{:?}", back.deaths), format!("{:?}", own.deaths));
        assert_eq!((back.head(), back.body().gather()), (own.head(), b"the body".to_vec()));
        for len in 0..head.len() - own.head().len() {
            assert!(decode(&head[..len], b"", &account).is_none(), "{len}");
        }
    }
}
