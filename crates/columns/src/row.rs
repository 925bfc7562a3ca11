//! One message, as a caller has it.
//!
//! Owns `Row`: plain borrowed values, so that a store's files, a node and a client can all fill columns. It must never
//! own bytes or decode them. Rule: docs/reference/columns.md.

use weft_journal::{Envelope, Stored};

use crate::amqp10;

/// A message on its way into columns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row<'a> {
    pub offset: u64,
    /// Microseconds since 1970.
    pub arrived_us: u64,
    pub exchange: &'a [u8],
    pub routing_key: &'a [u8],
    pub priority: u8,
    pub ttl_ms: Option<u64>,
    pub durable: bool,
    pub redelivered: bool,
    /// Head and body are in the format of AMQP 1.0, else of 0-9-1.
    pub is_amqp10: bool,
    /// 0-9-1 property flags and values, or the AMQP 1.0 sections before the body.
    pub head: &'a [u8],
    /// 0-9-1 content, or the AMQP 1.0 body sections and footer.
    pub body: &'a [u8],
}

impl<'a> Row<'a> {
    /// A message as the journal keeps it; `None` if its head is not one.
    #[inline]
    pub fn stored(stored: &Stored<'a>) -> Option<Self> {
        let envelope = Envelope::decode(stored.head)?;
        Some(Self {
            offset: stored.position,
            arrived_us: envelope.arrived_us,
            exchange: envelope.exchange,
            routing_key: envelope.routing_key,
            priority: envelope.priority,
            ttl_ms: envelope.ttl_ms,
            durable: envelope.durable,
            redelivered: envelope.delivery_count > 0,
            is_amqp10: envelope.is_amqp10,
            head: envelope.own,
            body: stored.body,
        })
    }

    /// A message as a node delivers it from a stream over AMQP 1.0; `None` if it says no offset. What went to the
    /// stream directly has no routing key but the stream's name.
    pub fn delivered(message: &'a [u8], stream: &'a str) -> Option<Self> {
        amqp10::delivered(message, stream)
    }
}
