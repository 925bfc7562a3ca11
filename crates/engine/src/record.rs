//! A message as the journal keeps it.
//!
//! Owns the way from a message to the journal's envelope (names, traits, death record, head) and back, when a queue is
//! read from disk. It must never look into a body, and never fail on bytes that rotted: they come back as None. The
//! layout itself is `weft_journal::Envelope`, which readers without an engine share. Rule: docs/internals/segment.md,
//! "What the engine writes".

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use weft_journal::{Envelope, Room, Stored, StoredDeath};
use weft_wire::amqp10::sections;

use crate::broker::{Death, Reason};
use crate::memory::Account;
use crate::message::{Body, Buffer, Kind, Message, Name, Traits};

/// Appends everything but the body.
pub fn encode(message: &Message, out: &mut Vec<u8>) {
    let traits = &message.traits;
    let envelope = Envelope {
        is_amqp10: matches!(message.kind, Kind::Amqp10(_)),
        durable: traits.durable,
        copied: traits.copied,
        relayed: traits.relayed,
        priority: traits.priority,
        ttl_ms: traits.ttl_ms,
        delivery_count: traits.delivery_count,
        arrived_us: traits.arrived_us,
        serial: traits.serial,
        exchange: &message.exchange,
        routing_key: &message.routing_key,
        own: message.head(),
        ..Envelope::default()
    };
    envelope.encode(message.deaths.as_deref().unwrap_or_default().iter().map(stored), out);
}

fn stored(death: &Death) -> StoredDeath<'_> {
    StoredDeath {
        queue: &death.queue,
        reason: death.reason.word().as_bytes(),
        count: death.count,
        time_s: death.time_s,
        exchange: &death.exchange,
        routing_keys: death.routing_keys.iter().map(|key| &key[..]).collect(),
        expiration_ms: death.expiration_ms,
    }
}

fn death(stored: &StoredDeath<'_>) -> Option<Death> {
    Some(Death {
        queue: Name::from(stored.queue),
        reason: Reason::from_word(stored.reason)?,
        count: stored.count,
        time_s: stored.time_s,
        exchange: Name::from(stored.exchange),
        routing_keys: stored.routing_keys.iter().map(|key| Name::from(*key)).collect(),
        expiration_ms: stored.expiration_ms,
    })
}

/// When a message arrived, from what `encode` wrote; None if the bytes are not that.
pub fn arrived_us(head: &[u8]) -> Option<u64> {
    Envelope::arrival(head)
}

/// Names that the messages of a read have in common, so that each is allocated once.
#[derive(Debug, Default)]
pub struct Names(Option<(Name, Name)>);

impl Names {
    fn of(&mut self, exchange: &[u8], routing_key: &[u8]) -> (Name, Name) {
        match &self.0 {
            Some((known, key)) if **known == *exchange && **key == *routing_key => (Rc::clone(known), Rc::clone(key)),
            _ => self.0.insert((Name::from(exchange), Name::from(routing_key))).clone(),
        }
    }
}

/// A message again, with bytes of its own; None if these are not one.
pub fn decode(head: &[u8], body: &[u8], account: &Rc<Account>, names: &mut Names) -> Option<Message> {
    build(head, account, names, |own| {
        let len = own.len() + body.len();
        // The buffer is made in its place and filled once: this is how long queues are read back.
        let mut bytes: Rc<[u8]> = std::iter::repeat_n(0, len).collect();
        let (front, back) = Rc::get_mut(&mut bytes)?.split_at_mut(own.len());
        front.copy_from_slice(own);
        back.copy_from_slice(body);
        Some((0..own.len(), Body::new(bytes, own.len()..len)))
    })
}

/// The same without a copy, for a message whose body begins there in `bytes`, behind its head: it keeps in memory what
/// was read with it.
pub fn share(
    bytes: &Arc<Room>,
    (start, stored): (usize, Stored<'_>),
    account: &Rc<Account>,
    names: &mut Names,
) -> Option<Message> {
    build(stored.head, account, names, |own| {
        let body = Body::within(Buffer::Read(Arc::clone(bytes)), start..start + stored.body.len());
        Some((start.checked_sub(own.len())?..start, body))
    })
}

/// A message from its envelope; `place` says where its own head and its body lie.
#[inline]
fn build<'a>(
    head: &'a [u8],
    account: &Rc<Account>,
    names: &mut Names,
    place: impl FnOnce(&'a [u8]) -> Option<(Range<usize>, Body)>,
) -> Option<Message> {
    let envelope = Envelope::decode(head)?;
    let deaths = match envelope.deaths.is_empty() {
        true => None,
        false => Some(envelope.deaths.iter().map(|stored| death(&stored)).collect::<Option<Rc<[_]>>>()?),
    };
    let own = envelope.own;
    let kind = match envelope.is_amqp10 {
        true => Kind::Amqp10(Box::new(sections::scan(own).ok()?.head)),
        false => Kind::Amqp091,
    };
    let traits = Traits {
        durable: envelope.durable,
        priority: envelope.priority,
        ttl_ms: envelope.ttl_ms,
        delivery_count: envelope.delivery_count,
        publisher: 0,
        copied: envelope.copied,
        relayed: envelope.relayed,
        untyped: false,
        arrived_us: envelope.arrived_us,
        serial: envelope.serial,
    };
    let names = names.of(envelope.exchange, envelope.routing_key);
    let (place, body) = place(own)?;
    let charge = account.charge((own.len() + body.len()) as u64);
    let mut message = Message::new(kind, names, traits, place, body, charge);
    message.deaths = deaths;
    Some(message)
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
            Traits { durable: true, relayed: true, priority: 7, ttl_ms: Some(5), serial: 12, ..Traits::default() };
        let own = message(b"the body", 0).relabel(names, traits, Some(Rc::from(vec![death])));
        let mut head = Vec::new();
        encode(&own, &mut head);
        let account = Ledger::new(1 << 20).account();
        let back = decode(&head, b"the body", &account, &mut Names::default()).expect("it is one");
        assert_eq!(format!("{:?}", back.traits), format!("{:?}", own.traits));
        assert_eq!((&back.exchange, &back.routing_key), (&own.exchange, &own.routing_key));
        assert_eq!(format!("{:?}", back.deaths), format!("{:?}", own.deaths));
        assert_eq!((back.head(), back.body().gather()), (own.head(), b"the body".to_vec()));
        for len in 0..head.len() - own.head().len() {
            assert!(decode(&head[..len], b"", &account, &mut Names::default()).is_none(), "{len}");
        }
    }
}
